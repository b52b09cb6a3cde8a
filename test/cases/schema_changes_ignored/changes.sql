ALTER TABLE t ADD y int; INSERT INTO t VALUES (2, 'c', 'd', 2);
ALTER TABLE t RENAME v TO z; INSERT INTO t VALUES (3, 'e', 'f', 3); UPDATE t SET z = 'x' WHERE id = 1;
