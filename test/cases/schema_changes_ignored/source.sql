-- With schema_changes: ignore the destination stays as it is: new columns are left out, and names stay.
CREATE TABLE t (id int PRIMARY KEY, v text, w text); INSERT INTO t VALUES (1, 'a', 'b');
