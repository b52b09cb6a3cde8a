package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

// equals returns an error until a query gives the same text at both ends.
func equals(t *testing.T, source, sink, ofSource, ofSink string) func() error {
	return func() error {
		want := testdb.QueryText(t, source, ofSource)
		got, err := testdb.TryQuery(sink, ofSink)
		if err != nil || got[0][0] != want {
			return fmt.Errorf("the sink has %v, %v; the source has %s", got, err, want)
		}
		return nil
	}
}

func TestColumnsThatAreNotMirroredMayChangeWithoutANewCopy(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, `CREATE TABLE people (gone int, id int PRIMARY KEY, name text);
		INSERT INTO people SELECT i, i, 'n' || i FROM generate_series(1, 100) i`)
	sluice := process.New(t, program, process.Config{
		Name: "listed", Source: source, Sink: sink,
		Mirror: "tables: {discover_interval: 100ms}\nper_table: {people: {columns: [id, name]}}",
	})
	p := sluice.Run(t)
	mirrored := `SELECT coalesce(string_agg(id || name, ',' ORDER BY id), '') FROM people`
	await(t, p, "not copied", equals(t, source, sink, mirrored, mirrored))
	for _, change := range []string{
		`ALTER TABLE people ADD COLUMN later text; UPDATE people SET later = 'x', name = 'second' WHERE id = 1`,
		`ALTER TABLE people DROP COLUMN gone; UPDATE people SET name = 'third' WHERE id = 2`,
		`ALTER TABLE people RENAME COLUMN later TO latest; DELETE FROM people WHERE id = 3; INSERT INTO people VALUES (1000, 'new', 'y')`,
	} {
		for statement := range strings.SplitSeq(change, ";") { // committed and visible before the next row is read
			testdb.Exec(t, source, statement)
		}
		await(t, p, change, equals(t, source, sink, mirrored, mirrored))
	}
	if got := testdb.QueryText(t, sink, `SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'people'::regclass AND attnum > 0`); got != "id name" {
		t.Errorf("the destination has the columns %s", got)
	}
	if got := testdb.QueryText(t, sink, "SELECT copy FROM sluice.owner"); got != "1" {
		t.Errorf("copy number %s: the table was copied again for columns that nobody wants", got)
	}
}

func TestChosenKeyThatIsNotSentAnyMoreStopsItsTable(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, `CREATE TABLE people (id int PRIMARY KEY, email text NOT NULL UNIQUE, name text); ALTER TABLE people REPLICA IDENTITY FULL;
		INSERT INTO people SELECT i, 'mail' || i, 'n' || i FROM generate_series(1, 10) i`)
	sluice := process.New(t, program, process.Config{
		Name: "chosen", Source: source, Sink: sink,
		Mirror: "retry_paused: 1s\ntables: {discover_interval: 0}\nper_table: {people: {key: [email]}}",
	})
	p := sluice.Run(t)
	all := `SELECT coalesce(string_agg(id || email || name, ',' ORDER BY id), '') FROM people`
	await(t, p, "not copied", equals(t, source, sink, all, all))
	testdb.Exec(t, source, `ALTER TABLE people REPLICA IDENTITY DEFAULT; UPDATE people SET email = 'moved' WHERE id = 1`)
	if !p.Log.Await("REPLICA IDENTITY USING INDEX", catchUpLimit) {
		t.Fatal("a key that is not sent any more was not noticed")
	}
	if got := testdb.QueryText(t, sink, "SELECT count(*) FROM people"); got != "10" {
		t.Errorf("%s rows in the sink, want the 10 of before", got)
	}
	testdb.Exec(t, source, `ALTER TABLE people REPLICA IDENTITY FULL; UPDATE people SET name = 'after' WHERE id = 2`)
	await(t, p, "not copied again", equals(t, source, sink, all, all))
	if log := p.Log.Tail(1000); strings.Contains(log, "mail1") {
		t.Error("the log holds values of rows")
	}
}
