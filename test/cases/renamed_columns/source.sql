-- Columns that get other names, each other's among them.
CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text);
INSERT INTO t VALUES (1, 'a1', 'b1', 'c1'), (2, 'a2', 'b2', 'c2');
CREATE TABLE key (id int PRIMARY KEY, v text); INSERT INTO key VALUES (1, 'a');
CREATE TABLE idle (id int PRIMARY KEY, v text); INSERT INTO idle VALUES (1, 'a');
