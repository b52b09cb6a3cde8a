INSERT INTO orders VALUES (2, '4112', 2.50); UPDATE orders SET card_number = 'x', total = 3 WHERE id = 1; INSERT INTO skipped VALUES (2);
