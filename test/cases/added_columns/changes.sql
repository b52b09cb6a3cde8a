INSERT INTO t VALUES (3, 'c');
ALTER TABLE t ADD n int, ADD d text DEFAULT 'it''s', ADD e text DEFAULT '', ADD a int[] DEFAULT '{1,NULL}', ADD j jsonb DEFAULT '{"a": null}',
	ADD at timestamptz DEFAULT now(), ADD b bytea DEFAULT '\x00ff', ADD f float8 DEFAULT 'NaN', ADD q numeric(10,2) DEFAULT 1.5;
ALTER TABLE t ALTER d SET DEFAULT 'later';
UPDATE t SET n = 1 WHERE id = 1; INSERT INTO t (id) VALUES (4); DELETE FROM t WHERE id = 2;
ALTER TABLE t ADD later text; INSERT INTO t (id, later) VALUES (5, 'x');
BEGIN; INSERT INTO t (id) VALUES (6); ALTER TABLE t ADD z int DEFAULT 7; INSERT INTO t (id) VALUES (7); ALTER TABLE t ADD y int; INSERT INTO t (id, y) VALUES (8, 8); COMMIT;
ALTER TABLE p ADD d text DEFAULT 'x'; UPDATE p SET v = 'c' WHERE id = 2; INSERT INTO p VALUES (3, 'd', 'y');
ALTER TABLE idle ADD d text DEFAULT 'x';
ALTER TABLE computed ADD r float8 DEFAULT random(), ADD s serial; INSERT INTO computed VALUES (3);
