package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// refuseBad has the sink refuse rows whose value begins with bad, while on, and the mirror put them into quarantine.
func (w *world) refuseBad(on *atomic.Bool, writers int) {
	w.change = func(o *Options) {
		faults := w.faults
		o.Sink = func(context.Context, string) (connector.Sink, error) {
			s := connectortest.NewMemorySink(w.sink, faults)
			s.Writers = writers
			s.RefuseRow = func(_ schema.Name, row connectortest.Row) bool { return on.Load() && strings.HasPrefix(row[1], "bad") }
			return s, nil
		}
		o.Selector.Select = func(t *schema.Table) (Settings, bool) {
			return Settings{Destination: t.Name, History: t.Name.Schema == "history", Quarantine: true}, true
		}
	}
}

// inQuarantine returns the keys that the sink's entries say are in quarantine.
func (w *world) inQuarantine() string {
	w.t.Helper()
	var keys []string
	for key, text := range w.sink.Entries("shop") {
		if _, _, ok := apply.ParseQuarantineKey(key); !ok {
			continue
		}
		q, err := apply.ParseQuarantined(key, text)
		if err != nil {
			w.t.Fatal(err)
		}
		keys = append(keys, q.Shown...)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

func values(rows []connectortest.Row) string {
	var lines []string
	for _, row := range rows {
		lines = append(lines, row[0]+"="+row[1])
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// TestQuarantineIsExactThroughACrashAtAnyStep crashes a mirror at each step from its start on while rows of a copy and of
// changes go into quarantine, and holds the rows and the quarantine to be the same in the end.
func TestQuarantineIsExactThroughACrashAtAnyStep(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 11
	}
	for _, writers := range []int{1, 4} {
		for step := 1; ; step += stride {
			w := newWorld(t)
			var refusing atomic.Bool
			refusing.Store(true)
			w.refuseBad(&refusing, writers)
			a := w.table("public", "a")
			w.commit(func(tx *connectortest.Txn) error {
				for i, v := range []string{"a", "bad copy", "c", "d", "e", "f"} {
					if err := tx.Insert(a, connectortest.Row{fmt.Sprint(i + 1), v, "big"}); err != nil {
						return err
					}
				}
				return nil
			})
			crashed := false
			runTo := func() {
				w.faults.CrashAt(step)
				_, _ = Run(t.Context(), w.options(true)) // the next run tells what came of it
				crashed = crashed || w.faults.Crashed()
				w.faults = &connectortest.Faults{}
				w.once()
				w.faults = &connectortest.Faults{}
			}
			runTo()
			for _, change := range []func(tx *connectortest.Txn) error{
				func(tx *connectortest.Txn) error {
					return tx.Update(a, connectortest.Row{"1"}, connectortest.Row{"1", "bad", "x"})
				},
				func(tx *connectortest.Txn) error {
					return tx.Update(a, connectortest.Row{"1"}, connectortest.Row{"1", "good", connectortest.Unsent})
				},
				func(tx *connectortest.Txn) error {
					return tx.Update(a, connectortest.Row{"3"}, connectortest.Row{"30", "bad", connectortest.Unsent})
				},
				func(tx *connectortest.Txn) error { return tx.Insert(a, connectortest.Row{"7", "bad", "x"}) },
				func(tx *connectortest.Txn) error { return tx.Delete(a, connectortest.Row{"7"}) },
				func(tx *connectortest.Txn) error {
					return tx.Update(a, connectortest.Row{"4"}, connectortest.Row{"4", "bad", "x"})
				},
				func(tx *connectortest.Txn) error {
					return tx.Update(a, connectortest.Row{"4"}, connectortest.Row{"4", "mended", "y"})
				},
			} {
				w.commit(change)
			}
			runTo()
			if got, want := values(w.sink.Rows(a)), "1=a 4=mended 5=e 6=f"; got != want || w.inQuarantine() != "1 2 30" {
				t.Fatalf("step %d: the sink holds %s, want %s; in quarantine: %s", step, got, want, w.inQuarantine())
			}
			if r := w.saved(a); r.Quarantined != 3 || r.Phase != string(Streaming) {
				t.Fatalf("step %d: the state says %+v", step, r)
			}
			refusing.Store(false)
			number := w.ask(state.Retry, a)
			runTo()
			if err := w.equal(a); err != nil || w.inQuarantine() != "" {
				t.Fatalf("step %d: %v; in quarantine: %s", step, err, w.inQuarantine())
			}
			if done := w.outcome(number); done.Failed {
				t.Fatalf("step %d: %+v", step, done)
			}
			if !crashed {
				t.Logf("%d steps at most", step-1)
				break
			}
		}
	}
}

func TestTooManyRefusedRowsPauseTheirTable(t *testing.T) {
	w := newWorld(t)
	var refusing atomic.Bool
	refusing.Store(true)
	w.refuseBad(&refusing, 4)
	limit := w.change
	w.change = func(o *Options) { limit(o); o.Limits.BatchRows = 2000 }
	a, b := w.table("public", "a"), w.table("public", "b")
	w.once()
	w.commit(func(tx *connectortest.Txn) error {
		for i := range 1001 {
			if err := tx.Insert(a, connectortest.Row{fmt.Sprint(i), "bad", "x"}); err != nil {
				return err
			}
		}
		return tx.Insert(b, connectortest.Row{"1", "good", "x"})
	})
	w.once()
	r := w.saved(a)
	if r.Phase != string(Paused) || !strings.Contains(r.Reason, "more than 1000 rows of the table would be in quarantine") || r.Quarantined > 1000 {
		t.Errorf("%+v", r)
	}
	if err := w.equal(b); err != nil {
		t.Error(err)
	}
}

func TestHistoryPausesAtARefusedRowAndThePlanSaysSo(t *testing.T) {
	w := newWorld(t)
	var refusing atomic.Bool
	w.refuseBad(&refusing, 4)
	h := w.table("history", "h")
	w.once()
	source := connectortest.NewMemorySource(w.db, nil)
	plan, err := MakePlan(t.Context(), source, connectortest.NewMemorySink(w.sink, nil), w.options(true).Selector)
	if err != nil || len(plan.Tables) != 1 || len(plan.Tables[0].Notes) != 1 || !strings.Contains(plan.Tables[0].Notes[0], "on_bad_row") {
		t.Errorf("%v, %+v", err, plan)
	}
	refusing.Store(true)
	inner := w.change
	w.change = func(o *Options) {
		inner(o)
		sink := o.Sink
		o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
			s, err := sink(ctx, id)
			return &refusingSink{s, h}, err
		}
	}
	w.insert(h, 1)
	w.once()
	if r := w.saved(h); r.Phase != string(Paused) || r.Quarantined != 0 {
		t.Errorf("%+v", r)
	}
}
