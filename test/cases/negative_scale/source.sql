-- A numeric may be rounded to hundreds.
CREATE TABLE negative_scale (id int PRIMARY KEY, rounded numeric(3,-2));
INSERT INTO negative_scale VALUES (1, 1234);
