-- All columns of a key count, in the key's order, which is not the table's.
CREATE TABLE lines (note text, line int, "order" text, at timestamptz, PRIMARY KEY ("order", at, line));
INSERT INTO lines SELECT 'n', l, 'o' || o, '2024-01-01 00:00+00' FROM generate_series(1, 5) l, generate_series(1, 5) o;
