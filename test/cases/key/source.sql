-- A chosen key tells rows apart in the sink: a change of it is the old row gone, whatever the primary key does.
CREATE TABLE people (id int PRIMARY KEY, email text NOT NULL UNIQUE, name text);
ALTER TABLE people REPLICA IDENTITY FULL;
CREATE TABLE part (id int, code text NOT NULL UNIQUE, v int, PRIMARY KEY (id, code));
INSERT INTO people SELECT i, 'mail' || i, 'n' || i FROM generate_series(1, 6) i;
INSERT INTO part SELECT i, 'c' || i, i FROM generate_series(1, 6) i;
