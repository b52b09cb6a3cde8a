package mirror

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// keepingSource is a source that keeps as much log as a test says.
type keepingSource struct {
	connector.Source
	kept    *atomic.Int64
	db      *connectortest.Database
	dropped *atomic.Int32
}

func (s keepingSource) Retained(context.Context, string) (connector.Retained, error) {
	return connector.Retained{By: "the slot", Bytes: s.kept.Load()}, nil
}

func (s keepingSource) Remove(context.Context) error {
	s.db.DropSlot()
	s.dropped.Add(1)
	s.kept.Store(0)
	return nil
}

// guarded gives the next runs a source that keeps log, and a limit for it.
func (w *world) guarded(action RetainedAction) (kept *atomic.Int64, dropped *atomic.Int32) {
	kept, dropped = new(atomic.Int64), new(atomic.Int32)
	before := w.change
	w.change = func(o *Options) {
		if before != nil {
			before(o)
		}
		o.Limits.RetainedBytes, o.OnRetained = 1000, action
		source := o.Source
		o.Source = func(ctx context.Context, id string) (connector.Source, error) {
			s, err := source(ctx, id)
			return keepingSource{s, kept, w.db, dropped}, err
		}
	}
	return kept, dropped
}

func TestTooMuchLogIsSaidOnceAndHarmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.table("public", "a")
		w.once()
		kept, _ := w.guarded(WarnOfRetained)
		kept.Store(5000)
		stop := w.follow()
		w.insert(a, 1)
		time.Sleep(time.Minute)
		if texts := w.events("retained_log"); len(texts) != 1 || !strings.Contains(texts[0], "5000 bytes") {
			t.Errorf("events %q", texts)
		}
		kept.Store(0)
		time.Sleep(time.Minute)
		kept.Store(5000)
		time.Sleep(time.Minute)
		if texts := w.events("retained_log"); len(texts) != 2 {
			t.Errorf("events of two times: %q", texts)
		}
		if s, err := stop(); err != nil || !s.InOrder() {
			t.Errorf("%v, %+v", err, s.Tables)
		}
		if err := w.equal(a); err != nil {
			t.Error(err)
		}
	})
}

func TestTableThatHoldsTheLogBackIsDetachedAndTheOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.table("public", "a"), w.table("public", "b")
		w.once()
		kept, _ := w.guarded(DetachRetained)
		stop := w.follow()
		w.awaitPhase(a, Streaming)
		w.ask(state.Pause, a)
		w.awaitPhase(a, Paused)
		w.insert(a, 1)
		w.insert(b, 1)
		time.Sleep(time.Minute)
		if texts := w.events("detached"); len(texts) != 0 {
			t.Errorf("detached though there is room: %q", texts)
		}
		held := w.db.Acked()
		kept.Store(5000)
		time.Sleep(2 * time.Minute)
		if texts := w.events("detached"); len(texts) != 1 || !strings.Contains(texts[0], "retained_log.max") {
			t.Errorf("events %q", texts)
		}
		if w.db.Acked() == held {
			t.Error("the log is still held back")
		}
		if r := w.saved(a); r.Phase != string(Paused) || r.PausedBy != "person" {
			t.Errorf("what a person paused: %+v", r)
		}
		kept.Store(0)
		w.do(state.Resume, a)
		if err := errors.Join(w.equal(a), w.equal(b)); err != nil {
			t.Error(err)
		}
		if s, err := stop(); err != nil || s.Tables[0].RowsCopied != 1 || s.Tables[1].RowsCopied != 0 {
			t.Errorf("%v, %+v", err, s.Tables)
		}
	})
}

func TestMirrorThatCatchesUpDetachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.table("public", "a")
		w.once()
		for id := range 100 {
			w.insert(a, id)
		}
		w.hookSink(func(context.Context, *connector.Target) error {
			time.Sleep(5 * time.Second) // 5 rows a batch: more than a minute in all, and the floor moves
			return nil
		})
		kept, _ := w.guarded(DetachRetained)
		kept.Store(5000)
		s := w.onceWithin(10 * time.Minute)
		if texts := w.events("detached"); len(texts) != 0 || s.Tables[0].RowsCopied != 0 {
			t.Errorf("detached: %q, %+v", texts, s.Tables)
		}
	})
}

// onceWithin is once with a limit that a test under synctest needs.
func (w *world) onceWithin(limit time.Duration) *Summary {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	s, err := Run(ctx, w.options(true))
	if err != nil || ctx.Err() != nil {
		w.t.Fatalf("run: %v, %v", err, ctx.Err())
	}
	return s
}

