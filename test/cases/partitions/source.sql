-- A partitioned table is one table: rows move between its parts, and parts are added.
CREATE TABLE sales (id int, region text, at date, amount numeric, PRIMARY KEY (id, region, at)) PARTITION BY LIST (region);
CREATE TABLE sales_eu PARTITION OF sales FOR VALUES IN ('eu') PARTITION BY RANGE (at);
CREATE TABLE sales_eu_old PARTITION OF sales_eu FOR VALUES FROM (MINVALUE) TO ('2024-01-01');
CREATE TABLE sales_eu_new (amount numeric, at date NOT NULL, gone int, region text NOT NULL, id int NOT NULL, PRIMARY KEY (id, region, at));
ALTER TABLE sales_eu_new DROP gone;
ALTER TABLE sales_eu ATTACH PARTITION sales_eu_new FOR VALUES FROM ('2024-01-01') TO (MAXVALUE);
CREATE TABLE sales_us PARTITION OF sales FOR VALUES IN ('us');
INSERT INTO sales SELECT i, CASE i % 2 WHEN 0 THEN 'eu' ELSE 'us' END, date '2023-12-20' + i, i FROM generate_series(1, 30) i;
