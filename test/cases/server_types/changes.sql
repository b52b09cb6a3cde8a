INSERT INTO server_types (id) VALUES (1);
INSERT INTO server_types VALUES (2, 'green', ROW('a "b", (c)', NULL, '{x,"y z"}'), 'l', '-12.34', B'10101', B'1',
	'10.0.0.1/8', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', '[1,5)', '(1.50,]',
	'["2024-01-01 00:00+00",infinity)', '[2024-01-01,2024-02-01)', '{[1,2),[5,9)}',
	'''a b'':1A fat:2B', 'fat & (rat | cat:*)', '<a b="1">x &amp; y</a>', '(1.5,-2)', '{1,2,3}', '[(0,0),(1,1)]',
	'(1,1),(0,0)', '[(0,0),(1,1)]', '((0,0),(1,1),(2,0))', '<(0,0),0.1>', '16/B374D848', '00112233-4455-6677-8899-aabbccddeeff',
	NULL, '(1,2)', '123456789012');
INSERT INTO server_types (id, e, a, ip, r, mr, bits, vb, x, m) VALUES (3, '', ROW(NULL, NULL, NULL), '::1', 'empty', '{}', B'00000', B'', 'text only', '92233720368547758.07');
UPDATE server_types SET e = 'red', a.no = 7 WHERE id = 2;
