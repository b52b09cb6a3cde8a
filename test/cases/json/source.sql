-- JSON null is not SQL NULL; json keeps its bytes, jsonb its numbers.
CREATE TABLE documents (id int PRIMARY KEY, j json, b jsonb, p jsonpath);
