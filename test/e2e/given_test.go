package e2e

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

// asReader makes a role that may replicate from a database and read what is in it, and nothing else.
func asReader(t *testing.T, source string) string {
	t.Helper()
	u, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	role := "reader_of_" + strings.TrimPrefix(u.Path, "/")
	testdb.Exec(t, source, "CREATE ROLE "+role+" LOGIN REPLICATION; GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+role+
		"; ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO "+role)
	t.Cleanup(func() { testdb.Exec(t, source, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	u.User = url.User(role)
	return u.String()
}

const allIDs = "SELECT coalesce(string_agg(id::text, ',' ORDER BY id), '') FROM "

func TestMirrorOfAGivenPublicationTakesInWhatIsPutIntoIt(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1); CREATE PUBLICATION theirs FOR TABLE a")
	sluice := process.New(t, program, process.Config{
		Name: "given", Source: asReader(t, source), Sink: sink, Publication: "theirs", Mirror: "tables: {discover_interval: 100ms}",
	})
	plan, code := command(t, sluice, "plan", sluice.Config)
	if !strings.Contains(plan, `public.b: it is not in publication "theirs"; ALTER PUBLICATION "theirs" ADD TABLE "public"."b"`) {
		t.Errorf("plan (exit code %d) does not refuse the table that is not published:\n%s", code, plan)
	}
	p := sluice.Run(t)
	await(t, p, "not copied", equals(t, source, sink, allIDs+"a", allIDs+"a"))
	testdb.Exec(t, source, "ALTER PUBLICATION theirs ADD TABLE b")
	await(t, p, "not taken in", equals(t, source, sink, allIDs+"b", allIDs+"b"))

	testdb.Exec(t, source, "ALTER PUBLICATION theirs DROP TABLE a; INSERT INTO a VALUES (2)")
	await(t, p, "the loss is not told", func() error { return phase(t, sluice, "public.a", "refused", "ADD TABLE") })
	testdb.Exec(t, source, "INSERT INTO b VALUES (2)")
	await(t, p, "the other table stands", equals(t, source, sink, allIDs+"b", allIDs+"b"))
	testdb.Exec(t, source, "ALTER PUBLICATION theirs ADD TABLE a")
	await(t, p, "what was missed is not copied", equals(t, source, sink, allIDs+"a", allIDs+"a"))
	testdb.Exec(t, source, "INSERT INTO a VALUES (3); DELETE FROM a WHERE id = 1")
	await(t, p, "not followed", equals(t, source, sink, allIDs+"a", allIDs+"a"))
}

// phase returns nil if a table is in a phase for a reason with this text.
func phase(t *testing.T, s *process.Sluice, table, want, why string) error {
	status, _ := command(t, s, "status", s.Config)
	for line := range strings.Lines(status) {
		if strings.Contains(line, table) && strings.Contains(line, want) && strings.Contains(status, why) {
			return nil
		}
	}
	return fmt.Errorf("status:\n%s", status)
}

func TestTableTakenOutOfAGivenPublicationAndPutBackIsCopiedAgain(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO b VALUES (1); CREATE PUBLICATION theirs FOR TABLE a, b")
	sluice := process.New(t, program, process.Config{
		Name: "given_back", Source: asReader(t, source), Sink: sink, Publication: "theirs", Mirror: "tables: {discover_interval: 1s}",
	})
	const outAndBack = "ALTER PUBLICATION theirs DROP TABLE a; INSERT INTO a VALUES (%[1]d); ALTER PUBLICATION theirs ADD TABLE a; INSERT INTO b VALUES (%[1]d)"
	p := sluice.Run(t)
	for _, table := range []string{"a", "b"} {
		await(t, p, "not copied", equals(t, source, sink, allIDs+table, allIDs+table))
	}
	testdb.Exec(t, source, fmt.Sprintf(outAndBack, 2))
	for _, table := range []string{"a", "b"} {
		await(t, p, "not equal behind what happened to the publication", equals(t, source, sink, allIDs+table, allIDs+table))
	}
	if code, err := p.Stop(catchUpLimit); err != nil || code != 0 {
		t.Fatalf("stopped: exit code %d, %v", code, err)
	}
	testdb.Exec(t, source, fmt.Sprintf(outAndBack, 3))
	p = sluice.Run(t)
	for _, table := range []string{"a", "b"} {
		await(t, p, "not equal behind what happened while it was stopped", equals(t, source, sink, allIDs+table, allIDs+table))
	}
	if n := testdb.QueryText(t, sink, `SELECT copy FROM sluice.owner WHERE "table" = 'b'`); n != "1" {
		t.Errorf("the other table has been copied %s times", n)
	}
}

func TestNewTableJoinsAtOnceWhereAllTablesArePublished(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE old (id int PRIMARY KEY); INSERT INTO old VALUES (1); CREATE PUBLICATION theirs FOR ALL TABLES")
	sluice := process.New(t, program, process.Config{
		Name: "given_all", Source: asReader(t, source), Sink: sink, Publication: "theirs", Mirror: "tables: {discover_interval: 24h}",
	})
	p := sluice.Run(t)
	await(t, p, "not copied", equals(t, source, sink, allIDs+"old", allIDs+"old"))
	testdb.Exec(t, source, "CREATE TABLE young (id int PRIMARY KEY); INSERT INTO young VALUES (1)")
	await(t, p, "not joined", equals(t, source, sink, allIDs+"young", allIDs+"young"))
	testdb.Exec(t, source, "INSERT INTO young VALUES (2)")
	await(t, p, "not followed", equals(t, source, sink, allIDs+"young", allIDs+"young"))
}

func TestGivenPublicationThatIsMadeAgainLeadsToNewCopies(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); CREATE PUBLICATION theirs FOR ALL TABLES")
	sluice := process.New(t, program, process.Config{
		Name: "given_again", Source: asReader(t, source), Sink: sink, Publication: "theirs", Mirror: "on_gap: resync",
	})
	p := sluice.Run(t)
	await(t, p, "not copied", equals(t, source, sink, allIDs+"a", allIDs+"a"))
	testdb.Exec(t, source, "DROP PUBLICATION theirs; INSERT INTO a VALUES (2)")
	if code, err := p.Wait(catchUpLimit); err != nil || code == 0 {
		t.Fatalf("a run without its publication: exit code %d, %v", code, err)
	}
	if got := testdb.QueryText(t, source, "SELECT count(*) FROM pg_publication"); got != "0" {
		t.Errorf("%s publications", got)
	}
	testdb.Exec(t, source, "CREATE PUBLICATION theirs FOR ALL TABLES; INSERT INTO a VALUES (3)")
	p = sluice.Run(t)
	await(t, p, "not copied again", equals(t, source, sink, allIDs+"a", allIDs+"a"))
	if code, err := p.Stop(catchUpLimit); err != nil || code != 0 {
		t.Fatalf("stopped: exit code %d, %v", code, err)
	}
	before := testdb.QueryText(t, source, "SELECT p::text FROM pg_publication p")
	if text, code := command(t, sluice, "teardown", sluice.Config, "--yes"); code != 0 {
		t.Errorf("teardown: exit code %d: %s", code, text)
	}
	if after := testdb.QueryText(t, source, "SELECT p::text FROM pg_publication p"); after != before {
		t.Errorf("the publication was %s and is %s", before, after)
	}
	if got := testdb.QueryText(t, source, "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); got != "0" {
		t.Errorf("%s slots are left", got)
	}
}
