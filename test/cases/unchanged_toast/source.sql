-- An update that leaves a large value alone does not send it: the stored one stays, never a placeholder or NULL.
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE large (id int PRIMARY KEY, n int, t text, b bytea, j jsonb, m mood[]);
ALTER TABLE large ALTER t SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL, ALTER m SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, i, repeat('t' || i, 5000), decode(repeat('00ff', 3000 + i), 'hex'), jsonb_build_object('k', repeat('j', 5000 + i)),
	array_fill('ok'::mood, ARRAY[3000]) FROM generate_series(1, 20) i;
