-- The empty string is not NULL, nothing is unescaped twice, char(n) keeps its padding.
CREATE TABLE texts (id int PRIMARY KEY, t text, v varchar(10), c char(5), b bytea, n name, one "char");
INSERT INTO texts VALUES (1, '', '', '', '', '', '');
