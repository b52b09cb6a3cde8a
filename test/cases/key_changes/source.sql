-- A changed key is the old row gone and the new one there, in one batch too, and in swaps and rings.
CREATE TABLE moves (id int PRIMARY KEY, v text);
INSERT INTO moves SELECT i, 'v' || i FROM generate_series(1, 20) i;
