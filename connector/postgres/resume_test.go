package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// joining is a mirror from one database to another whose table public.t is copied in many chunks, and a hook between them.
type joining struct {
	*testing.T
	source, sink string
	spool        string
	store        *state.Store
	limits       mirror.Limits
	before       func(chunk int) // is called before a chunk is read, counted over all that are begun
	begun        atomic.Int32
}

func newJoining(t *testing.T, source, sink string) *joining {
	t.Helper()
	store, err := state.Open(t.Context(), t.TempDir()+"/state.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	j := &joining{T: t, source: source, sink: sink, spool: t.TempDir(), store: store, limits: mirror.DefaultLimits(), before: func(int) {}}
	j.limits.ChunkRows, j.limits.CopyWorkers, j.limits.BatchRows, j.limits.FloorEvery = 50, 1, 20, 10*time.Millisecond
	testdb.Exec(t, source, `
		CREATE TABLE t (id int PRIMARY KEY, v text, big text);
		ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
		INSERT INTO t SELECT i, 'v' || i, repeat(chr(65 + i % 26), 2500) || i FROM generate_series(1, 400) i;
		ANALYZE t`)
	return j
}

// run mirrors until everything is copied and caught up.
func (j *joining) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	env := func(id string) connector.Env {
		return connector.Env{Mirror: "joining", ID: id, Alloc: memory.NewGoAllocator()}
	}
	s, err := mirror.Run(ctx, mirror.Options{
		Mirror: "joining", Once: true, Store: j.store, Spool: j.spool, Alloc: memory.NewGoAllocator(), Limits: j.limits,
		Log: slog.New(slog.NewTextHandler(j.Output(), nil)),
		Source: func(ctx context.Context, id string) (connector.Source, error) {
			src, err := OpenSource(ctx, &Config{URL: j.source, Connections: 4}, env(id))
			return &hookedSource{src, j}, err
		},
		Sink: func(ctx context.Context, id string) (connector.Sink, error) {
			return OpenSink(ctx, &Config{URL: j.sink, Connections: 4}, env(id))
		},
		Selector: mirror.Selector{Select: func(t *schema.Table) (mirror.Settings, bool) {
			return mirror.Settings{Destination: t.Name}, t.Name.Table == "t"
		}},
	})
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case !s.InOrder():
		return fmt.Errorf("%+v", s.Tables)
	}
	return nil
}

func (j *joining) mustRun() {
	j.Helper()
	if err := j.run(j.Context()); err != nil {
		j.Fatal(err)
	}
}

func (j *joining) mustBeEqual() {
	j.Helper()
	diff, err := testdb.OpenPair(j, j.source, j.sink).Compare(j.Context(), "t", "t")
	if err != nil || diff != "" {
		j.Fatal(err, diff)
	}
}

