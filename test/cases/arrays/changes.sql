INSERT INTO arrays (id) VALUES (1);
INSERT INTO arrays VALUES (2, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}');
INSERT INTO arrays VALUES (3, '{1,NULL,3}', '{"",NULL,"NULL","a,b","{}","\\\"",é}',
	'{00000000-0000-0000-0000-000000000000,NULL}', '{sad,"ok, \"fine\"","NULL",NULL}', '{NaN,1.50,NULL}',
	ARRAY['\x00ff', NULL, '']::bytea[], ARRAY['null', '"a"', NULL]::jsonb[], '{infinity,"0001-01-01 00:00+00 BC"}',
	ARRAY[(1, 'a"b'), (NULL, ''), NULL]::point3[], '{"[1,2)",empty,"(,)"}', '{NaN,-0,Infinity}', '{t,f,NULL}', '{abc}');
INSERT INTO arrays (id, i, t) VALUES (4, '{{1,2},{3,4}}', '{{{a},{b}},{{c},{NULL}}}'), (5, '[0:2]={1,2,3}', '[-1:0][5:5]={{x},{y}}');
INSERT INTO arrays (id, i, f) SELECT 6, array_agg(g), array_agg(g / 3.0) FROM generate_series(1, 5000) g;
UPDATE arrays SET m = m || 'sad'::mood WHERE id IN (2, 3);
