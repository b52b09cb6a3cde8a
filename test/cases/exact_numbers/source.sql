-- Whole numbers beyond 2^53 and floats in their shortest exact form.
CREATE TABLE exact_numbers (id bigint PRIMARY KEY, big bigint, i int, s smallint, f8 float8, f4 float4, o oid, ok bool);
INSERT INTO exact_numbers VALUES (9007199254740993, 9007199254740993, 1, 1, 0.1, 0.1, 1, true);