// events returns how many events of a kind there were.
func (j *joining) events(kind string) (n int) {
	j.Helper()
	events, err := j.store.Events(j.Context(), 1000)
	if err != nil {
		j.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// awaitWaiting waits until the mirror says that it waits for a process of the source.
func (j *joining) awaitWaiting(pid uint32) {
	testdb.Eventually(j, func() error {
		tables, err := j.store.Tables(context.Background())
		if err == nil && (len(tables) == 0 || !strings.Contains(tables[0].Reason, fmt.Sprintf("pid %d", pid))) {
			err = fmt.Errorf("the mirror does not wait: %+v", tables)
		}
		return err
	})
}

// hookedSource calls the hook before it reads a chunk, while nothing of the copy holds a lock.
type hookedSource struct {
	*Source
	joining *joining
}

type hookedSnapshot struct {
	connector.Snapshot
	joining *joining
}

func (s *hookedSource) Snapshot(ctx context.Context, t *schema.Table) (connector.Snapshot, error) {
	snap, err := s.Source.Snapshot(ctx, t)
	if err != nil {
		return nil, err
	}
	return &hookedSnapshot{snap, s.joining}, nil
}

func (s *hookedSnapshot) Read(ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
	s.joining.before(int(s.joining.begun.Add(1)))
	return s.Snapshot.Read(ctx, c)
}

// moveRows changes rows in one transaction: most move to other keys without a change of their large value, and leave
// theirs to others.
func moveRows(t testing.TB, conn *pgx.Conn, rng *rand.Rand) {
	t.Helper()
	var b strings.Builder
	b.WriteString("BEGIN;")
	for range 1 + rng.IntN(6) {
		id, to := 1+rng.IntN(400), 1+rng.IntN(440)
		switch rng.IntN(6) {
		case 0:
			fmt.Fprintf(&b, "DELETE FROM t WHERE id = %d;", id)
		case 1:
			fmt.Fprintf(&b, "INSERT INTO t VALUES (%d, 'new', repeat('n', 2500) || %d) ON CONFLICT DO NOTHING;", id, rng.IntN(1e6))
		case 2:
			fmt.Fprintf(&b, "UPDATE t SET v = 'updated %d' WHERE id = %d;", rng.IntN(1e6), id)
		case 3:
			fmt.Fprintf(&b, "UPDATE t SET big = repeat('u', 2500) || %d WHERE id = %d;", rng.IntN(1e6), id)
		default: // away, and another row takes the place
			fmt.Fprintf(&b, `DELETE FROM t WHERE id = %d AND id <> %d; UPDATE t SET id = %[1]d, v = 'moved' WHERE id = %d;
				INSERT INTO t VALUES (%[2]d, 'in its place', repeat('p', 2500) || %d) ON CONFLICT DO NOTHING;`, to, id, id, rng.IntN(1e6))
		}
	}
	b.WriteString("COMMIT")
	if _, err := conn.PgConn().Exec(context.Background(), b.String()).ReadAll(); err != nil {
		t.Error(err)
	}
}

func TestCopyOfManySnapshotsIsEqualAfterRowsMoved(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			j := newJoining(t, testServer.Database(t), testServer.Database(t))
			app, rng := connect(t, j.source), rand.New(rand.NewPCG(seed, 0))
			j.limits.ViewAge = time.Nanosecond
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			j.before = func(chunk int) {
				for range 4 {
					moveRows(t, app, rng)
				}
				if chunk == 4 {
					cancel() // the rest is copied by the next process
				}
			}
			if err := j.run(ctx); !errors.Is(err, context.Canceled) {
				t.Fatalf("run: %v, want it cut off", err)
			}
			for range 4 {
				moveRows(t, app, rng)
			}
			j.mustRun()
			j.mustBeEqual()
			tables, err := j.store.Tables(t.Context())
			if err != nil || j.events("copy_resumed") < 5 || tables[0].RowsReread == 0 {
				t.Errorf("%v; the copy went on %d times, %d rows were read again", err, j.events("copy_resumed"), tables[0].RowsReread)
			}
			for range 10 { // beyond the overlap
				moveRows(t, app, rng)
			}
			j.mustRun()
			j.mustBeEqual()
		})
	}
}

func TestTableThatIsAlteredBetweenTwoChunksIsCopiedAnewOrFollowed(t *testing.T) {
	for name, sql := range map[string][]string{
		"alter type":  {"ALTER TABLE t ALTER v TYPE text USING upper(v)"},
		"truncate":    {"TRUNCATE t", "INSERT INTO t VALUES (1, 'after', 'b'), (500, 'after', 'b')"},
		"vacuum full": {"DELETE FROM t WHERE id % 3 = 0", "VACUUM FULL t"},
		"add column":  {"ALTER TABLE t ADD COLUMN more text DEFAULT 'd'", "UPDATE t SET more = 'e' WHERE id < 300"},
	} {
		for _, age := range []time.Duration{0, time.Nanosecond} {
			t.Run(fmt.Sprintf("%s/age=%v", name, age), func(t *testing.T) {
				j := newJoining(t, testServer.Database(t), testServer.Database(t))
				j.limits.ViewAge = age
				j.before = func(chunk int) {
					if chunk == 4 {
						for _, statement := range sql {
							testdb.Exec(t, j.source, statement)
						}
					}
				}
				j.mustRun()
				j.mustBeEqual()
				want := 2
				if name == "add column" && age == 0 {
					want = 1 // the view is good still, and the column is added behind the copy
				}
				if n := j.events("copying"); n != want {
					t.Errorf("the copy began %d times, want %d", n, want)
				}
			})
		}
	}
}

