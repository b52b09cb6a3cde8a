INSERT INTO infinite_intervals VALUES
	(1, '-infinity', NULL, '{infinity,"1 day",NULL,-infinity}'),
	(2, '1 day', '-infinity', '{}');
UPDATE infinite_intervals SET i = '-infinity' WHERE id = 0;
