-- A parent's rows are its own; a child's rows belong to the child, in the copy and in the stream.
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent);
INSERT INTO parent VALUES (1, 'p'); INSERT INTO child VALUES (2, 'c', 'm');
