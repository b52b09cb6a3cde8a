UPDATE lines SET note = 'changed' WHERE "order" = 'o2' AND line = 3;
DELETE FROM lines WHERE "order" = 'o3' AND line < 3;
UPDATE lines SET line = line + 10 WHERE "order" = 'o4';
UPDATE lines SET at = '2024-01-01 00:00:00.000001+00' WHERE "order" = 'o5' AND line = 1;
INSERT INTO lines VALUES ('', 1, '', '-infinity'), (NULL, 1, 'o', 'infinity');
