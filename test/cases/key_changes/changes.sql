UPDATE moves SET id = 101 WHERE id = 1;
BEGIN; UPDATE moves SET id = -2 WHERE id = 2; UPDATE moves SET id = 2 WHERE id = 3; UPDATE moves SET id = 3 WHERE id = -2; COMMIT;
BEGIN; UPDATE moves SET id = -4 WHERE id = 4; UPDATE moves SET id = 4 WHERE id = 5; UPDATE moves SET id = 5 WHERE id = 6; UPDATE moves SET id = 6 WHERE id = -4; COMMIT;
BEGIN; DELETE FROM moves WHERE id = 7; INSERT INTO moves VALUES (7, 'reborn'); COMMIT;
BEGIN; INSERT INTO moves VALUES (50, 'x'); UPDATE moves SET id = 51 WHERE id = 50; DELETE FROM moves WHERE id = 51; COMMIT;
BEGIN; DELETE FROM moves WHERE id = 8; UPDATE moves SET id = 8 WHERE id = 9; UPDATE moves SET v = 'was 9' WHERE id = 8; COMMIT;
UPDATE moves SET id = id + 1000 WHERE id BETWEEN 10 AND 15;
UPDATE moves SET id = id - 1000 WHERE id BETWEEN 1010 AND 1012;
UPDATE moves SET id = 16 + 17 - id WHERE false;
