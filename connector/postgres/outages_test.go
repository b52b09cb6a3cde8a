package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// outageTables are changed in different measure: idle last before the backups, busy behind them, and last after that, so
// that the log was acknowledged beyond the last change of busy.
var outageTables = []string{"idle", "busy", "last"}

// outage is a mirror between two databases, of whose parts a test loses some.
type outage struct {
	*testing.T
	server       *testdb.Postgres // of the source; nil: the package's
	backup       *testdb.Postgres // the server that is the source afterwards
	source, sink string
	dir          string // of the state
	store        *state.Store
	changes      int
}

func newOutage(t *testing.T, own bool, settings ...string) *outage {
	t.Helper()
	o := &outage{T: t, source: testServer.Database(t), sink: testServer.Database(t), dir: t.TempDir()}
	if own {
		server, err := testdb.StartPostgres(settings...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Remove)
		o.server, o.source = server, server.URL("postgres")
	}
	o.openState()
	t.Cleanup(func() { o.store.Close() })
	for _, table := range outageTables {
		testdb.Exec(t, o.source, fmt.Sprintf("CREATE TABLE %s (id int PRIMARY KEY, v text); INSERT INTO %[1]s SELECT i, 'first' FROM generate_series(1, 50) i", table))
	}
	return o
}

func (o *outage) openState() {
	o.Helper()
	var err error
	if o.store, err = state.Open(o.Context(), o.stateFile()); err != nil {
		o.Fatal(err)
	}
}

func (o *outage) stateFile() string { return filepath.Join(o.dir, "state.db") }

// loseState puts what content says in the state's place, nothing if it is nil.
func (o *outage) loseState(content []byte) {
	o.Helper()
	err := o.store.Close()
	for _, file := range []string{"state.db", "state.db-wal", "state.db-shm"} {
		if removeErr := os.Remove(filepath.Join(o.dir, file)); !errors.Is(removeErr, os.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	if content != nil {
		err = errors.Join(err, os.WriteFile(o.stateFile(), content, 0o600))
	}
	if err != nil {
		o.Fatal(err)
	}
	o.openState()
}

// savedState returns the state as a file.
func (o *outage) savedState() []byte {
	o.Helper()
	err := o.store.Close() // which leaves nothing beside the file
	content, readErr := os.ReadFile(o.stateFile())
	if err := errors.Join(err, readErr); err != nil {
		o.Fatal(err)
	}
	o.openState()
	return content
}

// copySink returns a copy of the sink as it is.
func (o *outage) copySink() string {
	o.Helper()
	restored := testServer.Database(o.T)
	name := func(url string) string {
		_, rest, _ := strings.Cut(url, "127.0.0.1")
		_, rest, _ = strings.Cut(rest, "/")
		database, _, _ := strings.Cut(rest, "?")
		return database
	}
	testdb.Exec(o, testServer.URL("postgres"), "DROP DATABASE "+name(restored))
	testdb.Eventually(o, func() error { // when the last connection is gone
		_, err := testdb.TryQuery(testServer.URL("postgres"), fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name(restored), name(o.sink)))
		return err
	})
	return restored
}

// keepSlot gives the backup, which does not run, the slot as it is now: what is done for a standby that is to take over.
func (o *outage) keepSlot() {
	o.Helper()
	name := testdb.QueryText(o, o.source, "SELECT slot_name FROM pg_replication_slots")
	slots := func(p *testdb.Postgres) string { return filepath.Join(p.Dir, "data", "pg_replslot") }
	if out, err := exec.Command("cp", "-a", filepath.Join(slots(o.server), name), slots(o.backup)).CombinedOutput(); err != nil {
		o.Fatalf("%v: %s", err, out)
	}
}

// change updates, inserts and deletes rows of tables.
func (o *outage) change(tables ...string) {
	o.Helper()
	for _, table := range tables {
		o.changes++
		testdb.Exec(o, o.source, fmt.Sprintf("UPDATE %s SET v = 'changed %d' WHERE id %% 10 = %[2]d %% 10; INSERT INTO %[1]s VALUES (%[3]d, 'new'); DELETE FROM %[1]s WHERE id = %[2]d",
			table, o.changes, 100+o.changes))
	}
}

// run mirrors until everything is copied and caught up, or paused.
func (o *outage) run() (*mirror.Summary, error) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), 2*time.Minute)
	defer cancel()
	env := func(id string) connector.Env {
		return connector.Env{Mirror: "outage", ID: id, Alloc: memory.NewGoAllocator()}
	}
	limits := mirror.DefaultLimits()
	limits.FloorEvery = 10 * time.Millisecond
	s, err := mirror.Run(ctx, mirror.Options{
		Mirror: "outage", Once: true, Store: o.store, Spool: o.dir, Alloc: memory.NewGoAllocator(), Limits: limits,
		Log: slog.New(slog.NewTextHandler(o.Output(), nil)),
		Source: func(ctx context.Context, id string) (connector.Source, error) {
			return OpenSource(ctx, &Config{URL: o.source, Connections: 4}, env(id))
		},
		Sink: func(ctx context.Context, id string) (connector.Sink, error) {
			return OpenSink(ctx, &Config{URL: o.sink, Connections: 4}, env(id))
		},
		Selector: mirror.Selector{Select: func(t *schema.Table) (mirror.Settings, bool) {
			return mirror.Settings{Destination: t.Name}, slices.Contains(outageTables, t.Name.Table)
		}},
	})
	return s, errors.Join(err, ctx.Err())
}

