-- The time of an interval has 64 bits, more than a clock or a duration in nanoseconds.
CREATE TABLE longest_times (id int PRIMARY KEY, i interval, list interval[]);
