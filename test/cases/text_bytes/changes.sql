INSERT INTO texts VALUES
	(2, NULL, NULL, NULL, NULL, NULL, NULL),
	(3, '\N', E'\t', 'ab', '\x00', 'NULL', 'x'),
	(4, E'a\nb\rc\\d\x01', E'\\.', E'\n', '\xdeadbeef00', '"', E'\\'),
	(5, E'\u0001\u007f\u00e9\u4e2d\U0001F600e\u0301', 'é', 'é', decode(repeat('00ff5c', 3000), 'hex'), 'é', '1'),
	(6, repeat('😀', 100000), 'trailing  ', 'a   ', '\x5c78', 'a', 'a'),
	(7, 'null', 'NULL', 'null', '\x4e554c4c', 'null', 'n');
UPDATE texts SET t = NULL, v = NULL WHERE id = 1;
UPDATE texts SET t = '' WHERE id = 2;
