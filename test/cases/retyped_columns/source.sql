-- Types that become wider in place, and values that a statement rewrites without a row in the log.
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE wider (id int PRIMARY KEY, v varchar(3), n numeric(4,2), m mood, ms mood[]);
INSERT INTO wider VALUES (1, 'abc', 12.34, 'sad', '{sad,happy}');
CREATE TABLE upper (id int PRIMARY KEY, v text); INSERT INTO upper SELECT i, 'v' || i FROM generate_series(1, 100) i;
CREATE TABLE rewritten (id int PRIMARY KEY, v int, w text); INSERT INTO rewritten VALUES (1, 1, 'a'), (2, 2, 'b');
CREATE TABLE again (id int PRIMARY KEY, v text); INSERT INTO again VALUES (1, 'a'), (2, 'b');
CREATE TABLE vacuumed (id int PRIMARY KEY, v text); INSERT INTO vacuumed VALUES (1, 'a');
