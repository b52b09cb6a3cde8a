UPDATE events SET n = 10 WHERE id = 1; UPDATE events SET n = 11 WHERE id = 1;
BEGIN; INSERT INTO events VALUES (3, 3, NULL); UPDATE events SET t = 'c' WHERE id = 3; DELETE FROM events WHERE id = 3; COMMIT;
DELETE FROM events WHERE id = 2;
BEGIN; INSERT INTO events VALUES (4, 4, 'undone'); ROLLBACK;
