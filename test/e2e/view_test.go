package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const screenLimit = 30 * time.Second

// onTerminal runs the mirror on a terminal.
func onTerminal(t *testing.T, s *process.Sluice, width, height int) (*process.Process, *process.Terminal) {
	t.Helper()
	p, terminal, err := process.StartOnTerminal(filepath.Dir(s.Config), width, height, s.Program, "run", s.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			lines, err := terminal.Lines()
			t.Logf("the screen, %v:\n%s\n%s", err, strings.Join(terminal.History(), "\n"), strings.Join(lines, "\n"))
		}
	})
	return p, terminal
}

func TestTerminalShowsTheTablesWarningsAndTheEnd(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, `CREATE TABLE items (id int PRIMARY KEY, v int); CREATE TABLE "odd`+"\x1b[31m\u202e"+`大" (id int PRIMARY KEY);
		CREATE TABLE narrow (id int PRIMARY KEY, v int); INSERT INTO items SELECT i, i FROM generate_series(1, 1000) i; ANALYZE`)
	p, terminal := onTerminal(t, process.New(t, program, process.Config{Name: "seen", Source: source, Sink: sink, Mirror: "{}"}), 100, 30)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(terminal.Await(screenLimit, "seen running", "3 tables: 3 streaming", "source reachable", "1,000 rows copied", `odd\x1b[31m\u202e大`))

	// A fault is told above the picture, in one piece, and in it.
	testdb.Exec(t, sink, "ALTER TABLE narrow ADD CHECK (v < 100)")
	testdb.Exec(t, source, "INSERT INTO narrow VALUES (1, 200)")
	must(terminal.Await(screenLimit, "1 paused", `level=ERROR msg="table is paused"`))
	once(t, terminal, "seen running")
	testdb.Exec(t, source, "INSERT INTO items VALUES (2000, 1)")
	must(terminal.Await(screenLimit, "1 changes applied"))

	// Another size is another picture, which fits.
	must(terminal.Resize(40, 14))
	must(terminal.Await(screenLimit, "public.narrow       paused"))
	lines, err := terminal.Lines()
	must(err)
	if len(lines) >= 14 || !strings.HasPrefix(lines[0], "seen running") {
		t.Errorf("%d lines on a terminal of 14:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	must(terminal.Resize(100, 30))
	must(terminal.Await(screenLimit, "log kept at the source"))

	// While the end waits for the sink the picture says so.
	holder, err := pgx.Connect(t.Context(), sink)
	must(err)
	defer holder.Close(context.WithoutCancel(t.Context()))
	_, err = holder.Exec(t.Context(), "BEGIN; LOCK TABLE items IN EXCLUSIVE MODE")
	must(err)
	testdb.Exec(t, source, "INSERT INTO items VALUES (2001, 1)")
	testdb.Eventually(t, func() error { return waitsForLock(sink) })
	must(terminal.Type("\x03"))
	must(terminal.Await(screenLimit, "seen is stopping", "sluice: stopping when what was begun is done"))
	_, err = holder.Exec(t.Context(), "ROLLBACK")
	must(err)
	if code, err := p.Wait(stopLimit); err != nil || code != exitNotAll {
		t.Fatalf("exit code %d, %v", code, err)
	}
	must(terminal.Await(screenLimit, "TABLE", "DESTINATION", "public.narrow is paused"))
	lines, err = terminal.Lines()
	must(err)
	if text := strings.Join(lines, "\n"); strings.Contains(text, "seen is") || strings.Contains(text, "seen running") {
		t.Errorf("the picture is still there:\n%s", text)
	}
	if got := testdb.QueryText(t, sink, "SELECT count(*) FROM items WHERE id >= 2000"); got != "2" {
		t.Errorf("%s changes of 2 are in the sink after the end", got)
	}
}

// once fails the test if a text is not there exactly once, in all that the terminal has ever shown.
func once(t *testing.T, terminal *process.Terminal, text string) {
	t.Helper()
	lines, err := terminal.Lines()
	if err != nil {
		t.Fatal(err)
	}
	all := append(terminal.History(), lines...)
	n := len(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return !strings.Contains(s, text) }))
	if n != 1 {
		t.Errorf("%q is there %d times:\n%s", text, n, strings.Join(all, "\n"))
	}
}

// waitsForLock returns nil if somebody waits for a lock of the database.
func waitsForLock(url string) error {
	rows, err := testdb.TryQuery(url, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
	if err == nil && len(rows) == 0 {
		return context.DeadlineExceeded
	}
	return err
}

func TestOtherwiseThereAreLogLines(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, "CREATE TABLE items (id int PRIMARY KEY)")
	s := process.New(t, program, process.Config{Name: "lines", Source: source, Sink: sink, Mirror: "{}"})
	p, terminal, err := process.StartOnTerminal(filepath.Dir(s.Config), 200, 50, s.Program, "run", "--once", "--log-format", "json", s.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if err := terminal.Await(screenLimit, `"msg":"table is streaming"`, "DESTINATION"); err != nil {
		t.Fatal(err)
	}
	if lines, err := terminal.Lines(); err != nil || strings.Contains(strings.Join(lines, "\n"), "running, up") {
		t.Errorf("a picture beside a log: %v\n%s", err, strings.Join(lines, "\n"))
	}
	p2 := s.Once(t, 0, screenLimit)
	if !p2.Log.Await("table is streaming", 0) || strings.Contains(p2.Log.Tail(100), "\x1b") {
		t.Errorf("log:\n%s", p2.Log.Tail(100))
	}
}
