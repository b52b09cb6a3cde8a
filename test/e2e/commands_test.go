package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

// stock is a table that always has so many rows: each transaction deletes some and inserts as many.
const stock = 20_000

func createStock(t *testing.T, source string) {
	t.Helper()
	for _, name := range []string{"stock", "other"} {
		testdb.Exec(t, source, fmt.Sprintf(`CREATE TABLE %s (id bigint PRIMARY KEY, n bigint NOT NULL, note text);
			INSERT INTO %[1]s SELECT i, 0, repeat('x', 50) FROM generate_series(1, %d) i; ANALYZE %[1]s`, name, stock))
	}
}

// changeStock changes both tables until the returned function is called.
func changeStock(t *testing.T, source string) (stop func()) {
	t.Helper()
	ctx, halt := context.WithCancel(context.Background())
	conn, err := pgx.Connect(ctx, source)
	if err != nil {
		halt()
		t.Fatal(err)
	}
	g := new(errgroup.Group)
	g.Go(func() error {
		defer conn.Close(context.Background())
		rng := rand.New(rand.NewPCG(*seedFlag, 9))
		for next := stock; ctx.Err() == nil; {
			sql := "BEGIN;"
			for _, name := range []string{"stock", "other"} {
				sql += fmt.Sprintf("WITH gone AS (DELETE FROM %s WHERE id IN (SELECT min(id) FROM %[1]s WHERE id > %d) RETURNING 1) INSERT INTO %[1]s SELECT %[3]d, 1, 'new' FROM gone;",
					name, rng.IntN(next-stock/2), next+1)
				sql += fmt.Sprintf("UPDATE %s SET n = n + 1 WHERE id BETWEEN %d AND %[2]d + 20;", name, rng.IntN(next))
			}
			next++
			if _, err := conn.PgConn().Exec(context.Background(), sql+"COMMIT").ReadAll(); err != nil {
				return err
			}
			select { // a load, not a flood
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
		return nil
	})
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		halt()
		if err := g.Wait(); err != nil {
			t.Errorf("writer: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// command runs a command of the program to its end, and returns what it prints and its exit code.
func command(t *testing.T, s *process.Sluice, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), catchUpLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Program, args...)
	cmd.Dir = filepath.Dir(s.Config)
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || ctx.Err() != nil {
		t.Fatalf("sluice %v: %v, %v\n%s", args, err, ctx.Err(), out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// must runs a command for the mirror and wants exit code 0 and a text in what it prints.
func must(t *testing.T, s *process.Sluice, text, name string, args ...string) {
	t.Helper()
	out, code := command(t, s, append([]string{name, s.Config}, args...)...)
	if code != 0 || !strings.Contains(out, text) {
		t.Fatalf("sluice %s %v: exit code %d, want 0 and %q:\n%s", name, args, code, text, out)
	}
}

func TestPausedTableStandsStillAloneThroughAKillUntilItIsResumed(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	createStock(t, source)
	s := process.New(t, program, process.Config{Name: "pausing", Source: source, Sink: sink, Mirror: "tables: {include: [stock, other]}"})
	p := s.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	await(t, p, "not copied", func() error { return equalStock(t, pair, "stock", "other") })
	stop := changeStock(t, source)
	must(t, s, "public.stock: paused", "pause", "stock")
	const content = "SELECT count(*), sum(id), sum(n) FROM stock"
	paused := testdb.Query(t, sink, content)
	moving := testdb.QueryText(t, sink, "SELECT sum(n) FROM other")
	await(t, p, "the other table stands still too", func() error {
		if testdb.QueryText(t, sink, "SELECT sum(n) FROM other") == moving {
			return errors.New("nothing has changed")
		}
		return nil
	})
	p.Kill()
	p = s.Run(t)
	moving = testdb.QueryText(t, sink, "SELECT sum(n) FROM other")
	await(t, p, "the other table does not go on", func() error {
		if testdb.QueryText(t, sink, "SELECT sum(n) FROM other") == moving {
			return errors.New("nothing has changed")
		}
		return nil
	})
	if now := testdb.Query(t, sink, content); fmt.Sprint(now) != fmt.Sprint(paused) {
		t.Errorf("a paused table went from %v to %v", paused, now)
	}
	if out, code := command(t, s, "status", s.Config); code != 1 || !strings.Contains(out, "public.stock is paused: paused by ") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}
	stop()
	must(t, s, "public.stock: caught up", "resume", "stock", "--timeout", "1m")
	await(t, p, "not equal", func() error { return equalStock(t, pair, "stock", "other") })
	if text := testdb.QueryText(t, source, "SELECT count(*) FROM pg_stat_replication"); text == "0" {
		t.Error("the mirror does not read")
	}
	if code, err := p.Stop(stopLimit); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	if out, _ := command(t, s, "events", s.Config, "stock"); strings.Count(out, "copying") != 1 {
		t.Errorf("the table was copied again:\n%s", out)
	}
}

func TestLostSlotLeavesTheRestToAResyncOfTheStoppedMirror(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	createStock(t, source)
	s := process.New(t, program, process.Config{Name: "lost", Source: source, Sink: sink, Mirror: "tables: {include: [stock, other]}"})
	s.Once(t, 0, catchUpLimit)
	testdb.Exec(t, source, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database();
		DELETE FROM stock WHERE id % 3 = 0; UPDATE other SET n = 5 WHERE id % 7 = 0`)
	s.Once(t, 1, catchUpLimit)
	out, code := command(t, s, "status", s.Config)
	if code != 1 || !strings.Contains(out, "public.stock is paused: gap: its changes since") || !strings.Contains(out, "does not exist") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}
	must(t, s, "recorded", "resync", "*")
	s.Once(t, 0, catchUpLimit)
	pair := testdb.OpenPair(t, source, sink)
	for _, name := range []string{"stock", "other"} {
		if diff, err := pair.Compare(t.Context(), name, name); err != nil || diff != "" {
			t.Error(name, err, diff)
		}
	}
}

func TestReadersNeverSeeAnEmptyOrHalfTableThroughAResync(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	createStock(t, source)
	s := process.New(t, program, process.Config{
		Name: "again", Source: source, Sink: sink, Mirror: "tables: {include: [stock, other]}\nsnapshot: {chunk_rows: 2000}",
	})
	p := s.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	await(t, p, "not copied", func() error { return equalStock(t, pair, "stock", "other") })
	testdb.Exec(t, sink, "CREATE VIEW reading AS SELECT * FROM stock")
	stop := changeStock(t, source)
	stopReading := readStock(t, sink, "SELECT count(*) FROM stock")
	stopReadingView := readStock(t, sink, "SELECT count(*) FROM reading")
	testdb.Exec(t, sink, "UPDATE stock SET note = 'altered in the sink' WHERE id % 10 = 0; INSERT INTO stock VALUES (-1, 0, 'not at the source'); DELETE FROM stock WHERE id IN (SELECT max(id) FROM stock WHERE id <= "+strconv.Itoa(stock)+")")
	for range 3 {
		must(t, s, "public.stock: copied, "+strconv.Itoa(stock)+" rows", "resync", "stock")
	}
	stop()
	await(t, p, "not equal", func() error { return equalStock(t, pair, "stock", "other") })
	stopReading()
	stopReadingView()
	if code, err := p.Stop(stopLimit); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// readStock wants a query to give the number of rows again and again, until the returned function is called.
func readStock(t *testing.T, sink, query string) (stop func()) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), sink)
	if err != nil {
		t.Fatal(err)
	}
	ctx, halt := context.WithCancel(context.Background())
	g := new(errgroup.Group)
	reads := 0
	g.Go(func() error {
		defer conn.Close(context.Background())
		for ctx.Err() == nil {
			var n int
			if err := conn.QueryRow(context.Background(), query).Scan(&n); err != nil {
				return fmt.Errorf("after %d reads: %w", reads, err)
			}
			if n != stock {
				return fmt.Errorf("read %d: %d rows, want %d", reads, n, stock)
			}
			reads++
		}
		return nil
	})
	stop = func() {
		halt()
		if err := g.Wait(); err != nil {
			t.Errorf("reader: %v", err)
		}
		t.Logf("%d reads", reads)
	}
	t.Cleanup(halt)
	return stop
}

func equalStock(t *testing.T, pair *testdb.Pair, names ...string) error {
	for _, name := range names {
		diff, err := pair.Compare(t.Context(), name, name)
		if err := errors.Join(err, errorOf(diff)); err != nil {
			return err
		}
	}
	return nil
}

func errorOf(diff string) error {
	if diff == "" {
		return nil
	}
	return errors.New(diff)
}

func TestCommandsSayWhatBecomesOfThem(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	createStock(t, source)
	s := process.New(t, program, process.Config{Name: "saying", Source: source, Sink: sink, Mirror: "tables: {include: [stock, other]}"})
	if out, code := command(t, s, "pause", s.Config, "stock"); code != 2 || !strings.Contains(out, "it was never run") {
		t.Errorf("before the first run: exit code %d\n%s", code, out)
	}
	s.Once(t, 0, catchUpLimit)
	if out, code := command(t, s, "resync", s.Config, "public.stok"); code != 2 || !strings.Contains(out, "did you mean public.stock") {
		t.Errorf("an unknown table: exit code %d\n%s", code, out)
	}
	must(t, s, "public.other: recorded: the mirror does not run, its next start will pause it\npublic.stock: recorded", "pause", "*")
	s.Once(t, 1, catchUpLimit)
	must(t, s, "public.other: recorded: the mirror does not run, its next start will resume it", "resume", "public.*")
	p := s.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	await(t, p, "does not stream", func() error {
		if out, code := command(t, s, "status", s.Config, "--json"); code != 0 || strings.Count(out, `"phase": "streaming"`) != 2 {
			return fmt.Errorf("status: exit code %d\n%s", code, out)
		}
		return equalStock(t, pair, "stock", "other")
	})
	must(t, s, "public.stock: paused", "pause", "stock")
	lock, err := pgx.Connect(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close(context.Background())
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE other IN ROW EXCLUSIVE MODE"); err != nil { // its new copy waits for this
		t.Fatal(err)
	}
	if out, code := command(t, s, "resync", s.Config, "other", "--timeout", "1s"); code != 1 || !strings.Contains(out, "it goes on") {
		t.Errorf("a resync that takes longer: exit code %d\n%s", code, out)
	}
	must(t, s, "public.other: accepted", "resync", "other", "--no-wait")
	waiting, err := process.Start(filepath.Dir(s.Config), s.Program, "resync", s.Config, "other")
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Kill()
	await(t, p, "not accepted", func() error {
		if out, _ := command(t, s, "events", s.Config, "other"); strings.Count(out, "asked for by") != 5 {
			return errors.New(out)
		}
		return nil
	})
	if code, err := waiting.Stop(stopLimit); err != nil || code != 130 {
		t.Errorf("after SIGTERM: exit code %d, %v\n%s", code, err, waiting.Log.Tail(5))
	}
	if _, err := lock.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	await(t, p, "the resync did not go on", func() error {
		if out, _ := command(t, s, "events", s.Config, "other"); strings.Count(out, "copied") != 2 { // those asked for while a copy was under way are content with it
			return errors.New(out)
		}
		return nil
	})
	if code, err := p.Stop(stopLimit); err != nil || code != 1 {
		t.Errorf("exit code %d, %v; want 1: a table is paused", code, err)
	}
}

func TestSIGHUPTakesTheSelectionAndRefusesWhatIsNotInOrder(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	createStock(t, source)
	config := process.Config{Name: "reading", Source: source, Sink: sink, Mirror: "tables: {include: [stock]}"}
	s := process.New(t, program, config)
	p := s.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	await(t, p, "not copied", func() error { return equalStock(t, pair, "stock") })
	read := func(mirror, wantLog string) {
		t.Helper()
		config.Mirror = mirror
		if _, err := config.Write(filepath.Dir(s.Config)); err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if !p.Log.Await(wantLog, catchUpLimit) {
			t.Fatalf("the log does not say %q", wantLog)
		}
	}
	read("tables: {include: [", "config file is not in order, so nothing changes")
	read("tables: {include: [stock, other]}\nspool: {max: 5GiB}", `settings changed that need a restart" mirror=reading settings=mirror.spool.max`)
	await(t, p, "the other table does not join", func() error { return equalStock(t, pair, "stock", "other") })
	read("tables: {include: [stock, other]}\nper_table: {public.stock: {destination: {table: elsewhere}}}", "config_changed: ")
	await(t, p, "the status does not say so", func() error {
		if out, code := command(t, s, "status", s.Config); code != 1 || !strings.Contains(out, "public.stock is paused: config_changed: it is mirrored with destination public.stock,") {
			return fmt.Errorf("exit code %d\n%s", code, out)
		}
		return nil
	})
	must(t, s, "public.stock: copied, 20000 rows", "resync", "stock")
	testdb.Exec(t, source, "UPDATE stock SET n = 7")
	await(t, p, "not equal", func() error {
		diff, err := pair.Compare(t.Context(), "stock", "elsewhere")
		return errors.Join(err, errorOf(diff))
	})
	if code, err := p.Stop(stopLimit); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
}

func TestLogIsGivenUpBeyondItsLimitAndEveryTableIsCopiedAgain(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	createStock(t, source)
	s := process.New(t, program, process.Config{
		Name: "limited", Source: source, Sink: sink,
		Mirror: "tables: {include: [stock, other]}\nretained_log: {max: 8MiB, action: drop_slot}",
	})
	p := s.Run(t)
	pair := testdb.OpenPair(t, source, sink)
	await(t, p, "not copied", func() error { return equalStock(t, pair, "stock", "other") })
	lock, err := pgx.Connect(t.Context(), sink)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close(context.Background())
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE stock"); err != nil { // nothing of it is applied now
		t.Fatal(err)
	}
	await(t, p, "the log is not given up", func() error {
		testdb.Exec(t, source, "UPDATE stock SET n = n + 1; DELETE FROM other WHERE id <= 10")
		if out, _ := command(t, s, "events", s.Config); !strings.Contains(out, "the source keeps too much log") {
			return errors.New(out)
		}
		return nil
	})
	if out, _ := command(t, s, "events", s.Config); !strings.Contains(out, "more than retained_log.max, 8388608") {
		t.Errorf("events:\n%s", out)
	}
	if _, err := lock.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	await(t, p, "not equal", func() error { return equalStock(t, pair, "stock", "other") })
	if code, err := p.Stop(stopLimit); err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	testdb.Exec(t, source, "UPDATE stock SET n = n + 1; UPDATE stock SET n = n + 1; UPDATE stock SET n = n + 1")
	if out, code := command(t, s, "status", s.Config); code != 1 || !strings.Contains(out, "more than retained_log.max, 8.0 MiB") {
		t.Errorf("status of a stopped mirror: exit code %d\n%s", code, out)
	}
	if out, code := command(t, s, "check", s.Config); code != 1 || !strings.Contains(out, "more than retained_log.max") {
		t.Errorf("check of a stopped mirror: exit code %d\n%s", code, out)
	}
}
