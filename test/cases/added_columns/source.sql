-- Columns that are added while the mirror follows: with a constant default, one that differs for each row, none.
CREATE TABLE t (id int PRIMARY KEY, v text);
INSERT INTO t VALUES (1, 'a'), (2, 'b');
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY LIST (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p DEFAULT;
INSERT INTO p VALUES (1, 'a'), (2, 'b');
CREATE TABLE idle (id int PRIMARY KEY); INSERT INTO idle VALUES (1);
CREATE TABLE computed (id int PRIMARY KEY); INSERT INTO computed VALUES (1), (2);
