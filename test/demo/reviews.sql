CREATE TABLE reviews (
	id    bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	sku   text NOT NULL REFERENCES products,
	stars integer NOT NULL,
	text  text
);

INSERT INTO reviews (sku, stars, text)
SELECT 'P-' || lpad((1 + i % 2000)::text, 5, '0'), 1 + i % 5, 'Review number ' || i FROM generate_series(1, 20000) i;
