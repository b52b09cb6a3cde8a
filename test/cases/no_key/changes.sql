INSERT INTO keyless VALUES (2, 'b'); UPDATE keyless SET b = 'c'; DELETE FROM keyless WHERE a = 2;
INSERT INTO good VALUES (2, 'b'); UPDATE good SET b = 'c'; DELETE FROM good WHERE id = 1;
