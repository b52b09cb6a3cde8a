-- From 18 on a generated column is virtual unless it says STORED: no row holds it, and the log does not carry it.
CREATE TABLE virtual_columns (id int PRIMARY KEY, net numeric(10,2), gross numeric(12,3) GENERATED ALWAYS AS (net * 1.19), note text,
	shout text GENERATED ALWAYS AS (upper(note)) VIRTUAL, kept text GENERATED ALWAYS AS (note || '!') STORED);
INSERT INTO virtual_columns (id, net, note) VALUES (1, 1.00, 'a'), (2, NULL, NULL);
