package sluice

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
)

var server *testdb.Postgres

func TestMain(m *testing.M) { testdb.Main(m, &server) }

// load writes a config for two databases and loads it.
func load(t *testing.T, source, sink, rest string) *Mirror {
	t.Helper()
	return loadText(t, "source: {type: postgres, url: \""+source+"\"}\nsink: {type: postgres, url: \""+sink+"\"}\n"+rest)
}

// loadText writes a config of these blocks and loads it.
func loadText(t *testing.T, blocks string) *Mirror {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.yaml")
	text := "version: 1\nname: shop\n" + blocks
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMirrorOfADatabaseFollowsIt(t *testing.T) {
	source, sink := server.Database(t), server.Database(t)
	testdb.Exec(t, source, `
		CREATE TABLE items (id bigint PRIMARY KEY, name text, price numeric(10,2), at timestamptz DEFAULT now(), big text);
		ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
		INSERT INTO items SELECT i, 'item '||i, i/100.0, now(), repeat('x', 3000) FROM generate_series(1, 1000) i`)
	m := load(t, source, sink, "mirror: {}\n")
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := m.Run(ctx, RunOptions{Log: log})
		done <- err
	}()
	query := "SELECT count(*), md5(string_agg(i::text, '' ORDER BY id)) FROM items i"
	equal := func() error {
		if testdb.QueryText(t, sink, "SELECT to_regclass('public.items') IS NOT NULL") != "t" {
			return errors.New("not copied yet")
		}
		if a, b := testdb.QueryText(t, source, query), testdb.QueryText(t, sink, query); a != b {
			return errors.New(a + " at the source, " + b + " at the sink")
		}
		return nil
	}
	testdb.Eventually(t, equal)
	testdb.Exec(t, source, `
		INSERT INTO items SELECT i, 'new '||i, 1, now(), 'b' FROM generate_series(1001, 1500) i;
		UPDATE items SET name = name || '!' WHERE id % 3 = 0;
		UPDATE items SET id = -id WHERE id % 100 = 7;
		DELETE FROM items WHERE id % 10 = 1`)
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
	testdb.Exec(t, source, "TRUNCATE items; INSERT INTO items VALUES (1, 'one', 1, now(), NULL)")
	s, err := m.Run(t.Context(), RunOptions{Once: true, Log: log})
	if err != nil || !s.InOrder() {
		t.Fatal(err, s)
	}
	if err := equal(); err != nil {
		t.Error(err)
	}
}
