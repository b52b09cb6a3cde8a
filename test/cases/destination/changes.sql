INSERT INTO orders VALUES (2, 2.50); UPDATE orders SET total = 3 WHERE id = 1;
UPDATE shop.items SET id = 2; INSERT INTO skipped VALUES (2);
