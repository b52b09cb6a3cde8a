-- A key that updates and deletes do not send would leave old rows behind: it is refused, and so is one that is not unique.
CREATE TABLE unsent (id int PRIMARY KEY, email text NOT NULL UNIQUE);
CREATE TABLE many (id int PRIMARY KEY, email text NOT NULL);
INSERT INTO unsent VALUES (1, 'a');
