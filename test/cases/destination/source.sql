-- Another destination for all tables, and for one; a table that is not selected is not made.
CREATE SCHEMA shop;
CREATE TABLE orders (id int PRIMARY KEY, total numeric);
CREATE TABLE shop.items (id int PRIMARY KEY, name text);
CREATE TABLE skipped (id int PRIMARY KEY);
INSERT INTO orders VALUES (1, 1.50); INSERT INTO shop.items VALUES (1, 'a'); INSERT INTO skipped VALUES (1);
