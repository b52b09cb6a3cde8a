-- Every change is a row; a value that an update left alone is that of the row before.
CREATE TABLE events (id int PRIMARY KEY, n int, t text);
ALTER TABLE events ALTER t SET STORAGE EXTERNAL;
INSERT INTO events VALUES (1, 1, repeat('a', 4000)), (2, 2, 'b');
