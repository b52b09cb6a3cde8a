-- Arrays of any element type; NULL, the empty array, more dimensions and lower bounds are all different.
CREATE TYPE mood AS ENUM ('sad', 'ok, "fine"', 'NULL');
CREATE TYPE point3 AS (x int, label text);
CREATE TABLE arrays (id int PRIMARY KEY, i int[], t text[], u uuid[], m mood[], n numeric[], b bytea[], j jsonb[],
	ts timestamptz[], c point3[], r int4range[], f float8[], ok bool[], limited varchar(3)[]);
