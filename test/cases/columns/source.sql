-- What is left out never reaches the sink, in copy and stream alike; what is added later only where no list says otherwise.
CREATE TABLE less (secret text, id int PRIMARY KEY, name text, card text);
CREATE TABLE listed (id int PRIMARY KEY, big text, name text, secret text);
INSERT INTO less SELECT 's' || i, i, 'n' || i, 'c' || i FROM generate_series(1, 3) i;
INSERT INTO listed SELECT i, (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n), 'n' || i, 's' || i FROM generate_series(1, 3) i;
