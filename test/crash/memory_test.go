package crash

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	largeRows   = 5_000_000
	largeLimit  = 10 * time.Minute
	memoryLimit = 150 << 20 // bytes; rows are short here, so nothing comes on top
)

// TestTransactionOfFiveMillionRowsStaysWithinMemory streams one transaction far larger than memory allows.
func TestTransactionOfFiveMillionRowsStaysWithinMemory(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE large (id bigint PRIMARY KEY, v bigint); INSERT INTO large VALUES (0, 0)")
	p := process.New(t, program, process.Config{Name: "large", Source: source, Sink: sink, Mirror: "tables: {include: [public.large]}"}).Run(t)
	awaitRows(t, p, sink, 1, largeLimit)
	begin := time.Now()
	testdb.Exec(t, source, fmt.Sprintf("INSERT INTO large SELECT i, -i FROM generate_series(1, %d) i", largeRows))
	inserted := time.Since(begin)
	awaitRows(t, p, sink, largeRows+1, largeLimit)
	peak, err := p.PeakMemory()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("inserted in %v, in the sink %v after the begin; peak memory %d MiB", inserted, time.Since(begin), peak>>20)
	if peak > memoryLimit {
		t.Errorf("peak memory %d MiB, want at most %d", peak>>20, memoryLimit>>20)
	}
	if code, err := p.Stop(stopLimit); err != nil || code != exitOK {
		t.Errorf("after SIGTERM: exit code %d, %v", code, err)
	}
	if diff, err := testdb.OpenPair(t, source, sink).Compare(t.Context(), "large", "large"); err != nil || diff != "" {
		t.Error(diff, err)
	}
}

// awaitRows waits until the table large of the sink has n rows.
func awaitRows(t *testing.T, p *process.Process, sink string, n int, limit time.Duration) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		rows, err := testdb.TryQuery(sink, "SELECT count(*) FROM large")
		if err == nil && rows[0][0] == fmt.Sprint(n) {
			return
		}
		select {
		case <-p.Exited():
			t.Fatalf("the process ended by itself, exit code %d\n%s", p.ExitCode(), p.Log.Tail(40))
		case <-deadline:
			t.Fatalf("not %d rows within %v, but %v, %v", n, limit, rows, err)
		case <-tick.C:
		}
	}
}
