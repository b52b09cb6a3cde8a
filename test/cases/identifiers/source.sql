-- Any name that the server accepts.
CREATE SCHEMA "Odd.Name"; CREATE SCHEMA "select";
CREATE TABLE "t😀 ""q"" x" ("Id" int PRIMARY KEY, "order" text, "a""b" text, "😀" text, "with space" text, "c,d" text);
CREATE TABLE "user" ("user" int PRIMARY KEY, "from" text, "$1" text, "%s" text, ctid_ text, "null" text);
CREATE TABLE "Odd.Name"."a.b" ("primary" int, "Key" text, PRIMARY KEY ("Key", "primary"));
CREATE TABLE "select"."*" (id int PRIMARY KEY, "?" text);
CREATE TABLE "it's" ("'" int PRIMARY KEY, "\" text);
CREATE TABLE "1digit" ("1" int PRIMARY KEY, "-" text);
INSERT INTO "t😀 ""q"" x" VALUES (1, 'a', 'b', 'c', 'd', 'e');
INSERT INTO "user" VALUES (1, 'a', 'b', 'c', 'd', 'e');
INSERT INTO "Odd.Name"."a.b" VALUES (1, 'a'), (2, 'a');
INSERT INTO "select"."*" VALUES (1, 'a'); INSERT INTO "it's" VALUES (1, 'a'); INSERT INTO "1digit" VALUES (1, 'a');
