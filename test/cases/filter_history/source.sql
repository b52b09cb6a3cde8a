-- A history has the changes of rows that are in; one that goes out is a row "leave" with its key alone.
CREATE TABLE t (id int PRIMARY KEY, v int, big text);
INSERT INTO t SELECT i, i * 10, 'b' || repeat('x', 5000) FROM generate_series(1, 4) i;
ALTER TABLE t ALTER big SET STORAGE EXTERNAL; UPDATE t SET big = big || '';
CREATE TABLE keyless (v int, w text); ALTER TABLE keyless REPLICA IDENTITY FULL;
INSERT INTO keyless VALUES (1, 'a'), (20, 'b');
