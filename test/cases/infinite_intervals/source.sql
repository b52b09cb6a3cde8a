-- From 17 on an interval may have no end.
CREATE TABLE infinite_intervals (id int PRIMARY KEY, i interval, short interval day to second(2), list interval[]);
INSERT INTO infinite_intervals VALUES (0, 'infinity', 'infinity', '{-infinity}');
