-- TRUNCATE is a change in its place: several tables at once, what hangs on them, within a transaction.
CREATE TABLE parents (id int PRIMARY KEY, v text);
CREATE TABLE children (id serial PRIMARY KEY, parent int REFERENCES parents, v text);
CREATE TABLE alone (id serial PRIMARY KEY, v text);
CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (200);
INSERT INTO parents SELECT i, 'old' FROM generate_series(1, 10) i;
INSERT INTO children (parent, v) SELECT i, 'old' FROM generate_series(1, 10) i;
INSERT INTO alone (v) SELECT 'old' FROM generate_series(1, 10) i;
INSERT INTO parts SELECT i, 'old' FROM generate_series(90, 110) i;
