INSERT INTO unsent VALUES (2, 'b');
