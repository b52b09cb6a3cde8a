UPDATE sales SET amount = -amount WHERE id < 5;
UPDATE sales SET region = 'us' WHERE id IN (6, 8);
UPDATE sales SET at = at - 100 WHERE id IN (20, 22);
UPDATE sales_us SET amount = 0 WHERE id = 9;
DELETE FROM sales WHERE id > 25;
INSERT INTO sales_eu_new (id, region, at, amount) VALUES (100, 'eu', '2025-01-01', 1.10);