func TestLogIsGivenUpForTheSourceAlsoWhileTheSinkIsAwayAndEveryTableIsCopiedThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.table("public", "a"), w.table("public", "b")
		w.insert(a, 1)
		w.once()
		kept, dropped := w.guarded(DropRetained)
		stop := w.follow()
		w.insert(b, 2)
		w.eventually(func() error { return w.equal(b) }) // it runs
		w.faults.RefuseAll(connector.Unavailable, connectortest.CallClaim, connectortest.CallBegin)
		w.insert(a, 2)
		time.Sleep(time.Minute)
		if dropped.Load() != 0 {
			t.Error("dropped though there is room")
		}
		kept.Store(5000)
		time.Sleep(2 * time.Minute)
		if dropped.Load() != 1 {
			t.Errorf("dropped %d times, want once", dropped.Load())
		}
		w.commit(func(tx *connectortest.Txn) error { return tx.Delete(a, connectortest.Row{"1"}) })
		w.insert(b, 1)
		if _, err := stop(); err != nil {
			t.Fatal(err)
		}
		w.faults.Clear()
		s := w.once() // of another process
		if err := errors.Join(w.equal(a), w.equal(b)); err != nil || !s.InOrder() || s.Tables[0].RowsCopied != 1 {
			t.Errorf("%v, %+v", err, s.Tables)
		}
	})
}

func TestLongOutagesOfSinkAndSourcePauseAndDetachNoTable(t *testing.T) {
	for _, away := range []struct {
		what  string
		calls []connectortest.Call
	}{
		{"sink", []connectortest.Call{connectortest.CallClaim, connectortest.CallBegin, connectortest.CallWrite, connectortest.CallCommit, connectortest.CallPlan}},
		{"source", []connectortest.Call{connectortest.CallTables, connectortest.CallStream, connectortest.CallNext, connectortest.CallHead, connectortest.CallAdd}},
	} {
		t.Run(away.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				names := []schema.Name{w.table("public", "a"), w.table("public", "b"), w.table("history", "c")}
				w.once()
				w.change = func(o *Options) {
					o.Limits.SpoolBytes, o.Limits.LaneMemory, o.Limits.LaneBytes = 4000, 100, 1000
					o.Limits.TableFailures, o.OnRetained = 1, DetachRetained
				}
				kept, _ := w.guarded(DetachRetained)
				kept.Store(5000)
				stop := w.follow()
				w.insert(names[0], 1000)
				w.eventually(func() error { return w.equal(names[0]) }) // it runs
				w.faults.RefuseAll(connector.Unavailable, away.calls...)
				for id := range 200 {
					for _, name := range names {
						w.insert(name, id)
					}
					time.Sleep(3 * time.Minute) // ten hours in all
				}
				w.faults.Clear()
				time.Sleep(time.Minute) // more than the longest wait between two attempts
				w.eventually(func() error { return errors.Join(w.equal(names[0]), w.equal(names[1])) })
				s, err := stop()
				if err != nil || !s.InOrder() {
					t.Errorf("%v, %+v", err, s.Tables)
				}
				for _, r := range s.Tables {
					if r.RowsCopied != 0 {
						t.Errorf("%s was copied again", r.Table)
					}
				}
				for _, kind := range []string{"paused", "detached", "copy_again"} {
					if texts := w.events(kind); len(texts) > 0 {
						t.Errorf("events %s: %q", kind, texts)
					}
				}
				if n := len(w.sink.History(names[2])); n != 200 {
					t.Errorf("the history has %d rows, want 200", n)
				}
			})
		})
	}
}

func TestTableThatHoldsTheLogBackIsNotSparedForRoomInTheSpool(t *testing.T) {
	limits := DefaultLimits()
	budget := lane.NewBudget(limits.LaneBytes)
	spool, err := lane.OpenSpool(t.TempDir(), "m", nil, budget, lane.Limits{Lane: 1 << 20, Max: 1 << 20, SyncEvery: time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer spool.Close()
	a := &table{id: "a", phase: Streaming}
	if a.lane, err = spool.Open("a", nil); err != nil {
		t.Fatal(err)
	}
	s := &session{spool: spool}
	for _, forRoom := range []bool{false, true} {
		s.doomed.Store(&doom{table: a, why: errTooMuchLog, forRoom: forRoom})
		if err := s.putIn(t.Context(), a, lane.Item{Change: &connector.SchemaChange{Table: &schema.Table{ID: "a"}}}); err != nil {
			t.Fatal(err)
		}
		if spared := s.doomedFor(a) == nil; spared != forRoom {
			t.Errorf("given up for room %v: spared %v", forRoom, spared)
		}
	}
}
