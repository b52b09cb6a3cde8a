package sluice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// operated is a mirror of two tables, one of which cannot be mirrored.
type operated struct {
	*Mirror
	t            *testing.T
	source, sink string
	log          *slog.Logger
}

func newOperated(t *testing.T) *operated {
	o := &operated{t: t, source: server.Database(t), sink: server.Database(t), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	testdb.Exec(t, o.source, `
		CREATE TABLE items (id bigint PRIMARY KEY, name text); CREATE TABLE bare (id int); CREATE TABLE left_out (id int PRIMARY KEY);
		INSERT INTO items SELECT i, 'item '||i FROM generate_series(1, 1000) i; ANALYZE`)
	o.Mirror = load(t, o.source, o.sink, "mirror: {tables: {exclude: [left_out]}}\n")
	return o
}

func (o *operated) once() *mirror.Summary {
	o.t.Helper()
	s, err := o.Run(o.t.Context(), RunOptions{Once: true, Log: o.log})
	if err != nil {
		o.t.Fatal(err)
	}
	return s
}

// follow runs the mirror until the test calls stop.
func (o *operated) follow() (stop func()) { return o.followReloading(nil) }

// followReloading is follow; the config file is read again at each value of reloads.
func (o *operated) followReloading(reloads <-chan struct{}) (stop func()) {
	ctx, cancel := context.WithCancel(o.t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := o.Run(ctx, RunOptions{Log: o.log, Reload: reloads})
		done <- err
	}()
	return func() {
		o.t.Helper()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				o.t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			o.t.Fatal("the mirror did not stop")
		}
	}
}

func (o *operated) status() *mirror.Status {
	o.t.Helper()
	s, err := o.Status(o.t.Context(), o.log)
	if err != nil {
		o.t.Fatal(err)
	}
	return s
}

// items is the status of the table items.
func items(s *mirror.Status) mirror.TableStatus {
	for _, t := range s.Tables {
		if t.Name.Table == "items" {
			return t
		}
	}
	return mirror.TableStatus{}
}

// wrote reports whether anything lies beside the config file.
func (o *operated) wrote() bool {
	files, err := os.ReadDir(o.file.Dir)
	if err != nil {
		o.t.Fatal(err)
	}
	return len(files) != 1
}

func TestLookingAtAMirrorWritesNothing(t *testing.T) {
	o := newOperated(t)
	made := "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), (SELECT count(*) FROM pg_namespace WHERE nspname = 'sluice')"
	s := o.status()
	if s.Running || !s.Since.IsZero() || len(s.Tables) != 0 || s.Source.State != "reachable" || s.Sink.State != "reachable" || !s.InOrder() {
		t.Errorf("status of a mirror that was never run: %+v", s)
	}
	c, err := o.Check(t.Context(), o.log)
	if err != nil || c.Err() != nil || c.Faults() != 1 {
		t.Fatal(err, c)
	}
	for _, f := range c.Findings {
		if !f.Note && (f.Side != "source" || f.Table != "public.bare" || !strings.HasPrefix(f.Fix, `ALTER TABLE "public"."bare" ADD PRIMARY KEY`)) {
			t.Errorf("finding %+v", f)
		}
	}
	found, err := o.Discover(t.Context(), o.log)
	if err != nil || len(found) != 3 {
		t.Fatal(err, found)
	}
	for i, want := range []string{"public.bare true 0 0 [] true", "public.items true 1000 true [id] false", "public.left_out false 0 0 [id] false"} {
		f := found[i]
		got := fmt.Sprint(f.Table, f.Selected, f.Rows, " ", f.Bytes, f.Key, f.Refused != "")
		if f.Rows > 0 {
			got = fmt.Sprint(f.Table, f.Selected, f.Rows, f.Bytes > f.Rows, f.Key, f.Refused != "")
		}
		if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	if events, err := o.Events(t.Context(), nil, 10); err != nil || len(events) != 0 {
		t.Error(err, events)
	}
	for _, url := range []string{o.source, o.sink} {
		if got := testdb.QueryText(t, url, made); got != "0|0|0" {
			t.Errorf("made in the database: %s", got)
		}
	}
	if o.wrote() {
		t.Error("something was written beside the config file")
	}
}

func TestStatusTellsOfARunningMirrorAndOfAStoppedOne(t *testing.T) {
	o := newOperated(t)
	stop := o.follow()
	testdb.Eventually(t, func() error {
		if s := o.status(); items(s).Phase != "streaming" || s.RetainedBytes < 0 {
			return fmt.Errorf("status: %+v", s)
		}
		return nil
	})
	s := o.status()
	if !s.Running || s.PID != os.Getpid() || s.Since.IsZero() || s.Position == "" || s.InOrder() || s.Kept != `replication slot "sluice_shop"` {
		t.Errorf("status: %+v", s)
	}
	if bare := s.Tables[0]; bare.Reason != "it has no primary key" || !strings.HasPrefix(bare.Remedy, "ALTER TABLE") {
		t.Errorf("refused without a remedy: %+v", bare)
	}
	if _, err := o.Teardown(t.Context(), o.log); !isLocked(err) {
		t.Errorf("teardown beside a running mirror: %v", err)
	}
	holder, err := pgx.Connect(t.Context(), o.sink)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.WithoutCancel(t.Context()))
	if _, err := holder.Exec(t.Context(), "BEGIN; LOCK TABLE items IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, o.source, "INSERT INTO items SELECT i, 'new' FROM generate_series(1001, 1100) i")
	testdb.Eventually(t, func() error {
		if i, s := items(o.status()), o.status(); i.Lag < time.Second || i.LagBytes < 1000 || i.LaneBytes == 0 || s.Lag < i.Lag {
			return fmt.Errorf("changes wait for a lock in the sink, and the status is %+v", i)
		}
		return nil
	})
	if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() error {
		if i := items(o.status()); i.Lag != 0 || i.LagBytes != 0 || i.LaneBytes != 0 || i.ChangesApplied != 100 || i.RowsCopied != 1000 {
			return fmt.Errorf("all is applied, and the status is %+v", i)
		}
		return nil
	})
	stop()
	s = o.status()
	if i := items(s); s.Running || s.PID != 0 || i.ChangesApplied != 100 || i.RowsCopied != 1000 || i.Phase != "streaming" {
		t.Errorf("status of a stopped mirror: %+v", s)
	}
	events, err := o.Events(t.Context(), func(n schema.Name) bool { return n.Table == "items" }, 2)
	if err != nil || len(events) != 2 || events[0].Kind != "copied" || events[1].Kind != "streaming" {
		t.Errorf("events: %v, %v", events, err)
	}
}

