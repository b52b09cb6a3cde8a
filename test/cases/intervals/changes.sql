INSERT INTO intervals VALUES
	(1, '1 month 30 days 720:00:00.000001', '1 day 02:03:04.567', '{"1 mon","30 days",NULL}'),
	(2, '-1 month +1 day -00:00:00.000001', NULL, '{}'),
	(3, '178000000 years', NULL, NULL),
	(4, '-178000000 years', '0', NULL),
	(5, '99:00:54.775807', NULL, '{{"1 day","2 days"},{"00:00:01","-1 year"}}'),
	(6, '24:00:00', '1 day', NULL);
