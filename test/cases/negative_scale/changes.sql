INSERT INTO negative_scale VALUES (2, 'NaN'), (3, 99900), (4, -49), (5, 10000), (6, NULL);
UPDATE negative_scale SET rounded = -5050 WHERE id = 1;
