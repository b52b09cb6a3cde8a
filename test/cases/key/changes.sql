UPDATE people SET id = 101 WHERE id = 1;
UPDATE people SET email = 'new' WHERE id = 2;
BEGIN; UPDATE people SET email = 'x' WHERE id = 3; UPDATE people SET email = 'mail3' WHERE id = 4; UPDATE people SET email = 'mail4' WHERE id = 3; COMMIT;
DELETE FROM people WHERE id = 5;
UPDATE part SET id = 101 WHERE id = 1;
UPDATE part SET code = 'new' WHERE id = 2;
DELETE FROM part WHERE id = 3;
UPDATE part SET v = 40 WHERE id = 4;
