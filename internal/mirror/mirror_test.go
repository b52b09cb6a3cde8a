package mirror

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a source, a sink and a state that outlive the runs of a mirror between them.
type world struct {
	t     *testing.T
	db    *connectortest.Database
	sink  *connectortest.Store
	store *state.Store
	spool string
	// Faults of the next run.
	faults *connectortest.Faults
	change func(*Options)
}

func newWorld(t *testing.T) *world {
	store, err := state.Open(t.Context(), t.TempDir()+"/state.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	w := &world{t: t, db: connectortest.NewDatabase(), sink: connectortest.NewStore(), store: store, spool: t.TempDir(), faults: &connectortest.Faults{}}
	t.Cleanup(w.faultsHappened)
	return w
}

// faultsHappened fails the test if it has asked for a fault that met nothing.
func (w *world) faultsHappened() {
	w.t.Helper()
	if missed := w.faults.Missed(); missed != nil {
		w.t.Errorf("faults that never happened: %s", strings.Join(missed, "; "))
	}
}

// withoutFaults has the next run meet none. Those before must have happened.
func (w *world) withoutFaults() {
	w.t.Helper()
	w.faultsHappened()
	w.faults = new(connectortest.Faults)
}

// options are those of a run in the world as it is.
func (w *world) options(once bool) Options {
	alloc := memory.NewGoAllocator()
	o := Options{
		Mirror: "shop", Once: once, FollowNew: true, Store: w.store, Spool: w.spool, Alloc: alloc, Limits: DefaultLimits(),
		Log: slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Source: func(context.Context, string) (connector.Source, error) {
			return connectortest.NewMemorySource(w.db, w.faults), nil
		},
		Sink: func(context.Context, string) (connector.Sink, error) {
			return connectortest.NewMemorySink(w.sink, w.faults), nil
		},
		Selector: Selector{Select: func(t *schema.Table) (Settings, bool) {
			return Settings{Destination: t.Name, History: t.Name.Schema == "history"}, true
		}},
	}
	o.Limits.FloorEvery, o.Limits.SpoolSync = 10*time.Millisecond, 10*time.Millisecond
	o.Limits.DiscoverEvery = 20 * time.Millisecond
	o.Limits.BatchRows = 5
	o.Limits.BackoffMin = time.Millisecond
	if w.change != nil {
		w.change(&o)
	}
	return o
}

// once runs the mirror until it has caught up.
func (w *world) once() *Summary {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	s, err := Run(ctx, w.options(true))
	if err != nil || ctx.Err() != nil {
		w.t.Fatalf("run: %v, %v", err, ctx.Err())
	}
	return s
}

// follow runs the mirror until the test calls stop, which returns what it did.
func (w *world) follow() (stop func() (*Summary, error)) {
	ctx, cancel := context.WithCancel(w.t.Context())
	type result struct {
		s   *Summary
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := Run(ctx, w.options(false))
		done <- result{s, err}
	}()
	return func() (*Summary, error) {
		cancel()
		r := <-done
		return r.s, r.err
	}
}

func (w *world) table(schemaName, name string) schema.Name {
	n := schema.Name{Schema: schemaName, Table: name}
	w.db.CreateTable(connectortest.TableSpec{
		Name: n, Key: []string{"id"}, Toasted: []string{"big"},
		Columns: []schema.Column{connectortest.Int64("id"), connectortest.Text("v"), connectortest.Text("big")},
	})
	return n
}

// commit runs one transaction at the source.
func (w *world) commit(f func(tx *connectortest.Txn) error) {
	w.t.Helper()
	tx := w.db.Begin()
	if err := f(tx); err != nil {
		w.t.Fatal(err)
	}
	tx.Commit()
}

func (w *world) insert(table schema.Name, id int) {
	w.t.Helper()
	w.commit(func(tx *connectortest.Txn) error {
		return tx.Insert(table, connectortest.Row{fmt.Sprint(id), "v", "big"})
	})
}

func (w *world) equal(table schema.Name) error {
	inAnyOrder := cmpopts.SortSlices(func(a, b connectortest.Row) int { return slices.Compare(a, b) })
	if diff := cmp.Diff(w.db.Rows(table), w.sink.Rows(table), inAnyOrder); diff != "" {
		return fmt.Errorf("sink differs from source (-source +sink):\n%s", diff)
	}
	return nil
}

// eventually waits for a condition.
func (w *world) eventually(f func() error) {
	w.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOnceCopiesAndGoesOnWhereItEnded(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	for id := range 20 {
		w.insert(a, id)
	}
	s := w.once()
	if err := w.equal(a); err != nil {
		t.Fatal(err)
	}
	if s.Tables[0].RowsCopied != 20 || !s.InOrder() {
		t.Errorf("summary: %+v", s.Tables)
	}
	w.insert(a, 20)
	w.commit(func(tx *connectortest.Txn) error { return tx.Delete(a, connectortest.Row{"3"}) })
	s = w.once()
	if err := w.equal(a); err != nil {
		t.Fatal(err)
	}
	if s.Tables[0].RowsCopied != 0 || s.Tables[0].ChangesApplied != 2 {
		t.Errorf("the second run copied again, or missed changes: %+v", s.Tables)
	}
}

func TestRunningMirrorFollowsChangesAndNewTables(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	stop := w.follow()
	w.eventually(func() error { return w.equal(a) })
	w.insert(a, 2)
	b := w.table("public", "b")
	w.insert(b, 1)
	w.eventually(func() error { return w.equal(a) })
	w.eventually(func() error { return w.equal(b) })
	s, err := stop()
	if err != nil || len(s.Tables) != 2 || !s.InOrder() {
		t.Errorf("run: %v, %+v", err, s)
	}
}
