-- What tells rows apart may be the whole row or an index; a delete then sends only that.
CREATE TABLE by_full (id int PRIMARY KEY, a text NOT NULL, b int);
ALTER TABLE by_full REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int NOT NULL, code text NOT NULL, a text NOT NULL);
CREATE UNIQUE INDEX by_index_code ON by_index (code);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_code;
CREATE TABLE by_default (id int PRIMARY KEY, a text NOT NULL, b int NOT NULL);
INSERT INTO by_full SELECT i, 'a' || i, NULLIF(i, 3) FROM generate_series(1, 6) i;
INSERT INTO by_index SELECT i, 'c' || i, 'a' || i FROM generate_series(1, 6) i;
INSERT INTO by_default SELECT i, 'a' || i, i FROM generate_series(1, 6) i;
