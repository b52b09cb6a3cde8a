CREATE TYPE order_state AS ENUM ('new', 'paid', 'sent', 'cancelled');

CREATE TABLE customers (
	id      bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	name    text NOT NULL,
	email   text NOT NULL,
	joined  date NOT NULL,
	details jsonb
);

CREATE TABLE products (
	sku   text PRIMARY KEY,
	title text NOT NULL,
	price numeric(10,2) NOT NULL,
	tags  text[] NOT NULL DEFAULT '{}',
	stock integer NOT NULL
);

CREATE TABLE orders (
	id       bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	customer bigint NOT NULL REFERENCES customers,
	state    order_state NOT NULL DEFAULT 'new',
	placed   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE order_lines (
	"order"  bigint NOT NULL REFERENCES orders ON DELETE CASCADE,
	sku      text NOT NULL REFERENCES products,
	quantity integer NOT NULL,
	price    numeric(10,2) NOT NULL,
	PRIMARY KEY ("order", sku)
);

CREATE TABLE visits (at timestamptz NOT NULL, page text NOT NULL); -- without a key, so it is refused

INSERT INTO customers (name, email, joined, details)
SELECT 'Customer ' || i, 'c' || i || '@example.org', date '2020-01-01' + i % 2000,
	CASE WHEN i % 3 = 0 THEN jsonb_build_object('points', i % 500, 'newsletter', i % 2 = 0) END
FROM generate_series(1, 20000) i;

INSERT INTO products
SELECT 'P-' || lpad(i::text, 5, '0'), 'Product ' || i, (i % 900) + 0.99, ARRAY['shelf ' || i % 40, 'class ' || i % 7], 1000000
FROM generate_series(1, 2000) i;

INSERT INTO orders (customer, state, placed)
SELECT 1 + i % 20000, (enum_range(NULL::order_state))[1 + i % 4], now() - make_interval(mins => i)
FROM generate_series(1, 100000) i;

INSERT INTO order_lines
SELECT 1 + i / 3, 'P-' || lpad((1 + (i * 7) % 2000)::text, 5, '0'), 1 + i % 5, (i % 900) + 0.99
FROM generate_series(0, 299999) i;

ANALYZE;
