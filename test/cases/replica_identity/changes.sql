DELETE FROM by_full WHERE id IN (1, 3); UPDATE by_full SET a = 'x' WHERE id = 2; UPDATE by_full SET id = 40 WHERE id = 4;
DELETE FROM by_index WHERE id IN (1, 3); UPDATE by_index SET id = -2 WHERE id = 2; UPDATE by_index SET code = 'moved' WHERE id = 4;
DELETE FROM by_default WHERE id IN (1, 3); UPDATE by_default SET a = 'x' WHERE id = 2; UPDATE by_default SET id = 40 WHERE id = 4;