func isLocked(err error) bool {
	_, ok := errors.AsType[*state.LockedError](err)
	return ok
}

func TestOnceNamesTheSlotItLeavesAndTeardownRemovesIt(t *testing.T) {
	o := newOperated(t)
	s := o.once()
	if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], `replication slot "sluice_shop" stays`) || !strings.HasSuffix(s.Notes[0], "sluice teardown "+o.file.Path) {
		t.Errorf("notes: %q", s.Notes)
	}
	if c, err := o.Check(t.Context(), o.log); err != nil || c.Err() != nil || c.Faults() != 1 {
		t.Errorf("check of a mirror that was run: %v, %+v", err, c)
	}
	stay, err := o.Teardown(t.Context(), o.log)
	if err != nil || len(stay) != 1 || stay[0].Table != "items" {
		t.Fatal(stay, err)
	}
	left := "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), (SELECT count(*) FROM pg_namespace WHERE nspname = 'sluice'), (SELECT count(*) FROM items)"
	for _, url := range []string{o.source, o.sink} {
		if got := testdb.QueryText(t, url, left); got != "0|0|0|1000" {
			t.Errorf("left in the database: %s", got)
		}
	}
	if o.wrote() {
		t.Error("the state is still there")
	}
	if stay, err := o.Teardown(t.Context(), o.log); err != nil || len(stay) != 0 || o.wrote() {
		t.Errorf("a second time: %v, %v", stay, err)
	}
}

func TestTeardownGoesOnWhereItWasCutOffAndWithoutTheState(t *testing.T) {
	o := newOperated(t)
	o.once()
	testdb.Eventually(t, func() error { // the server's process for it may outlive the run by a moment
		_, err := testdb.TryQuery(o.source, "SELECT pg_drop_replication_slot('sluice_shop')")
		return err
	})
	if err := os.RemoveAll(filepath.Join(o.file.Dir, ".sluice")); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Teardown(t.Context(), o.log); err != nil {
		t.Fatal(err)
	}
	if got := testdb.QueryText(t, o.source, "SELECT count(*) FROM pg_publication"); got != "0" {
		t.Errorf("%s publications are left", got)
	}
	if got := testdb.QueryText(t, o.sink, "SELECT count(*) FROM pg_namespace WHERE nspname = 'sluice'"); got != "0" {
		t.Error("the schema sluice is left")
	}
}

func TestTeardownThatFailsKeepsTheState(t *testing.T) {
	o := newOperated(t)
	o.once()
	testdb.Exec(t, o.source, "COMMENT ON PUBLICATION sluice_shop IS 'mine now'; COMMENT ON PUBLICATION sluice_shop_insert IS 'mine now'")
	if _, err := o.Teardown(t.Context(), o.log); err == nil {
		t.Fatal("a slot that nothing shows to be ours was dropped")
	}
	if s := items(o.status()); s.Phase != "streaming" {
		t.Errorf("the state is gone: %+v", s)
	}
	if got := testdb.QueryText(t, o.sink, "SELECT count(*) FROM sluice.mirror"); got != "1" {
		t.Error("the sink has forgotten the mirror")
	}
}

