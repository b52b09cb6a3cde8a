UPDATE large_full SET n = -n WHERE id < 4;
UPDATE large_full SET id = id + 100 WHERE id IN (4, 5);
BEGIN; UPDATE large_full SET id = -6 WHERE id = 6; UPDATE large_full SET id = 6 WHERE id = 7; UPDATE large_full SET id = 7 WHERE id = -6; COMMIT;
DELETE FROM large_full WHERE id = 8;
