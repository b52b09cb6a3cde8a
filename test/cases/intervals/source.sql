-- Months, days and microseconds are three numbers: a month is not thirty days.
CREATE TABLE intervals (id int PRIMARY KEY, i interval, short interval day to second(2), list interval[]);
