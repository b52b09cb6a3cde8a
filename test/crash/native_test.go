package crash

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
)

// TestWriterAndComparisonHoldForNativeReplication lets the server's own replication carry the writer's changes: what it
// carries rightly must be found equal, and a row changed behind its back must be found.
func TestWriterAndComparisonHoldForNativeReplication(t *testing.T) {
	m := &mirror{source: testServer.Database(t), sink: testServer.Database(t)}
	createSource(t, m.source, *seedFlag)
	createSource(t, m.sink, 0)
	for _, tab := range tables {
		testdb.Exec(t, m.sink, "TRUNCATE "+tab.name)
	}
	testdb.Exec(t, m.sink, "TRUNCATE audit")
	testdb.Exec(t, m.source, "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)")
	// A subscription to another database of the same server cannot make its slot itself: it would wait for itself.
	slot := "native_" + testdb.QueryText(t, m.sink, "SELECT current_database()")
	testdb.Exec(t, m.source, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput')", slot))
	testdb.Exec(t, m.sink, fmt.Sprintf("CREATE SUBSCRIPTION s CONNECTION '%s' PUBLICATION p WITH (create_slot = false, slot_name = '%s')", m.source, slot))
	t.Cleanup(func() {
		testdb.Exec(t, m.sink, "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
		testdb.Exec(t, m.sink, "DROP SUBSCRIPTION s")
	})
	m.pair = testdb.OpenPair(t, m.source, m.sink)
	m.watch = startWatch(t, m.source)
	m.writer = startWriter(t, m.source, *seedFlag, 8, *rateFlag)
	testdb.Eventually(t, func() error {
		if n := m.writer.transactions.Load(); n < 1000 {
			return fmt.Errorf("%d transactions", n)
		}
		return nil
	})
	if err := m.writer.stop(); err != nil {
		t.Error(err)
	}
	if err := m.watch.stop(); err != nil {
		t.Error(err)
	}
	compare := func() error {
		for _, tab := range tables {
			if diff, err := m.pair.Compare(t.Context(), tab.name, tab.name); err != nil || diff != "" {
				return errors.Join(errors.New(diff), err)
			}
		}
		return nil
	}
	testdb.EventuallyWithin(t, 3*time.Minute, compare)
	testdb.Exec(t, m.sink, "UPDATE keyed SET v = -1 WHERE id = (SELECT max(id) FROM keyed)")
	if compare() == nil {
		t.Error("a falsified row was not found")
	}
}
