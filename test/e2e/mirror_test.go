// Package e2e mirrors a schema of tables of every kind under load and compares the two sides by value.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

var (
	testServer *testdb.Postgres
	program    string // path of the built command
	seedFlag   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of all random choices")
)

const (
	rows         = 600                    // rows a table has about
	writers      = 4                      // connections
	pace         = 15 * time.Millisecond  // between two transactions of a connection
	catchUpLimit = 90 * time.Second       // from the last change until both sides are equal
	stopLimit    = 30 * time.Second       // from SIGTERM to the end of the process
	exitNotAll   = 1                      // it ran, but a selected table is refused
	lookInterval = 200 * time.Millisecond // between two comparisons
)

func TestMain(m *testing.M) { process.Main(m, &program, &testServer) }

func TestEveryKindOfTableIsEqualUnderLoad(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	t.Logf("to repeat: go test ./test/e2e -seed %d", *seedFlag)
	createSource(t, source)
	sluice := process.New(t, program, process.Config{Name: "kinds", Source: source, Sink: sink, Mirror: "snapshot: {chunk_rows: 200}"})
	checkPlan(t, sluice)
	stopWriters := startWriters(t, source)
	p := sluice.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	await(t, p, "not every table was copied", func() error { return allThere(t.Context(), pair) })
	select { // time for changes to stream, not for something to happen
	case <-time.After(6 * time.Second):
	case <-p.Exited():
	}
	if err := stopWriters(); err != nil {
		t.Error(err)
	}
	await(t, p, "not equal", func() error { return compare(t.Context(), pair) })
	if code, err := p.Stop(stopLimit); err != nil || code != exitNotAll {
		t.Errorf("after SIGTERM: exit code %d, %v; want %d: tables are refused", code, err, exitNotAll)
	}
	if err := compare(t.Context(), pair); err != nil {
		t.Errorf("after the end: %v", err)
	}
	checkTypes(t, source, sink)
	checkRefused(t, sink)
}

func createSource(t *testing.T, source string) {
	t.Helper()
	testdb.Exec(t, source, userTypes)
	for i := range kinds {
		testdb.Exec(t, source, kinds[i].create)
		if !kinds[i].empty {
			testdb.Exec(t, source, kinds[i].insert(1, rows))
		}
	}
}

// checkPlan wants each table in the plan, and of each refused one the reason.
func checkPlan(t *testing.T, sluice *process.Sluice) {
	t.Helper()
	out, err := exec.Command(sluice.Program, "plan", sluice.Config).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitNotAll {
		t.Errorf("sluice plan: %v; want exit code %d: tables are refused", err, exitNotAll)
	}
	for i := range kinds {
		if k := &kinds[i]; k.refused != "" && !strings.Contains(string(out), k.refused) {
			t.Errorf("the plan does not say %q of table %s:\n%s", k.refused, k.name, out)
		}
	}
}

// startWriters changes all tables from some connections until the returned function is called.
func startWriters(t *testing.T, source string) (stop func() error) {
	t.Helper()
	ctx, halt := context.WithCancel(context.Background())
	group := new(errgroup.Group)
	for i := range writers {
		conn, err := pgx.Connect(ctx, source)
		if err != nil {
			halt()
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(*seedFlag, uint64(i)))
		group.Go(func() error { return write(ctx, conn, rng) })
	}
	stop = func() error { halt(); return group.Wait() }
	t.Cleanup(func() { _ = stop() })
	return stop
}

// write runs transactions of a few statements until ctx ends; no statement is cancelled.
func write(ctx context.Context, conn *pgx.Conn, rng *rand.Rand) error {
	defer conn.Close(context.Background())
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		statements := []string{"BEGIN"}
		for range 1 + rng.IntN(5) {
			statements = append(statements, statement(rng))
		}
		end := "COMMIT"
		if rng.IntN(10) == 0 {
			end = "ROLLBACK"
		}
		_, err := conn.PgConn().Exec(context.Background(), strings.Join(append(statements, end), ";\n")).ReadAll()
		if e, ok := errors.AsType[*pgconn.PgError](err); ok && (e.Code == "40P01" || e.Code == "40001" || e.Code == "23505") {
			_, err = conn.Exec(context.Background(), "ROLLBACK") // the writers' own doing: a deadlock, one key made twice
		}
		if err != nil {
			return fmt.Errorf("writer: %w, in %s", err, strings.Join(statements, ";\n"))
		}
	}
}

func statement(rng *rand.Rand) string {
	k := &kinds[rng.IntN(len(kinds))]
	row := 1 + rng.IntN(rows*5/4)
	switch n := rng.IntN(10); {
	case k.empty:
		return "SELECT"
	case n < 4:
		return k.insert(row, row+rng.IntN(3))
	case n < 8:
		return k.update(row, rng.IntN(len(k.columns)), 1+rng.IntN(rows*5/4))
	default:
		return k.delete(row)
	}
}

// await waits for a condition, at most catchUpLimit, and no longer than the process lives.
func await(t *testing.T, p *process.Process, what string, condition func() error) {
	t.Helper()
	deadline := time.After(catchUpLimit)
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-p.Exited():
			t.Fatalf("the process ended by itself, exit code %d: %s: %v", p.ExitCode(), what, err)
		case <-deadline:
			t.Fatalf("%s within %v: %v", what, catchUpLimit, err)
		case <-tick.C:
		}
	}
}

// allThere returns an error until the sink has all tables.
func allThere(ctx context.Context, pair *testdb.Pair) error {
	return each(func(k *kind) error {
		_, err := pair.Compare(ctx, k.name, k.name)
		return err
	})
}

func compare(ctx context.Context, pair *testdb.Pair) error {
	return each(func(k *kind) error {
		diff, err := pair.Compare(ctx, k.name, k.name)
		if err == nil && diff != "" {
			err = errors.New(diff)
		}
		return err
	})
}

func each(f func(*kind) error) error {
	var faults []error
	for i := range kinds {
		if kinds[i].refused != "" {
			continue
		}
		if err := f(&kinds[i]); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// sinkTypes are the types that the sink has in place of the source's: domains become their base type, and a range that
// a user made becomes text.
var sinkTypes = map[string]string{
	"positive": "integer", "positive[]": "integer[]", "label": "character varying(20)", "feeling": "mood", "spans": "text",
}

// checkTypes wants the source's types in the sink, and generated columns generated.
func checkTypes(t *testing.T, source, sink string) {
	t.Helper()
	const query = `SELECT attname, format_type(atttypid, atttypmod), attgenerated FROM pg_attribute
		WHERE attrelid = '%s'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname`
	for i := range kinds {
		k := &kinds[i]
		if k.refused != "" {
			continue
		}
		text := fmt.Sprintf(query, strings.ReplaceAll(k.name, "'", "''"))
		want, got := testdb.Query(t, source, text), testdb.Query(t, sink, text)
		for _, column := range want {
			if other, ok := sinkTypes[column[1]]; ok {
				column[1] = other
			}
		}
		if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Errorf("columns of %s in the sink:\n%v\nwant:\n%v", k.name, got, want)
		}
	}
}

func checkRefused(t *testing.T, sink string) {
	t.Helper()
	for i := range kinds {
		if k := &kinds[i]; k.refused != "" && testdb.QueryText(t, sink, "SELECT to_regclass('"+k.name+"') IS NULL") != "t" {
			t.Errorf("table %s is refused, but is in the sink", k.name)
		}
	}
}
