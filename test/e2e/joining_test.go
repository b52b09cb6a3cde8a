package e2e

import (
	"testing"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

func TestNewTableOfAPublishedSchemaJoinsAtOnce(t *testing.T) {
	if testServer.Version(t) < 150000 {
		t.Skip("a publication holds schemas from PostgreSQL 15 on")
	}
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE old (id int PRIMARY KEY); INSERT INTO old VALUES (1); CREATE TABLE odd (v text)")
	sluice := process.New(t, program, process.Config{
		Name: "covered", Source: source, Sink: sink, Mirror: "tables: {exclude: [public.odd], discover_interval: 24h}",
	})
	p := sluice.Run(t)
	const all = "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM "
	await(t, p, "not copied", equals(t, source, sink, all+"old", all+"old"))
	testdb.Exec(t, source, "ALTER PUBLICATION sluice_covered ADD TABLES IN SCHEMA public")
	testdb.Exec(t, source, "INSERT INTO odd VALUES ('not selected')")
	testdb.Exec(t, source, "CREATE TABLE young (id int PRIMARY KEY); INSERT INTO young VALUES (1)")
	await(t, p, "not joined", equals(t, source, sink, all+"young", all+"young"))
	testdb.Exec(t, source, "INSERT INTO young VALUES (2); INSERT INTO old VALUES (2)")
	await(t, p, "not followed", equals(t, source, sink, all+"young", all+"young"))
	await(t, p, "not followed", equals(t, source, sink, all+"old", all+"old"))
	if n := testdb.QueryText(t, sink, "SELECT max(copy) FROM sluice.owner"); n != "1" {
		t.Errorf("copy number %s: a table was copied again", n)
	}
}

func TestTableThatGetsAKeyIsMirrored(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE keyless (id int NOT NULL); INSERT INTO keyless VALUES (1); CREATE TABLE keyed (id int PRIMARY KEY); INSERT INTO keyed VALUES (1)")
	sluice := process.New(t, program, process.Config{
		Name: "fit", Source: source, Sink: sink, Mirror: "tables: {discover_interval: 100ms}",
	})
	p := sluice.Run(t)
	const all = "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM "
	await(t, p, "not copied", equals(t, source, sink, all+"keyed", all+"keyed"))
	testdb.Exec(t, source, "ALTER TABLE keyless ADD PRIMARY KEY (id); INSERT INTO keyless VALUES (2)")
	await(t, p, "not taken in", equals(t, source, sink, all+"keyless", all+"keyless"))
	testdb.Exec(t, source, "DELETE FROM keyless WHERE id = 1")
	await(t, p, "not followed", equals(t, source, sink, all+"keyless", all+"keyless"))
}
