package state

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/schema"
)

var writeFixture = flag.Bool("write-fixture", false, "write the fixture of the present format")

// ownerEnv makes the test program the owner of the state file that it names, until it is killed.
const ownerEnv = "SLUICE_TEST_STATE_OWNER"

func TestMain(m *testing.M) {
	if path := os.Getenv(ownerEnv); path != "" {
		ownUntilKilled(path)
	}
	os.Exit(m.Run())
}

func ownUntilKilled(path string) {
	s, err := Open(context.Background(), path)
	if err == nil {
		err = s.SetMirrorID(context.Background(), "kept")
	}
	fmt.Println("owned", err)
	select {}
}

func sampleTables() []Table {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)
	return []Table{
		{
			ID: "16384", Name: schema.Name{Schema: "public", Table: "Odd.Name"}, Destination: schema.Name{Table: "odd"},
			Phase: "paused", Reason: "config_changed", Remedy: "resync", PausedBy: "engine", Since: at, RetryAt: at.Add(time.Minute),
			Copy: 3, Checkpoint: "7/00000001/00000000/01523A98 4", Fingerprint: "f", RowsEstimated: -1,
			Progress: Progress{
				RowsCopied: 1 << 40, RowsReread: 3, ChangesApplied: 12, BehindSince: at, BehindBytes: -1, LaneBytes: 7, Failures: 2, Quarantined: 4,
				LastError: "sink postgres: größer",
			},
		},
		{ID: "2", Name: schema.Name{Schema: "public", Table: "b"}, Phase: "streaming"},
	}
}

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fill(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	err := errors.Join(
		s.SetMirrorID(ctx, "m-1"),
		s.SaveTables(ctx, sampleTables()...),
		s.SaveFloor(ctx, "floor 1", map[schema.ID]string{"2": "cp 2"}),
		s.SaveSegments(ctx, []Segment{{Table: "9", Number: 1, Size: 1}}),
		s.SaveSegments(ctx, sampleSegments),
		s.SaveProgress(ctx, Run{Saved: at.Add(time.Hour), ClockAhead: -time.Second}, map[schema.ID]Progress{"2": {RowsCopied: 5}}),
		s.AddEvent(ctx, Event{At: at, Kind: "started", Text: "version 1"}),
		s.AddEvent(ctx, Event{At: at, Table: schema.Name{Schema: "public", Table: "b"}, Kind: "phase", Text: "streaming"}),
		addCommands(ctx, s, sampleCommands()...),
		s.SaveCommand(ctx, sampleCommands()[0]),
	)
	if err != nil {
		t.Fatal(err)
	}
}

func addCommands(ctx context.Context, s *Store, commands ...Command) error {
	_, err := s.AddCommands(ctx, commands...)
	return err
}

// sampleCommands are one that is accepted, and one that nobody has seen.
func sampleCommands() []Command {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	b := schema.Name{Schema: "public", Table: "b"}
	return []Command{
		{Number: 1, Kind: Resync, Table: "2", Name: b, AskedAt: at, AskedBy: "ann@desk, process 7", AcceptedAt: at.Add(time.Second), Copy: 3},
		{Number: 2, Kind: Pause, Table: "2", Name: b, AskedAt: at, AskedBy: "ann@desk, process 8"},
	}
}

var sampleSegments = []Segment{{Table: "1", Number: 7, Size: 64 << 20}, {Table: "1", Number: 8, Size: 12}, {Table: "2", Number: 1, Size: 9}}

// content is everything that a Store holds, in one comparable value.
type content struct {
	ID, Floor string
	Run       Run
	Tables    []Table
	Segments  []Segment
	Events    []Event
	Commands  []Command
}

func read(t *testing.T, s *Store) content {
	t.Helper()
	ctx := t.Context()
	id, err1 := s.MirrorID(ctx)
	floor, err2 := s.Floor(ctx)
	run, err3 := s.Run(ctx)
	tables, err4 := s.Tables(ctx)
	events, err5 := s.Events(ctx, maxEvents)
	segments, err6 := s.Segments(ctx)
	commands, err7 := s.OpenCommands(ctx)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		t.Fatal(err)
	}
	return content{id, floor, run, tables, segments, events, commands}
}

func filled() content {
	tables := sampleTables()
	tables[1].Checkpoint, tables[1].RowsCopied = "cp 2", 5
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	run := Run{Saved: at.Add(time.Hour), ClockAhead: -time.Second}
	return content{"m-1", "floor 1", run, tables, sampleSegments, []Event{
		{At: at, Kind: "started", Text: "version 1"},
		{At: at, Table: schema.Name{Schema: "public", Table: "b"}, Kind: "phase", Text: "streaming"},
	}, sampleCommands()}
}

func TestEverythingSavedComesBackAfterClosing(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".sluice", "shop", "state.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(content{}, read(t, s)); diff != "" {
		t.Errorf("a new state is not empty:\n%s", diff)
	}
	fill(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(filled(), read(t, open(t, path))); diff != "" {
		t.Errorf("-saved +read:\n%s", diff)
	}
}

