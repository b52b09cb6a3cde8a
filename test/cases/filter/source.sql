-- Rows come in and go out as the filter says, whatever their updates leave unsent; NULL is not true; exact numbers stay exact.
CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(20,2), big text, hidden bool NOT NULL DEFAULT false);
CREATE FUNCTION big(n int) RETURNS text LANGUAGE sql AS $$ SELECT string_agg(md5((n * 1000 + i)::text), '') FROM generate_series(1, 300) i $$;
INSERT INTO orders SELECT i, CASE i % 3 WHEN 0 THEN 'open' WHEN 1 THEN 'paid' END, i + 0.10, big(i) FROM generate_series(1, 30) i;
CREATE TABLE by_big (id int PRIMARY KEY, v int, big text);
INSERT INTO by_big SELECT i, i, CASE WHEN i % 2 = 0 THEN 'yes' ELSE 'no' END || big(i) FROM generate_series(1, 10) i;