func TestTransactionThatIsOpenWhileItsTableJoinsIsNotLost(t *testing.T) {
	j := newJoining(t, testServer.Database(t), testServer.Database(t))
	app := connect(t, j.source)
	j.mustRun() // the slot, which would wait as well, is there
	testdb.Exec(t, j.sink, "DROP TABLE t")
	mustExec(t, app, "BEGIN; INSERT INTO t VALUES (1001, 'before it joins', 'b'); UPDATE t SET id = 1002 WHERE id = 7")
	go func() {
		j.awaitWaiting(app.PgConn().PID())
		_, err := app.PgConn().Exec(context.Background(), "INSERT INTO t VALUES (1003, 'while it joins', 'b'); UPDATE t SET id = 7 WHERE id = 8; COMMIT").ReadAll()
		if err != nil {
			t.Error(err)
		}
	}()
	j.mustRun()
	j.mustBeEqual()
}

// A commit that waits for a standby is in the log, and streamed, long before anybody sees it.
func TestCommitThatHangsInSynchronousReplicationWhileItsTableJoinsIsNotLost(t *testing.T) {
	sink := testServer.Database(t)
	server, err := testdb.StartPostgres("synchronous_standby_names=nobody", "synchronous_commit=local")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Remove)
	for name, when := range map[string]int{"at the start": 0, "between two snapshots": 4} {
		t.Run(name, func(t *testing.T) {
			j := newJoining(t, server.Database(t), sink)
			testdb.Exec(t, sink, "DROP TABLE IF EXISTS t; DROP SCHEMA IF EXISTS sluice CASCADE")
			j.limits.ViewAge = time.Nanosecond
			app := connect(t, j.source)
			pid := app.PgConn().PID()
			done := make(chan error, 1)
			hang := func(waits func()) {
				go func() {
					_, err := app.PgConn().Exec(context.Background(), `SET synchronous_commit = on; BEGIN; INSERT INTO t VALUES (1001, 'hangs', 'b');
						UPDATE t SET id = 1002 WHERE id = 399; UPDATE t SET id = 399 WHERE id = 2; COMMIT`).ReadAll()
					done <- err
				}()
				testdb.Eventually(t, func() error {
					if testdb.QueryText(t, j.source, fmt.Sprintf("SELECT wait_event FROM pg_stat_activity WHERE pid = %d", pid)) != "SyncRep" {
						return errors.New("the commit does not hang")
					}
					return nil
				})
				go func() {
					waits()
					testdb.Exec(t, j.source, fmt.Sprintf("SELECT pg_cancel_backend(%d)", pid)) // it ends the waiting
				}()
			}
			if when == 0 {
				hang(func() { // the slot waits already
					testdb.Eventually(t, func() error {
						if testdb.QueryText(t, j.source, "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted") == "0" {
							return errors.New("the slot does not wait")
						}
						return nil
					})
				})
			}
			j.before = func(chunk int) {
				if chunk == when {
					hang(func() { j.awaitWaiting(pid) })
				}
			}
			j.mustRun()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			j.mustBeEqual()
			if got := testdb.QueryText(t, sink, "SELECT v FROM t WHERE id = 1001"); got != "hangs" {
				t.Errorf("the row of the commit that hung is %q", got)
			}
		})
	}
}
