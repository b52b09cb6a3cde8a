package crash

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// exclusiveWaitLimit is how long a TRUNCATE may wait for a piece of a copy that reads the table: the one lock that
// reading cannot do without.
const exclusiveWaitLimit = 5 * time.Second

// watch looks for statements of the writer that wait for a client's session which is not the writer's.
type watch struct {
	halt  context.CancelFunc
	done  sync.WaitGroup
	waits map[string]time.Duration // by statement and whom it waits for, the longest seen
	err   error
}

// startWatch begins to look, some twenty times a second.
func startWatch(t testing.TB, url string) *watch {
	t.Helper()
	ctx, halt := context.WithCancel(context.Background())
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		halt()
		t.Fatal(err)
	}
	w := &watch{halt: halt, waits: map[string]time.Duration{}}
	w.done.Go(func() {
		defer conn.Close(context.Background())
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for w.err == nil {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.err = w.look(conn)
			}
		}
	})
	t.Cleanup(func() { halt(); w.done.Wait() })
	return w
}

func (w *watch) look(conn *pgx.Conn) error {
	const query = `SELECT format('%s waits for %s: %s', left(w.query, 120), b.application_name, left(b.query, 120)),
			extract(epoch FROM clock_timestamp() - w.query_start)::float8
		FROM pg_stat_activity w, unnest(pg_blocking_pids(w.pid)) AS blocker, pg_stat_activity b
		WHERE w.application_name = $1 AND w.datname = current_database() AND w.wait_event_type = 'Lock'
			AND b.pid = blocker AND b.application_name <> $1 AND b.backend_type IN ('client backend', 'walsender')`
	rows, err := conn.Query(context.Background(), query, writerApplication)
	if err != nil {
		return err
	}
	var what string
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&what, &seconds}, func() error {
		w.waits[what] = max(w.waits[what], time.Duration(seconds*float64(time.Second)))
		return nil
	})
	return err
}

// stop ends the look and returns what waited although nothing of its kind may.
func (w *watch) stop() error {
	w.halt()
	w.done.Wait()
	var bad []string
	for _, what := range slices.Sorted(maps.Keys(w.waits)) {
		if !strings.HasPrefix(what, "TRUNCATE") || w.waits[what] > exclusiveWaitLimit {
			bad = append(bad, fmt.Sprintf("%v: %s", w.waits[what].Round(time.Millisecond), what))
		}
	}
	if w.err == nil && bad != nil {
		return fmt.Errorf("statements of the application waited for us:\n  %s", strings.Join(bad, "\n  "))
	}
	return w.err
}
