package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
)

// hookedSink calls a function before each write of rows, with the sink's table.
type hookedSink struct {
	connector.Sink
	write func(ctx context.Context, t *connector.Target) error
}

type hookedTx struct {
	connector.Tx
	write func(ctx context.Context, t *connector.Target) error
}

func (s hookedSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	return hookedTx{tx, s.write}, err
}

func (tx hookedTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	if err := tx.write(ctx, t); err != nil {
		return err
	}
	return tx.Tx.Write(ctx, t, r)
}

func (tx hookedTx) Load(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	if err := tx.write(ctx, t); err != nil {
		return err
	}
	return tx.Tx.Load(ctx, t, r)
}

// hookSink has runs call write before each write to the sink.
func (w *world) hookSink(write func(ctx context.Context, t *connector.Target) error) {
	w.change = func(o *Options) {
		sink := o.Sink
		o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
			s, err := sink(ctx, id)
			return hookedSink{s, write}, err
		}
	}
}

func TestOnceEndsThoughTheTableIsWrittenWithoutPause(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 0)
	next, ended := 0, false
	w.hookSink(func(context.Context, *connector.Target) error {
		if ended {
			return nil
		}
		for range 10 { // more than a batch: the lane is never empty again
			next++
			tx := w.db.Begin()
			if err := tx.Insert(a, connectortest.Row{fmt.Sprint(next), "v", "big"}); err != nil {
				return err
			}
			tx.Commit()
		}
		ended = next > 100_000
		return nil
	})
	s := w.once()
	if ended || s.Tables[0].Phase != string(Streaming) {
		t.Errorf("the run ended with the writer only, or not well: %+v", s.Tables[0])
	}
}

