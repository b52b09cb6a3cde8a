-- Columns dropped long ago leave gaps in the table's numbering; a table may be wide, or have its key alone.
CREATE TABLE gaps (a int, id int PRIMARY KEY, b text, c text, d text);
INSERT INTO gaps VALUES (1, 1, 'b', 'c', 'd');
ALTER TABLE gaps DROP a, DROP c; ALTER TABLE gaps ADD e text DEFAULT 'e', ADD c int;
CREATE TABLE only_key (id int PRIMARY KEY); INSERT INTO only_key VALUES (1);
CREATE TABLE empty (id int PRIMARY KEY, v text);
DO $$ BEGIN EXECUTE 'CREATE TABLE wide (id int PRIMARY KEY, ' || (SELECT string_agg(format('c%s text', i), ', ') FROM generate_series(1, 1000) i) || ')'; END $$;
INSERT INTO wide (id, c1, c1000) VALUES (1, 'first', 'last');
