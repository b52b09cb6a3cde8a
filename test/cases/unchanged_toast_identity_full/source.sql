-- Under REPLICA IDENTITY FULL the old row comes along, large values included.
CREATE TABLE large_full (id int PRIMARY KEY, n int NOT NULL, t text NOT NULL);
ALTER TABLE large_full ALTER t SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
INSERT INTO large_full SELECT i, i, repeat('t' || i, 5000) FROM generate_series(1, 10) i;
