UPDATE t SET v = 100 WHERE id = 1;
UPDATE t SET v = 0 WHERE id = 10;
UPDATE t SET id = 20, v = 50 WHERE id = 2;
UPDATE t SET id = 30 WHERE id = 9;
DELETE FROM t WHERE id IN (3, 8);
