package crash

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	pausedLimit = 30 * time.Second
	ackLimit    = 40 * time.Second // a few rounds of saving the floor
	lagLimit    = 10 * time.Second // of a healthy table, restart included
)

// TestPausedTableHoldsBackNeitherTheSourceNorOthersAndGoesOnAfterKill pauses one table by a sink that refuses its rows.
// The source may forget what the table lacks; after a kill its changes come from the spool.
func TestPausedTableHoldsBackNeitherTheSourceNorOthersAndGoesOnAfterKill(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, `
		CREATE TABLE bad (id int PRIMARY KEY, v text); INSERT INTO bad SELECT i, 'old' FROM generate_series(1, 100) i;
		CREATE TABLE good (LIKE bad INCLUDING ALL); INSERT INTO good SELECT * FROM bad`)
	sluice := process.New(t, program, process.Config{
		Name: "spool", Source: source, Sink: sink,
		Mirror: "spool: {durable_after: {bytes: 0}}\nretry_paused: 2s\nmax_table_failures: 1",
	})
	p := sluice.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	equal := func(table string) func() error {
		return func() error {
			diff, err := pair.Compare(t.Context(), table, table)
			if err == nil && diff != "" {
				err = fmt.Errorf("%s: %s", table, diff)
			}
			return err
		}
	}
	testdb.EventuallyWithin(t, pausedLimit, equal("bad"))
	testdb.EventuallyWithin(t, pausedLimit, equal("good"))
	testdb.Exec(t, sink, `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = 'check_violation'; END $$;
		CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON bad FOR EACH ROW EXECUTE FUNCTION refuse();
		ALTER TABLE bad ENABLE ALWAYS TRIGGER refuse -- a mirror's rows fire no others`)
	testdb.Exec(t, source, "UPDATE bad SET v = 'new' WHERE id = 1")
	if !p.Log.Await("table is paused", pausedLimit) {
		t.Fatalf("the table is not paused\n%s", p.Log.Tail(20))
	}
	for _, table := range []string{"bad", "good"} {
		testdb.Exec(t, source, "INSERT INTO "+table+" SELECT i, repeat('x', 100) FROM generate_series(1000, 6000) i; DELETE FROM "+table+" WHERE id % 7 = 0")
	}
	end := testdb.Query(t, source, "SELECT pg_current_wal_lsn()")[0][0]
	testdb.EventuallyWithin(t, lagLimit, equal("good"))
	testdb.EventuallyWithin(t, ackLimit, func() error { return confirmed(source, end) })
	p.Kill()

	p = sluice.Run(t)
	testdb.Exec(t, source, "INSERT INTO good VALUES (7000, 'after the kill'); INSERT INTO bad VALUES (7000, 'after the kill')")
	testdb.EventuallyWithin(t, lagLimit, equal("good"))
	if rows := testdb.Query(t, sink, "SELECT count(*) FROM bad WHERE v <> 'old'"); rows[0][0] != "0" {
		t.Errorf("%s rows reached the table that refuses them", rows[0][0])
	}
	testdb.Exec(t, sink, "DROP TRIGGER refuse ON bad")
	testdb.EventuallyWithin(t, pausedLimit, equal("bad"))
	if i := slices.IndexFunc(p.Log.All(), func(line string) bool { return strings.Contains(line, "copy begins") }); i >= 0 {
		t.Errorf("a table was copied again: %s", p.Log.All()[i])
	}
	if code, err := p.Stop(stopLimit); err != nil || code != exitOK {
		t.Errorf("after SIGTERM: exit code %d, %v", code, err)
	}
}

// confirmed is an error while the source must keep the log before a position.
func confirmed(source, lsn string) error {
	rows, err := testdb.TryQuery(source, "SELECT confirmed_flush_lsn, confirmed_flush_lsn >= '"+lsn+"' FROM pg_replication_slots WHERE database = current_database()")
	if err == nil && (len(rows) != 1 || rows[0][1] != "t") {
		err = fmt.Errorf("the slot is at %v, want %s", rows, lsn)
	}
	return err
}
