package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/testdb"
)

var server *testdb.Postgres

func TestMain(m *testing.M) { testdb.Main(m, &server) }

// mirrored is a PostgreSQL database and its mirror in a file.
type mirrored struct {
	t      *testing.T
	source string
	path   string
	mirror *sluice.Mirror
	log    *slog.Logger
}

// newMirrored makes a database with one text form of each value, and a mirror of it. rest is the mirror's block.
func newMirrored(t *testing.T, rest string) *mirrored {
	t.Helper()
	m := &mirrored{t: t, source: server.Database(t), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	testdb.Exec(t, m.source, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''UTC''', current_database()); END $$`)
	dir := t.TempDir()
	m.path = filepath.Join(dir, "shop.db")
	config := filepath.Join(dir, "shop.yaml")
	text := "version: 1\nname: shop\nsource: {type: postgres, url: \"" + m.source + "\"}\nsink: {type: sqlite, path: shop.db}\nmirror: {" + rest + "}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if m.mirror, err = sluice.Load(config); err != nil {
		t.Fatal(err)
	}
	return m
}

// once copies what is new and catches up.
func (m *mirrored) once() {
	m.t.Helper()
	s, err := m.mirror.Run(m.t.Context(), sluice.RunOptions{Once: true, Log: m.log})
	if err != nil || !s.InOrder() {
		m.t.Fatal(err, s)
	}
}

// rows returns the text of a query's rows in the file, as another program reads them.
func (m *mirrored) rows(sql string) ([][]string, error) {
	conn, err := sqlite.OpenConn(m.path, sqlite.OpenReadOnly)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var rows [][]string
	err = sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		row := make([]string, s.ColumnCount())
		for c := range row {
			if row[c] = s.ColumnText(c); s.ColumnIsNull(c) {
				row[c] = connectortest.Null
			}
		}
		rows = append(rows, row)
		return nil
	}})
	return rows, err
}

// equal compares a query's rows on both sides.
func (m *mirrored) equal(sql string) error {
	got, err := m.rows(sql)
	if err != nil {
		return err
	}
	want := testdb.Query(m.t, m.source, sql)
	if len(got) != len(want) {
		return fmt.Errorf("%d rows in the file, %d at the source", len(got), len(want))
	}
	for i := range got {
		if !slices.Equal(got[i], want[i]) {
			return fmt.Errorf("row %d is %.300q in the file, %.300q at the source", i, got[i], want[i])
		}
	}
	return nil
}

func TestMirrorInAFileFollowsTheSource(t *testing.T) {
	m := newMirrored(t, "snapshot: {chunk_rows: 300}, apply: {batch_rows: 200}, per_table: {public.log: {mode: history}}")
	testdb.Exec(t, m.source, `
		CREATE SCHEMA shop;
		CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric(10,2), at timestamptz DEFAULT now(), big text, twice numeric GENERATED ALWAYS AS (price * 2) STORED);
		ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE shop.lines (note text, place uuid, name text, big text, PRIMARY KEY (name, place));
		ALTER TABLE shop.lines ALTER big SET STORAGE EXTERNAL;
		CREATE TABLE log (id int PRIMARY KEY, v text);
		INSERT INTO items SELECT i, 'item '||i, i/100.0, now(), repeat('x', 3000) || i FROM generate_series(1, 1000) i;
		INSERT INTO shop.lines SELECT 'n', gen_random_uuid(), 'name ' || i % 10, repeat('y', 3000) || i FROM generate_series(1, 300) i;
		INSERT INTO log VALUES (1, 'a')`)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.mirror.Run(ctx, sluice.RunOptions{Log: m.log})
		done <- err
	}()
	equal := func() error {
		if err := m.equal("SELECT id, name, price, at, big FROM items ORDER BY id"); err != nil {
			return err
		}
		got, err := m.rows(`SELECT note, place, name, big FROM shop_lines ORDER BY name, place`)
		if err != nil {
			return err
		}
		want := testdb.Query(t, m.source, `SELECT note, place, name, big FROM shop.lines ORDER BY name COLLATE "C", place`)
		if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
			return fmt.Errorf("shop.lines has %d rows in the file, %d at the source, or they differ", len(got), len(want))
		}
		return nil
	}
	testdb.Eventually(t, equal)
	testdb.Exec(t, m.source, `
		INSERT INTO items SELECT i, 'new '||i, 1, now(), 'b' FROM generate_series(1001, 1500) i;
		UPDATE items SET name = name || '!' WHERE id % 3 = 0;
		UPDATE items SET id = -id WHERE id % 100 = 7;
		DELETE FROM items WHERE id % 10 = 1;
		UPDATE shop.lines SET note = 'changed' WHERE place::text > '8';
		UPDATE shop.lines SET name = name || '?' WHERE place::text < '4';
		UPDATE log SET v = 'b'; DELETE FROM log`)
	testdb.Eventually(t, equal)
	stop()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the mirror did not stop")
	}
	testdb.Exec(t, m.source, "TRUNCATE items; INSERT INTO items VALUES (1, 'one', 1, now(), NULL)")
	m.once()
	m.checkPlan()
	if err := equal(); err != nil {
		t.Error(err)
	}
	m.checkShop()
}

// checkShop looks at what the comparison of rows does not see.
func (m *mirrored) checkShop() {
	m.t.Helper()
	history, err := m.rows(`SELECT "_sluice_op", id, v FROM log ORDER BY "_sluice_position", "_sluice_seq"`)
	want := [][]string{{"copy", "1", "a"}, {"update", "1", "b"}, {"delete", "1", connectortest.Null}}
	if err != nil || !slices.EqualFunc(history, want, slices.Equal[[]string]) {
		m.t.Errorf("the history is %q, %v; want %q", history, err, want)
	}
	left, err := m.rows("SELECT name FROM pragma_table_info('items') WHERE name = 'twice' UNION ALL SELECT name FROM sqlite_schema WHERE name LIKE 'sluice_copy%'")
	if err != nil || len(left) > 0 {
		m.t.Errorf("%q should not be in the file, %v", left, err)
	}
}

// checkPlan wants each table to go on, and a run and a plan to leave nothing beside the file.
func (m *mirrored) checkPlan() {
	m.t.Helper()
	plan, err := m.mirror.Plan(m.t.Context(), m.log)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range plan.Tables {
		if p.Action != "continue" {
			m.t.Errorf("table %s: action %s %s", p.Table, p.Action, p.Refused)
		}
	}
	if files, err := filepath.Glob(m.path + "-*"); err != nil || len(files) > 0 {
		m.t.Errorf("after run and plan there is %q, %v", files, err)
	}
}

// TestFloatThatSQLiteWouldAlterPausesItsTableAlone protects a NaN from becoming NULL, and a -0 from becoming 0.
func TestFloatThatSQLiteWouldAlterPausesItsTableAlone(t *testing.T) {
	for _, value := range []string{"NaN", "-0"} {
		t.Run(value, func(t *testing.T) {
			m := newMirrored(t, "")
			testdb.Exec(t, m.source, "CREATE TABLE a (id int PRIMARY KEY, v float8); CREATE TABLE b (id int PRIMARY KEY, v float8); INSERT INTO a VALUES (1, 1)")
			m.once()
			testdb.Exec(t, m.source, "INSERT INTO a VALUES (2, '"+value+"'); INSERT INTO b VALUES (3, '-Infinity')")
			s, err := m.mirror.Run(t.Context(), sluice.RunOptions{Once: true, Log: m.log})
			if err != nil || s.InOrder() {
				t.Fatalf("it is mirrored: %v, %v", s, err)
			}
			if reason := fmt.Sprintf("%+v", s); !strings.Contains(reason, "column v") || !strings.Contains(reason, value+" cannot be stored") {
				t.Errorf("the reason does not name column and value: %s", reason)
			}
			a, errA := m.rows("SELECT id, v FROM a")
			b, errB := m.rows("SELECT id, v FROM b")
			if len(a) != 1 || len(b) != 1 || b[0][1] != "-Inf" || errors.Join(errA, errB) != nil {
				t.Errorf("tables hold %q and %q, %v", a, b, errors.Join(errA, errB))
			}
		})
	}
}