func TestTeardownTouchesNothingOfAnotherMirror(t *testing.T) {
	o := newOperated(t)
	o.once()
	other := load(t, o.source, server.Database(t), "mirror: {}\n") // of the same name, into another sink
	if _, err := other.Teardown(t.Context(), o.log); err == nil || !strings.Contains(err.Error(), "was not made by this mirror") {
		t.Errorf("teardown: %v", err)
	}
	if s := o.once(); len(s.Tables) != 2 || s.Tables[1].Phase != "streaming" || s.Tables[1].RowsCopied != 0 {
		t.Errorf("the mirror was disturbed: %+v", s)
	}
}

// inFile runs a statement on a SQLite file and returns the first column of its rows.
func inFile(t *testing.T, path, sql string) string {
	t.Helper()
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var rows []string
	if err := sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		rows = append(rows, s.ColumnText(0))
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(rows, " ")
}

func TestCheckAndTeardownOfAMirrorIntoASQLiteFile(t *testing.T) {
	o := &operated{t: t, source: server.Database(t), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	testdb.Exec(t, o.source, "CREATE TABLE items (id bigint PRIMARY KEY, name text); CREATE TABLE taken (id int PRIMARY KEY); INSERT INTO items VALUES (1, 'one')")
	o.Mirror = loadText(t, "source: {type: postgres, url: \""+o.source+"\"}\nsink: {type: sqlite, path: shop.db}\nmirror: {}\n")
	path := filepath.Join(o.file.Dir, "shop.db")
	faults := func(want string) {
		t.Helper()
		c, err := o.Check(t.Context(), o.log)
		if err != nil || c.Err() != nil {
			t.Fatal(err, c.Err())
		}
		var got []string
		for _, f := range c.Findings {
			if !f.Note {
				got = append(got, f.Side+" "+f.Table+" "+f.What)
			}
		}
		if list := strings.Join(got, "\n"); !strings.HasPrefix(list, want) || len(got) != 1 && want != "" || want == "" && list != "" {
			t.Errorf("faults %q, want %q", list, want)
		}
	}
	faults("")
	if o.wrote() {
		t.Fatal("check has made the file")
	}
	o.once()
	faults("")
	if _, err := o.Teardown(t.Context(), o.log); err != nil {
		t.Fatal(err)
	}
	if got := inFile(t, path, "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"); got != "items taken" {
		t.Errorf("left in the file: %s", got)
	}
	if got := testdb.QueryText(t, o.source, "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"); got != "0|0" {
		t.Errorf("left at the source: %s", got)
	}
	if got := inFile(t, path, "SELECT name FROM items"); got != "one" {
		t.Errorf("the destination holds %q", got)
	}
	inFile(t, path, "DROP TABLE items")
	inFile(t, path, "INSERT INTO taken VALUES (1)")
	faults("sink public.taken sink sqlite: plan")
	if err := os.WriteFile(path, []byte(strings.Repeat("no database at all ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := o.Check(t.Context(), o.log)
	if err != nil || c.SinkErr == nil || c.Faults() != 1 || !strings.Contains(c.Findings[len(c.Findings)-1].What, "is no SQLite database") {
		t.Errorf("check of a file that is no database: %v, %+v", err, c)
	}
}

func TestResyncOfAHistoryKeepsItBehindAGap(t *testing.T) {
	o := &operated{t: t, source: server.Database(t), sink: server.Database(t), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	testdb.Exec(t, o.source, "CREATE TABLE items (id bigint PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'a'), (2, 'b')")
	o.Mirror = load(t, o.source, o.sink, "mirror: {mode: history}\n")
	history := func(want string) {
		t.Helper()
		got := testdb.QueryText(t, o.sink, `SELECT string_agg(_sluice_op || coalesce(' ' || id || name, ''), ', '
			ORDER BY _sluice_position COLLATE "C" NULLS FIRST, _sluice_seq NULLS FIRST, id) FROM items`)
		if got != want {
			t.Fatalf("the history is %s, want %s", got, want)
		}
	}
	o.once()
	testdb.Exec(t, o.source, "UPDATE items SET name = 'c' WHERE id = 1")
	o.once()
	testdb.Exec(t, o.source, "DELETE FROM items WHERE id = 2")
	if _, err := o.Resync(t.Context(), []string{"public.items"}, CommandOptions{}); err != nil {
		t.Fatal(err)
	}
	o.once()
	testdb.Exec(t, o.source, "INSERT INTO items VALUES (3, 'd')")
	o.once()
	history("copy 1a, copy 2b, update 1c, gap, copy 1c, insert 3d")
}