func TestPausedTableThatIsDueDoesNotCutTheCopyOfAnotherOff(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.once()
	b := w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	var copies atomic.Int32
	w.hookSink(func(ctx context.Context, target *connector.Target) error {
		if target.Table.Name == a {
			return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
		}
		copies.Add(1)
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.RetryPaused = 100 * time.Millisecond
	}
	stop := w.follow()
	w.eventually(func() error { return w.equal(b) })
	if n := copies.Load(); n != 1 {
		t.Errorf("the copy began %d times", n)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.change = nil
	w.once()
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func TestTablePausedInItsCopyKeepsNoLogAndIsTriedAgainAlone(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	var mended atomic.Bool
	w.hookSink(func(_ context.Context, target *connector.Target) error {
		if target.Table.Name == a && !mended.Load() {
			return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
		}
		return nil
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.RetryPaused = 100 * time.Millisecond
	}
	stop := w.follow()
	w.awaitPhase(a, Paused)
	w.insert(a, 2)
	w.insert(b, 1)
	end := w.db.Acked()
	w.eventually(func() error {
		if w.db.Acked() == end {
			return errors.New("the log is kept for a table that will be copied in any case")
		}
		return w.equal(b)
	})
	mended.Store(true)
	w.eventually(func() error { return w.equal(a) })
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) })
	if n := w.faults.Count(connectortest.CallClaim); n != 1 {
		t.Errorf("%d sessions, want one", n)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestSinkThatHangsWhileTheFloorIsSavedIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	w.change = func(o *Options) {
		o.Limits.DrainFor = 50 * time.Millisecond
		o.Limits.DiscoverEvery = 0
	}
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.faults.Hang(connectortest.CallCommit, 1)
	w.eventually(func() error { // an empty transaction moves the floor alone
		w.db.Begin().Commit()
		if w.faults.Count(connectortest.CallClaim) < 3 {
			return errors.New("the sink was not claimed anew")
		}
		return nil
	})
	w.insert(a, 2)
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestFencedMirrorDoesNotComeBackForAPausedTable(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.once()
	var retried, fenced atomic.Bool
	w.hookSink(func(ctx context.Context, target *connector.Target) error {
		if target.Table.Name == a {
			return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
		}
		if fenced.Swap(true) {
			return nil
		}
		w.awaitPhase(a, Paused)
		time.Sleep(200 * time.Millisecond) // the session ends to try a again, and waits for this batch
		retried.Store(true)
		_, err := connectortest.NewMemorySink(w.sink, nil).Claim(ctx, "shop", "")
		return err
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.RetryPaused = 20 * time.Millisecond
		o.Limits.FloorEvery = time.Hour
	}
	w.insert(a, 1)
	w.insert(b, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := Run(ctx, w.options(false)); connector.KindOf(err) != connector.Fenced || !retried.Load() {
		t.Errorf("the run ended with %v, want it fenced", err)
	}
}

func TestGapIsLeftBehindThoughTheStateKnowsAnotherServer(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	if err := w.store.SaveFloor(t.Context(), `{"memory":{"":"another server/5"}}`, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), w.options(true)); connector.KindOf(err) != connector.Gap {
		t.Fatalf("run: %v, want a gap", err)
	}
	w.insert(a, 2)
	w.change = func(o *Options) { o.ResyncOnGap = true }
	s := w.once()
	if err := w.equal(a); err != nil || s.Tables[0].RowsCopied != 2 {
		t.Errorf("%v; %+v", err, s.Tables[0])
	}
}

func TestGapThatComesBackAtOnceEndsTheRun(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	w.change = func(o *Options) { o.ResyncOnGap = true }
	w.faults.Refuse(connectortest.CallStream, 0, connector.Gap)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := Run(ctx, w.options(true)); connector.KindOf(err) != connector.Gap {
		t.Errorf("run: %v, want a gap", err)
	}
}

// committingSink calls a function before each commit.
type committingSink struct {
	connector.Sink
	before func(ctx context.Context, entries map[string]string)
}

type committingTx struct {
	connector.Tx
	before func(ctx context.Context, entries map[string]string)
}

func (s committingSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	return committingTx{tx, s.before}, err
}

func (tx committingTx) Commit(ctx context.Context, entries map[string]string) error {
	tx.before(ctx, entries)
	return tx.Tx.Commit(ctx, entries)
}

func TestCommitOfAChunkIsNotCutOffByTheFaultOfAnother(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	for id := range 8 {
		w.insert(a, id)
	}
	var looked, cutOff atomic.Bool
	w.change = func(o *Options) {
		sink := o.Sink
		o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
			s, err := sink(ctx, id)
			return committingSink{s, func(ctx context.Context, entries map[string]string) {
				for key := range entries {
					if !strings.HasPrefix(key, chunkPrefix) || looked.Swap(true) {
						return
					}
				}
				w.eventually(func() error {
					if w.faults.Count(connectortest.CallRead) < 2 {
						return errors.New("the other chunk is not read")
					}
					return nil
				})
				select {
				case <-ctx.Done():
					cutOff.Store(true)
				case <-time.After(100 * time.Millisecond):
				}
			}}, err
		}
	}
	w.faults.Refuse(connectortest.CallRead, 2, connector.ViewLost)
	w.once()
	if err := w.equal(a); err != nil || !looked.Load() || cutOff.Load() {
		t.Errorf("%v; a chunk was committed: %v; its commit was cut off: %v", err, looked.Load(), cutOff.Load())
	}
}

func TestTableThatFailsKeepsNoApplierFromTheOthers(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.once()
	var failed, reached atomic.Int32
	w.hookSink(func(_ context.Context, target *connector.Target) error {
		if target.Table.Name == b {
			reached.CompareAndSwap(0, 1+failed.Load())
			return nil
		}
		if failed.Add(1) < 3 {
			return &connector.Error{Kind: connector.TableFault, System: "sink", Op: "write rows", Table: a, Err: errors.New("broken")}
		}
		return nil
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.Appliers = 1
	}
	w.insert(a, 1)
	w.insert(b, 1)
	stop := w.follow()
	w.eventually(func() error { return w.equal(b) })
	if n := reached.Load() - 1; n > 1 {
		t.Errorf("b was written only after a had failed %d times", n)
	}
	w.eventually(func() error { return w.equal(a) })
	if s, err := stop(); err != nil || !s.InOrder() {
		t.Errorf("run: %v, %+v", err, s)
	}
}
