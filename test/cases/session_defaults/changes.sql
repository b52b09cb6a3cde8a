INSERT INTO public.defaults VALUES
	(1, '2024-03-31 02:30:00.123456+00', '2024-12-01', '1 year 2 days 03:04:05.6', '\x00ff', 0.1, '12:00+02', '[2024-01-02 03:04+00,)', '{2024-01-02 03:04+00}'),
	(2, '1900-01-01 00:00+00', '0001-02-03 BC', '-1 day', '\x5c', 1.2345678901234567, NULL, NULL, NULL);
UPDATE public.defaults SET tz = tz + interval '1 us' WHERE id = 1;