func (o *outage) mustRun() {
	o.Helper()
	if s, err := o.run(); err != nil || !s.InOrder() {
		o.Fatalf("%v; %+v", err, s)
	}
}

// resync asks for new copies of all tables that the state knows, and in vain of those that are copied by themselves.
func (o *outage) resync() {
	o.Helper()
	tables, err := o.store.Tables(o.Context())
	for _, t := range tables {
		if err == nil {
			_, err = o.store.AddCommands(o.Context(), state.Command{Kind: state.Resync, Table: t.ID, Name: t.Name, AskedAt: time.Now(), AskedBy: "the test"})
		}
	}
	if err != nil {
		o.Fatal(err)
	}
}

// found returns the tables that were copied, and those that wait, as "a b".
func found(s *mirror.Summary) (copied, waiting string) {
	for _, table := range outageTables {
		for _, t := range s.Tables {
			switch {
			case t.Table.Table != table:
			case t.Phase == string(mirror.Paused):
				waiting += " " + table
			case t.RowsCopied > 0:
				copied += " " + table
			}
		}
	}
	return strings.TrimSpace(copied), strings.TrimSpace(waiting)
}

func TestWhateverIsLostTheTablesAreEqualAfterwards(t *testing.T) {
	const all = "idle busy last"
	type backups struct {
		sink  string
		state []byte
	}
	mustServer := func(o *outage, server *testdb.Postgres, err error) {
		o.Helper()
		if err != nil {
			o.Fatal(err)
		}
		o.Cleanup(server.Remove)
		o.backup = server
	}
	failOver := func(o *outage) {
		o.source = o.backup.URL("postgres")
	}
	promote := func(o *outage) {
		failOver(o)
		testdb.Exec(o, o.source, "SELECT pg_promote()")
	}
	cloneDisk := func(o *outage) {
		o.server.Stop()
		clone, err := o.server.Clone()
		mustServer(o, clone, err)
		if err := o.server.Start(); err != nil {
			o.Fatal(err)
		}
	}
	standby := func(o *outage) {
		server, err := o.server.Standby()
		mustServer(o, server, err)
	}
	received := func(o *outage) {
		end := testdb.QueryText(o, o.source, "SELECT pg_current_wal_lsn()")
		testdb.Eventually(o, func() error {
			if testdb.QueryText(o, o.backup.URL("postgres"), "SELECT pg_last_wal_replay_lsn() >= '"+end+"'") != "t" {
				return errors.New("the standby has not received everything")
			}
			return nil
		})
	}
	none := func(*outage) {}
	for name, row := range map[string]struct {
		own      bool
		settings []string
		prepare  func(*outage)          // before the last changes that the mirror sees
		lose     func(*outage, backups) // behind them
		behind   func(*outage)          // further changes, that the mirror has not seen

		ends    string // the run ends with this, until new copies are asked for
		copied  string // which tables are copied anew by themselves
		waiting string // which wait for a person
	}{
		"state lost":  {lose: func(o *outage, _ backups) { o.loseState(nil) }},
		"state older": {lose: func(o *outage, b backups) { o.loseState(b.state) }},
		"sink recreated": {
			lose:   func(o *outage, _ backups) { o.sink = testServer.Database(o.T) },
			copied: all,
		},
		"destination dropped": {
			lose:   func(o *outage, _ backups) { testdb.Exec(o, o.sink, "DROP TABLE busy") },
			copied: "busy",
		},
		"sink restored": {
			lose:   func(o *outage, b backups) { o.sink = b.sink },
			copied: "busy last",
		},
		"slot dropped": {
			lose: func(o *outage, _ backups) {
				testdb.Exec(o, o.source, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
			},
			waiting: all,
		},
		"slot invalidated": {
			own: true, settings: []string{"max_slot_wal_keep_size=16MB", "max_wal_size=32MB"},
			lose: func(*outage, backups) {},
			behind: func(o *outage) {
				testdb.Eventually(o, func() error {
					o.change("busy")
					testdb.Exec(o, o.source, "SELECT pg_switch_wal()")
					testdb.Exec(o, o.source, "CHECKPOINT")
					if status := testdb.QueryText(o, o.source, "SELECT wal_status FROM pg_replication_slots"); status != "lost" {
						return fmt.Errorf("the slot is %s", status)
					}
					return nil
				})
			},
			waiting: all,
		},
		"standby promoted that had everything, without the slot": {
			own: true, prepare: standby,
			lose: func(o *outage, _ backups) {
				received(o)
				o.server.Kill()
				promote(o)
			},
			waiting: all,
		},
		"standby promoted that lacks what the mirror has": {
			own: true,
			prepare: func(o *outage) {
				standby(o)
				received(o)
				o.backup.Stop()
			},
			lose: func(o *outage, _ backups) {
				o.server.Kill()
				if err := o.backup.Start(); err != nil {
					o.Fatal(err)
				}
				promote(o)
			},
			ends: "promoted",
		},
		"standby promoted that has the slot and lacks what the mirror has": {
			own: true,
			prepare: func(o *outage) {
				standby(o)
				begin := testdb.QueryText(o, o.source, "SELECT pg_current_wal_lsn()")
				testdb.Eventually(o, func() error { // the standby has no log from before it was made
					o.change("idle")
					o.mustRun()
					testdb.Exec(o, o.source, "CHECKPOINT")
					if testdb.QueryText(o, o.source, "SELECT restart_lsn > '"+begin+"' FROM pg_replication_slots") != "t" {
						return errors.New("the slot needs log from before the standby was made")
					}
					return nil
				})
				received(o)
				o.backup.Stop()
				o.keepSlot()
			},
			lose: func(o *outage, _ backups) {
				o.server.Kill()
				if err := o.backup.Start(); err != nil {
					o.Fatal(err)
				}
				promote(o)
			},
			copied: "busy last",
		},
		"disk of the source restored": {
			own: true,
			prepare: func(o *outage) {
				cloneDisk(o)
				testdb.Exec(o, o.source, "SELECT pg_switch_wal()") // further than what the clone writes
			},
			lose: func(o *outage, _ backups) { failOver(o) },
			ends: "restored from a backup",
		},
		"disk of the source restored, and its log has grown beyond": {
			own: true, prepare: cloneDisk,
			lose: func(o *outage, _ backups) { failOver(o) },
			behind: func(o *outage) {
				testdb.Exec(o, o.source, "SELECT pg_switch_wal()")
				o.change("idle")
			},
			waiting: "busy last",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, row.own, row.settings...)
			o.mustRun()
			o.change(outageTables...)
			o.mustRun()
			b := backups{o.copySink(), o.savedState()}
			if row.prepare == nil {
				row.prepare = none
			}
			row.prepare(o)
			o.change("busy")
			o.mustRun()
			o.change("last")
			o.mustRun()
			row.lose(o, b)
			o.change(outageTables...)
			if row.behind != nil {
				row.behind(o)
			}
			s, err := o.run()
			switch {
			case row.ends != "":
				if connector.KindOf(err) != connector.Gap || !strings.Contains(err.Error(), row.ends) {
					t.Errorf("run: %v, want it to end with a gap, %q", err, row.ends)
				}
			case err != nil:
				t.Fatal(err)
			default:
				if copied, waiting := found(s); copied != row.copied || waiting != row.waiting {
					t.Errorf("copied %q, want %q; waiting %q, want %q\n%+v", copied, row.copied, waiting, row.waiting, s.Tables)
				}
			}
			if row.ends != "" || row.waiting != "" {
				o.resync()
				o.mustRun()
			}
			o.change(outageTables...)
			o.mustRun()
			pair := testdb.OpenPair(t, o.source, o.sink)
			for _, table := range outageTables {
				if diff, err := pair.Compare(t.Context(), table, table); err != nil || diff != "" {
					t.Error(table, err, diff)
				}
			}
		})
	}
}

func TestStateAndSinkLostIsRefusedUntilTheSlotIsGivenUp(t *testing.T) {
	o := newOutage(t, false)
	o.mustRun()
	o.loseState(nil)
	o.sink = testServer.Database(t)
	o.change(outageTables...)
	_, err := o.run()
	e, ok := errors.AsType[*connector.Error](err)
	if !ok || e.Kind != connector.Setup || !strings.Contains(e.Hint, "DROP PUBLICATION") {
		t.Fatalf("run: %v, want it refused with what to drop", err)
	}
	testdb.Exec(t, o.source, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database();
		DO $$ DECLARE p name; BEGIN FOR p IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', p); END LOOP; END $$`)
	o.mustRun()
	if diff, err := testdb.OpenPair(t, o.source, o.sink).Compare(t.Context(), "busy", "busy"); err != nil || diff != "" {
		t.Error(err, diff)
	}
}
