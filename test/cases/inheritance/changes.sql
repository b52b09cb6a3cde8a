INSERT INTO parent VALUES (3, 'p'); INSERT INTO child VALUES (4, 'c', 'm'); UPDATE parent SET v = v || '!'; DELETE FROM parent WHERE id = 2;
