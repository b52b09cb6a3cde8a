-- Tables that exchange their names, get new ones, or are made again under an old one.
CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'old');
CREATE TABLE t_new (id bigint PRIMARY KEY, v text, w text); INSERT INTO t_new VALUES (2, 'new', 'w');
CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'a');
CREATE TABLE again (id int PRIMARY KEY, v text); INSERT INTO again VALUES (1, 'first');
