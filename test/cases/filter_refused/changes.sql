INSERT INTO orders VALUES (2, 'open');
