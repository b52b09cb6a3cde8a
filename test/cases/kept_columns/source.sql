-- A column that the source dropped stays, gets NULL in new rows, and makes room for another one of its name.
CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL, w text); INSERT INTO t VALUES (1, 'a', 'b'), (2, 'c', 'd');
