UPDATE "t😀 ""q"" x" SET "a""b" = '"', "with space" = NULL; INSERT INTO "t😀 ""q"" x" ("Id") VALUES (2);
UPDATE "user" SET "user" = 2, "$1" = '$1'; INSERT INTO "user" ("user") VALUES (1);
DELETE FROM "Odd.Name"."a.b" WHERE "primary" = 1; UPDATE "Odd.Name"."a.b" SET "Key" = 'b';
UPDATE "select"."*" SET "?" = '?'; UPDATE "it's" SET "\" = '\'; TRUNCATE "1digit"; INSERT INTO "1digit" VALUES (2, '-');
