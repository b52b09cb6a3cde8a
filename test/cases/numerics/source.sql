-- Numerics that are no numbers, or wider than any decimal type; the scale is part of the value.
CREATE TABLE numerics (id int PRIMARY KEY, n numeric, price numeric(12,2), whole numeric(38,0));
INSERT INTO numerics VALUES (1, 1.50, 1.5, 70);
