INSERT INTO generated (net, name) VALUES (3.33, 'Eve'), (NULL, NULL);
UPDATE generated SET net = 10 WHERE id = 1;
INSERT INTO generated (id, net) OVERRIDING SYSTEM VALUE VALUES (1000, 5);
