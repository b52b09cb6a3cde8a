INSERT INTO less VALUES ('s4', 4, 'n4', 'c4');
UPDATE less SET secret = 'other' WHERE id = 1;
UPDATE listed SET name = 'other', secret = 'x' WHERE id = 1;
UPDATE listed SET id = 20 WHERE id = 2;
DELETE FROM less WHERE id = 2;
ALTER TABLE less ADD COLUMN later int DEFAULT 5;
ALTER TABLE listed ADD COLUMN later int;
ALTER TABLE listed DROP COLUMN secret;
UPDATE listed SET name = 'last', later = 1 WHERE id = 3;
