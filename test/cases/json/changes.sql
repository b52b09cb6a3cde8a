INSERT INTO documents VALUES
	(1, 'null', 'null', '$'),
	(2, NULL, NULL, NULL),
	(3, '"a"', '"a"', '$.a[*] ? (@ > 1)'),
	(4, '{"b": 1.0, "a" : 1,  "a":2}', '{"b": 1.0, "a" : 1,  "a":2}', NULL),
	(5, '12345678901234567890.123', '12345678901234567890.123', NULL),
	(6, '[]', '{}', NULL),
	(7, '"\u00e9\n\\u0000"', '"\u00e9\n\\u0000"', NULL),
	(8, E'{\n\t"k" : [1 , 2]\n}', ('{"k": "' || repeat('x', 100000) || '"}')::jsonb, NULL);
UPDATE documents SET b = b || '{"more": 1e2}' WHERE id = 8;
