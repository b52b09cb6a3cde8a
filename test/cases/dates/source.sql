-- Dates and times at the ends of what the server holds, and NULL, which must not become 1970.
CREATE TABLE dates (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, t time, ttz timetz);
INSERT INTO dates VALUES (1, '2024-02-29', '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.999999+00', '24:00', '23:59:59.999999-15:59');
