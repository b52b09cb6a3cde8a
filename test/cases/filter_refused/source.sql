-- A filter that does not fit its table is refused before anything is copied.
CREATE TABLE orders (id int PRIMARY KEY, status text);
INSERT INTO orders VALUES (1, 'open');
