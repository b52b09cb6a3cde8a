-- Types that travel in the server's own text form, and those that users make.
CREATE TYPE colour AS ENUM ('red', 'green', '');
CREATE TYPE address AS (street text, no int, tags text[]);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN label AS varchar(20) NOT NULL DEFAULT 'x';
CREATE TABLE server_types (id positive PRIMARY KEY, e colour, a address, l label, m money, bits bit(5), vb bit varying(9),
	ip inet, net cidr, mac macaddr, mac8 macaddr8, r int4range, nr numrange, tr tstzrange, dr daterange, mr int8multirange,
	vec tsvector, q tsquery, x xml, pt point, ln line, sg lseg, bx box, pa path, po polygon, ci circle, lsn pg_lsn, u uuid,
	cls regclass, tid tid, x8 xid8);
