-- With dropped_columns: drop a column goes in the sink too.
CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL, w text, g text GENERATED ALWAYS AS (w || 'g') STORED); INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd');
