-- A table without a usable key is refused with the reason, and nothing of the others suffers.
CREATE TABLE keyless (a int, b text);
CREATE TABLE identity_nothing (id int PRIMARY KEY); ALTER TABLE identity_nothing REPLICA IDENTITY NOTHING;
CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
CREATE TABLE good (id int PRIMARY KEY, b text);
INSERT INTO keyless VALUES (1, 'a'), (1, 'a'); INSERT INTO good VALUES (1, 'a'); INSERT INTO unlogged VALUES (1);
