CREATE TYPE order_state AS ENUM ('new', 'paid', 'sent', 'cancelled');

CREATE TABLE customers (
	id      bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
	name    text NOT NULL,
	email   text NOT NULL,
	joined  date NOT NULL,
	details jsonb
);

CREATE TABLE addresses (
	customer bigint NOT NULL REFERENCES customers,
	kind     text NOT NULL,
	street   text NOT NULL,
	city     text NOT NULL,
	PRIMARY KEY (customer, kind)
);

CREATE TABLE suppliers (
	id     integer PRIMARY KEY,
	name   text NOT NULL,
	active boolean NOT NULL
);

CREATE TABLE products (
	sku      text PRIMARY KEY,
	supplier integer NOT NULL REFERENCES suppliers,
	title    text NOT NULL,
	price    numeric(10,2) NOT NULL,
	tags     text[] NOT NULL DEFAULT '{}'
);

CREATE TABLE stock (
	sku      text NOT NULL REFERENCES products,
	shelf    integer NOT NULL,
	quantity integer NOT NULL,
	PRIMARY KEY (sku, shelf)
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

CREATE TABLE payments (
	"order" bigint PRIMARY KEY REFERENCES orders ON DELETE CASCADE,
	amount  numeric(10,2) NOT NULL,
	paid    timestamptz NOT NULL
);

INSERT INTO customers (name, email, joined, details)
SELECT 'Customer ' || i, 'c' || i || '@example.org', date '2020-01-01' + i % 2000,
	CASE WHEN i % 3 = 0 THEN jsonb_build_object('points', i % 500, 'newsletter', i % 2 = 0) END
FROM generate_series(1, 20000) i;

INSERT INTO addresses
SELECT i, 'home', i % 200 || ' Long Street', 'Town ' || i % 50 FROM generate_series(1, 20000) i;

INSERT INTO suppliers
SELECT i, 'Supplier ' || i, i % 9 <> 0 FROM generate_series(1, 100) i;

INSERT INTO products
SELECT 'P-' || lpad(i::text, 5, '0'), 1 + i % 100, 'Product ' || i, (i % 900) + 0.99, ARRAY['shelf ' || i % 40, 'class ' || i % 7]
FROM generate_series(1, 2000) i;

INSERT INTO stock
SELECT 'P-' || lpad(i::text, 5, '0'), shelf, 1000000 FROM generate_series(1, 2000) i, generate_series(1, 3) shelf;

INSERT INTO orders (customer, state, placed)
SELECT 1 + i % 20000, (enum_range(NULL::order_state))[1 + i % 4], now() - make_interval(mins => i)
FROM generate_series(1, 40000) i;

INSERT INTO order_lines
SELECT 1 + i / 3, 'P-' || lpad((1 + (i * 7) % 2000)::text, 5, '0'), 1 + i % 5, (i % 900) + 0.99
FROM generate_series(0, 119999) i;

INSERT INTO payments
SELECT i, (i % 900) + 0.99, now() - make_interval(mins => i) FROM generate_series(1, 40000, 2) i;

ANALYZE;
