-- A deleted row stays, with the time of its deletion; a key that comes back lives again.
CREATE TABLE items (id int PRIMARY KEY, n int, t text);
ALTER TABLE items ALTER t SET STORAGE EXTERNAL;
INSERT INTO items SELECT i, i, repeat('a', 4000) FROM generate_series(1, 6) i;
CREATE TABLE emptied (id int PRIMARY KEY, n int);
INSERT INTO emptied VALUES (1, 1), (2, 2);
CREATE TABLE gone (id int PRIMARY KEY);
INSERT INTO gone VALUES (1), (2);