func TestSaveTablesReplacesAndKeepsOthers(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	fill(t, s)
	changed := filled().Tables[0]
	changed.Phase, changed.Reason, changed.Copy = "copying", "", 4
	if err := s.SaveTables(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	want := filled().Tables
	want[0] = changed
	if diff := cmp.Diff(want, read(t, s).Tables); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSaveFloorIsAllOrNothing(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	fill(t, s)
	if err := s.SaveFloor(t.Context(), "floor 2", map[schema.ID]string{"2": "cp 3", "404": "x"}); err == nil {
		t.Error("a checkpoint of an unknown table was accepted")
	}
	if diff := cmp.Diff(filled(), read(t, s)); diff != "" {
		t.Errorf("a refused save left something behind:\n%s", diff)
	}
}

func TestEventsAreBounded(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	// The numbers of events are what bounds them; raising the last one spares ten thousand commits.
	if err := s.AddEvent(t.Context(), Event{Kind: "first"}); err != nil {
		t.Fatal(err)
	}
	err := s.write(t.Context(), "test", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, `INSERT INTO event SELECT value, 0, '', '', 'filler', '' FROM
			(WITH RECURSIVE n(value) AS (SELECT 2 UNION ALL SELECT value+1 FROM n WHERE value < 10000) SELECT value FROM n)`, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddEvent(t.Context(), Event{Kind: "last"}); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), 2*maxEvents)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != maxEvents || events[0].Kind != "filler" || events[len(events)-1].Kind != "last" {
		t.Errorf("%d events, first %q, last %q", len(events), events[0].Kind, events[len(events)-1].Kind)
	}
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".sluice")
	path := filepath.Join(dir, "state.db")
	fill(t, open(t, path))
	for file, want := range map[string]fs.FileMode{dir: 0o700, path: 0o600, path + "-wal": 0o600, path + ".lock": 0o600} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v; want %o", file, info.Mode(), err, want)
		}
	}
}

func TestSecondOwnerIsRefusedAndToldWhoItIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	open(t, path)
	_, err := Open(t.Context(), path)
	locked, ok := errors.AsType[*LockedError](err)
	if !ok || locked.PID != os.Getpid() {
		t.Errorf("error = %#v, want a LockedError with PID %d", err, os.Getpid())
	}
}

func TestKilledOwnerLeavesLockFreeAndItsCommitsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "owned <nil>\n" {
		t.Fatalf("owner said %q, %v", line, err)
	}
	_, err = Open(t.Context(), path)
	if locked, ok := errors.AsType[*LockedError](err); !ok || locked.PID != cmd.Process.Pid {
		t.Errorf("beside a living owner: %v, want its pid %d", err, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its status is that of a killed process
	if id, err := open(t, path).MirrorID(t.Context()); err != nil || id != "kept" {
		t.Errorf("after the kill: id %q, %v", id, err)
	}
}

func TestReaderSeesCommitsOfRunningOwnerAndCreatesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.db")
	if _, err := OpenRead(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no state: %v, want fs.ErrNotExist", err)
	}
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s)
	readAll := func(when string) {
		before := names(t, dir)
		r, err := OpenRead(t.Context(), path)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if diff := cmp.Diff(filled(), read(t, r)); diff != "" {
			t.Errorf("%s: -saved +read:\n%s", when, diff)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if diff := cmp.Diff(before, names(t, dir)); diff != "" {
			t.Errorf("%s: files changed:\n%s", when, diff)
		}
	}
	readAll("beside the owner")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	readAll("after the owner")
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestManyCallersAtOnce(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			id := schema.ID(strconv.Itoa(i))
			if err := s.SaveTables(t.Context(), Table{ID: id}); err != nil {
				t.Error(err)
			}
			if err := s.SaveFloor(t.Context(), "f", map[schema.ID]string{id: "c" + string(id)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, table := range read(t, s).Tables {
		if table.Checkpoint != "c"+string(table.ID) {
			t.Errorf("%+v", table)
		}
	}
}

func TestEndedContextIsToldApart(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.SetMirrorID(ctx, "late"); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v", err)
	}
	if id, err := s.MirrorID(t.Context()); id != "" || err != nil {
		t.Errorf("id = %q, %v", id, err)
	}
}

func TestNewerFormatIsRefusedAndLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	alter(t, path, "PRAGMA user_version = 2; DROP TABLE mirror; DROP TABLE mirrored_table")
	for name, openIt := range map[string]func(context.Context, string) (*Store, error){"Open": Open, "OpenRead": OpenRead} {
		if _, err := openIt(t.Context(), path); err == nil || !strings.Contains(err.Error(), "format 2") {
			t.Errorf("%s: error = %v", name, err)
		}
	}
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	alter(t, path, "PRAGMA application_id = 1")
	if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("error = %v", err)
	}
}

// alter makes a state file and changes it behind the store's back.
func alter(t *testing.T, path, script string) {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sqlitex.ExecuteScript(conn, script, nil), conn.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDamageIsFoundNotMisread(t *testing.T) {
	damages := map[string]func(b []byte) []byte{
		"emptied":            func([]byte) []byte { return nil },
		"cut to half a page": func(b []byte) []byte { return b[:2000] },
		"cut by a page":      func(b []byte) []byte { return b[:len(b)-4096] },
		"header overwritten": func(b []byte) []byte { copy(b, "garbage"); return b },
		"page overwritten": func(b []byte) []byte {
			copy(b[4096:8192], strings.Repeat("x", 4096))
			return b
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s.db")
			s, err := Open(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			fill(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(whole), 0o600); err != nil {
				t.Fatal(err)
			}
			for name, openIt := range map[string]func(context.Context, string) (*Store, error){"Open": Open, "OpenRead": OpenRead} {
				_, err := openIt(t.Context(), path)
				if e, ok := errors.AsType[*Error](err); !ok || e.Hint != damagedHint || e.Path != path {
					t.Errorf("%s: error = %v", name, err)
				}
			}
		})
	}
}

func TestFormat1StaysReadable(t *testing.T) {
	fixture := filepath.Join("testdata", "format1.db")
	if *writeFixture {
		path := filepath.Join(t.TempDir(), "s.db")
		s, err := Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, s)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		copyFile(t, path, fixture)
	}
	path := filepath.Join(t.TempDir(), "s.db")
	copyFile(t, fixture, path)
	if diff := cmp.Diff(filled(), read(t, open(t, path))); diff != "" {
		t.Errorf("-saved +read:\n%s", diff)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
