-- Columns left out and another destination.
CREATE TABLE orders (id int PRIMARY KEY, card_number text, total numeric);
CREATE TABLE skipped (id int PRIMARY KEY);
INSERT INTO orders VALUES (1, '4111', 1.50); INSERT INTO skipped VALUES (1);
