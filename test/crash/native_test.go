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
	source := testServer.Database(t) // skips without a server
	// On one server the slot of a table's first copy would wait for the transactions of the other tables' copies.
	subscriber, err := testdb.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(subscriber.Remove)
	m := &mirror{source: source, sink: subscriber.Database(t)}
	createSource(t, m.source, *seedFlag)
	createSource(t, m.sink, 0)
	for _, tab := range tables {
		testdb.Exec(t, m.sink, "TRUNCATE "+tab.name)
	}
	testdb.Exec(t, m.sink, "TRUNCATE audit")
	testdb.Exec(t, m.source, "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)")
	testdb.Exec(t, m.sink, fmt.Sprintf("CREATE SUBSCRIPTION s CONNECTION '%s' PUBLICATION p WITH (slot_name = 'native')", m.source))
	t.Cleanup(func() { testdb.Exec(t, m.sink, "DROP SUBSCRIPTION s") })
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
	testdb.EventuallyWithin(t, 2*time.Minute, compare)
	testdb.Exec(t, m.sink, "UPDATE keyed SET v = -1 WHERE id = (SELECT max(id) FROM keyed)")
	if compare() == nil {
		t.Error("a falsified row was not found")
	}
}
