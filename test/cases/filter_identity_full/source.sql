-- Where whole old rows are in the log nothing is unsent, and a filter needs nothing but the log.
CREATE TABLE t (id int PRIMARY KEY, v int, big text); ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t SELECT i, i, (SELECT string_agg(md5((i * 1000 + n)::text), '') FROM generate_series(1, 300) n) FROM generate_series(1, 10) i;
