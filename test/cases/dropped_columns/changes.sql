INSERT INTO gaps (id, b, d, c) VALUES (2, 'b2', 'd2', 2); UPDATE gaps SET e = NULL, c = 1 WHERE id = 1;
INSERT INTO only_key VALUES (2); UPDATE only_key SET id = 3 WHERE id = 1;
UPDATE wide SET c500 = 'middle'; INSERT INTO wide (id, c999) VALUES (2, 'x');
