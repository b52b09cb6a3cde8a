INSERT INTO virtual_columns (id, net, note) VALUES (3, 2.50, 'b');
UPDATE virtual_columns SET net = 10, note = 'c' WHERE id = 1;
DELETE FROM virtual_columns WHERE id = 2;
