-- Partitions come with rows that are not in the log, and go without a word.
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); INSERT INTO p VALUES (1, 'a');
CREATE TABLE p2 (id int PRIMARY KEY, v text); INSERT INTO p2 VALUES (11, 'loaded'), (13, 'untouched');
