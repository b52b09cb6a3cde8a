TRUNCATE parents CASCADE;
INSERT INTO parents VALUES (1, 'new'); INSERT INTO children (parent, v) VALUES (1, 'new');
BEGIN; INSERT INTO alone (v) VALUES ('before'); TRUNCATE alone, children RESTART IDENTITY; INSERT INTO alone (v) VALUES ('after');
UPDATE alone SET v = v || '!'; COMMIT;
BEGIN; TRUNCATE alone; INSERT INTO alone (v) VALUES ('undone'); ROLLBACK;
BEGIN; TRUNCATE parts; INSERT INTO parts VALUES (5, 'new'), (150, 'new'); COMMIT;
