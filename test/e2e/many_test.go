package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	manyTables      = 500
	sourceConns     = 8 + 4     // those that the settings allow, and the stream and those beside it
	manyMemoryLimit = 150 << 20 // bytes
)

// TestManyTablesStartTogetherWithinBounds starts a mirror of many tables that are written all the while: they share one
// stream, which is opened once, a few connections and little memory.
func TestManyTablesStartTogetherWithinBounds(t *testing.T) {
	for _, sink := range []string{"sqlite", "postgres"} {
		t.Run(sink, func(t *testing.T) {
			source := testServer.Database(t)
			createMany(t, source)
			config := process.Config{Name: "many_" + sink, Source: source, Mirror: "tables: {new_tables: follow}"}
			if sink == "sqlite" {
				config.SinkFile = filepath.Join(t.TempDir(), "many.db")
			} else {
				config.Sink = testServer.Database(t)
			}
			stopWriting := writeMany(t, source)
			watch := watchSource(t, source)
			began := time.Now()
			p := process.New(t, program, config).Run(t)
			await(t, p, "not every table streams", func() error {
				return wantLines(p, "table is streaming", manyTables)
			})
			took := time.Since(began)
			if err := stopWriting(); err != nil {
				t.Error(err)
			}
			want := sumsAtSource(t, source)
			await(t, p, "not equal", func() error {
				got, err := sumsInSink(config)
				if err == nil && !slices.Equal(got, want) {
					err = errors.New("the sums of some tables differ")
				}
				return err
			})
			connections, streams := watch()
			memory, err := p.PeakMemory()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d tables stream after %v; at most %d connections at the source; %d MiB", manyTables, took, connections, memory>>20)
			if connections > sourceConns {
				t.Errorf("%d connections at the source, want at most %d", connections, sourceConns)
			}
			if streams != 1 {
				t.Errorf("the log was sent by %d processes, want 1: the stream was restarted", streams)
			}
			if memory > manyMemoryLimit {
				t.Errorf("peak memory %d MiB, want at most %d", memory>>20, manyMemoryLimit>>20)
			}
			for _, fault := range []string{"level=WARN", "level=ERROR"} {
				if err := wantLines(p, fault, 1); err == nil {
					t.Errorf("not without faults:\n%s", p.Log.Tail(20))
				}
			}
			if code, err := p.Stop(stopLimit); err != nil || code != 0 {
				t.Errorf("after SIGTERM: exit code %d, %v", code, err)
			}
		})
	}
}

func manyName(i int) string { return fmt.Sprintf("many%03d", i) }

func createMany(t *testing.T, source string) {
	t.Helper()
	var b strings.Builder
	for i := range manyTables {
		fmt.Fprintf(&b, "CREATE TABLE %[1]s (id bigint PRIMARY KEY, v bigint); INSERT INTO %[1]s SELECT g, g FROM generate_series(1, 20) g;\n", manyName(i))
	}
	testdb.Exec(t, source, b.String())
}

// writeMany changes random tables until the returned function is called.
func writeMany(t *testing.T, source string) (stop func() error) {
	t.Helper()
	ctx, halt := context.WithCancel(context.Background())
	group := new(errgroup.Group)
	for w := range int64(2) {
		conn, err := pgx.Connect(ctx, source)
		if err != nil {
			halt()
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(*seedFlag, uint64(w)))
		group.Go(func() error {
			defer conn.Close(context.Background())
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for n := int64(0); ; n++ {
				select {
				case <-ctx.Done():
					return nil
				case <-tick.C:
				}
				one, other := manyName(rng.IntN(manyTables)), manyName(rng.IntN(manyTables))
				_, err := conn.Exec(context.Background(), fmt.Sprintf("INSERT INTO %s VALUES (%d, %d)", one, 1000+2*n+w, n))
				if err == nil {
					_, err = conn.Exec(context.Background(), fmt.Sprintf("UPDATE %s SET v = v + 1 WHERE id = %d", other, 1+rng.IntN(20)))
				}
				if err != nil {
					return fmt.Errorf("writer: %w", err)
				}
			}
		})
	}
	stop = func() error { halt(); return group.Wait() }
	t.Cleanup(func() { _ = stop() })
	return stop
}

// watchSource looks at the source until the returned function is called, which tells how many connections the mirror had
// at most, and how many server processes have sent it the log.
func watchSource(t *testing.T, source string) (stop func() (connections, streams int)) {
	t.Helper()
	ctx, halt := context.WithCancel(context.Background())
	conn, err := pgx.Connect(ctx, source)
	if err != nil {
		halt()
		t.Fatal(err)
	}
	most, pids := 0, map[int32]bool{}
	var looks atomic.Int64
	group := new(errgroup.Group)
	group.Go(func() error {
		defer conn.Close(context.Background())
		for {
			var n int
			var pid int32
			err := conn.QueryRow(context.Background(), `SELECT
				(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'sluice%'),
				coalesce((SELECT max(pid) FROM pg_stat_replication JOIN pg_stat_activity USING (pid)
					WHERE datname = current_database() AND pg_stat_replication.state IN ('catchup', 'streaming')), 0)`).Scan(&n, &pid)
			if err != nil {
				return err
			}
			most = max(most, n)
			if pid != 0 {
				pids[pid] = true
			}
			looks.Add(1)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { halt(); _ = group.Wait() })
	return func() (int, int) {
		halt()
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if most == 0 {
			t.Errorf("in %d looks the mirror was never seen at the source", looks.Load())
		}
		return most, len(pids)
	}
}

// wantLines returns an error until so many lines of the log hold a text.
func wantLines(p *process.Process, text string, want int) error {
	n := 0
	for _, line := range p.Log.All() {
		if strings.Contains(line, text) {
			n++
		}
	}
	if n < want {
		return fmt.Errorf("%d lines say %q, want %d", n, text, want)
	}
	return nil
}

func sumSQL(i int) string {
	return fmt.Sprintf("SELECT count(*) || ' rows, ' || coalesce(sum(id), 0) || ', ' || coalesce(sum(v), 0) FROM %s", manyName(i))
}

func sumsAtSource(t *testing.T, source string) []string {
	t.Helper()
	sums, err := sumsInPostgres(source)
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

func sumsInPostgres(url string) (sums []string, err error) {
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	for i := range manyTables {
		var sum string
		if err := conn.QueryRow(context.Background(), sumSQL(i)).Scan(&sum); err != nil {
			return nil, err
		}
		sums = append(sums, sum)
	}
	return sums, nil
}

func sumsInSink(c process.Config) (sums []string, err error) {
	if c.SinkFile == "" {
		return sumsInPostgres(c.Sink)
	}
	conn, err := sqlite.OpenConn(c.SinkFile, sqlite.OpenReadOnly)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for i := range manyTables {
		err := sqlitex.ExecuteTransient(conn, sumSQL(i), &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
			sums = append(sums, s.ColumnText(0))
			return nil
		}})
		if err != nil {
			return nil, err
		}
	}
	return sums, nil
}
