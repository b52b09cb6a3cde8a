package e2e

import (
	"fmt"
	"math/rand/v2"
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

// filterLives is how often the process is killed.
const filterLives = 3

func TestFilteredTablesHoldWhatTheServersConditionTakes(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	t.Logf("to repeat: go test ./test/e2e -seed %d", *seedFlag)
	const table = `(id int PRIMARY KEY, v int, price numeric(12,4), state text, big text, at timestamptz)`
	testdb.Exec(t, source, `CREATE TABLE short `+table+`; CREATE TABLE large `+table+`; CREATE TABLE whole `+table+`;
		ALTER TABLE whole REPLICA IDENTITY FULL;
		CREATE FUNCTION big(n int) RETURNS text LANGUAGE sql AS $$ SELECT CASE WHEN n % 3 = 0 THEN 'yes' ELSE 'no' END || (SELECT string_agg(md5((n * 1000 + i)::text), '') FROM generate_series(1, 200) i) $$`)
	filters := map[string][2]string{
		"short": {`state in ["open", "paid"] and price >= 10.05 and at > "2020-01-01 00:00:00Z"`, `state IN ('open', 'paid') AND price >= 10.05 AND at > '2020-01-01 00:00:00Z'`},
		"large": {`big startsWith "yes" or v == nil`, `big LIKE 'yes%' OR v IS NULL`},
		"whole": {`big startsWith "yes" and not (v < 3)`, `big LIKE 'yes%' AND NOT (v < 3)`},
	}
	settings := "snapshot: {chunk_rows: 50}\nper_table:\n"
	for name, f := range filters {
		settings += fmt.Sprintf("  %s: {filter: '%s'}\n", name, f[0])
	}
	rng := rand.New(rand.NewPCG(*seedFlag, 7))
	change := func(n int) string {
		name := []string{"short", "large", "whole"}[rng.IntN(3)]
		id, row := rng.IntN(150), fmt.Sprintf(`nullif(%d, 5), %d.%04d, (ARRAY['open', 'paid', 'done', NULL])[%d]`, rng.IntN(6), 9+rng.IntN(3), rng.IntN(1000), 1+rng.IntN(4))
		at := fmt.Sprintf("timestamptz '2019-12-31' + %d * interval '1 hour'", rng.IntN(72))
		switch rng.IntN(8) {
		case 0, 1, 2:
			return fmt.Sprintf(`INSERT INTO %s VALUES (%d, %s, big(%d), %s) ON CONFLICT DO NOTHING`, name, id, row, n, at)
		case 3, 4:
			return fmt.Sprintf(`UPDATE %s SET (v, price, state) = (SELECT %s), at = %s WHERE id = %d`, name, row, at, id)
		case 5:
			return fmt.Sprintf(`UPDATE %s SET big = big(%d) WHERE id = %d`, name, n, id)
		case 6:
			return fmt.Sprintf(`UPDATE %[1]s SET id = %[2]d WHERE id = %[3]d AND NOT EXISTS (SELECT FROM %[1]s WHERE id = %[2]d)`, name, rng.IntN(150), id)
		default:
			return fmt.Sprintf(`DELETE FROM %s WHERE id = %d`, name, id)
		}
	}
	write := func(transactions int) {
		for n := range transactions {
			statements := make([]string, 1+rng.IntN(4))
			for i := range statements {
				statements[i] = change(n)
			}
			testdb.Exec(t, source, strings.Join(statements, "; "))
		}
	}
	write(300)
	sluice := process.New(t, program, process.Config{Name: "filtered", Source: source, Sink: sink, Mirror: settings})
	for range filterLives {
		p := sluice.Run(t)
		write(100)
		p.Kill()
	}
	p := sluice.Run(t)
	write(100)
	for name, f := range filters {
		rows := `SELECT coalesce(string_agg(t::text, ',' ORDER BY id), '') FROM ` + name + ` t`
		await(t, p, name+" is not equal", equals(t, source, sink, rows+" WHERE "+f[1], rows))
	}
}
