package mirror

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// spoolWorld is a world in which the spool always counts as durable and the sink refuses the rows of one table while it
// is told to.
type spoolWorld struct {
	*world
	a, b    schema.Name
	refused atomic.Bool   // rows of a
	slow    chan struct{} // writing rows of a takes until it is closed; nil: no time
	limits  func(*Limits)
}

func newSpoolWorld(t *testing.T) *spoolWorld {
	w := &spoolWorld{world: newWorld(t), limits: func(*Limits) {}}
	w.a, w.b = w.table("public", "a"), w.table("public", "b")
	w.change = func(o *Options) {
		o.Limits.DurableBytes, o.Limits.RetryPaused, o.Limits.TableFailures = 0, 0, 1
		w.limits(&o.Limits)
		sink := o.Sink
		o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
			s, err := sink(ctx, id)
			return &switchSink{s, w}, err
		}
	}
	return w
}

type switchSink struct {
	connector.Sink
	world *spoolWorld
}

func (s *switchSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	switch {
	case s.world.refused.Load():
		tx = refusingTx{tx, s.world.a}
	case s.world.slow != nil:
		tx = slowTx{tx, s.world}
	}
	return tx, err
}

type slowTx struct {
	connector.Tx
	world *spoolWorld
}

func (tx slowTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	if t.Table.Name == tx.world.a {
		select {
		case <-tx.world.slow:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return tx.Tx.Write(ctx, t, r)
}

// record returns the state's record of a table.
func (w *spoolWorld) record(n schema.Name) state.Table {
	w.t.Helper()
	tables, err := w.store.Tables(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range tables {
		if r.Name == n {
			return r
		}
	}
	return state.Table{}
}

func (w *spoolWorld) hasPhase(n schema.Name, p Phase) error {
	if r := w.record(n); r.Phase != string(p) {
		return fmt.Errorf("%s is %s (%s), want %s", n, r.Phase, r.Reason, p)
	}
	return nil
}

func (w *spoolWorld) acked(beyond connector.Position) error {
	order, err := connectortest.NewMemorySource(w.db, nil).Compare(w.db.Acked(), beyond)
	if err != nil || order < 0 {
		return fmt.Errorf("acknowledged is %s, want %s: %v", w.db.Acked(), beyond, err)
	}
	return nil
}

func (w *spoolWorld) head() connector.Position {
	w.t.Helper()
	head, err := connectortest.NewMemorySource(w.db, nil).Head(w.t.Context(), "memory")
	if err != nil {
		w.t.Fatal(err)
	}
	return head[""]
}

// events returns the texts of the events of a kind.
func (w *spoolWorld) events(kind string) (texts []string) {
	w.t.Helper()
	all, err := w.store.Events(w.t.Context(), 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range all {
		if e.Kind == kind {
			texts = append(texts, e.Table.Table+": "+e.Text)
		}
	}
	return texts
}

// pauseA runs the mirror until a is paused, b follows, and the source was allowed to forget what a lacks; then the process
// dies.
func (w *spoolWorld) pauseA(changes int) {
	w.t.Helper()
	w.insert(w.a, 1)
	w.insert(w.b, 1)
	w.once()
	w.refused.Store(true)
	stop := w.follow()
	w.insert(w.a, 2)
	w.eventually(func() error { return w.hasPhase(w.a, Paused) })
	for i := range changes {
		w.insert(w.a, 100+i)
		w.insert(w.b, 100+i)
	}
	w.eventually(func() error { return w.equal(w.b) })
	head := w.head()
	w.eventually(func() error { return w.acked(head) })
	w.faults.CrashAt(w.faults.Steps() + 1)
	if _, err := stop(); err != nil && !errors.Is(err, connectortest.ErrCrash) {
		w.t.Fatal(err)
	}
	w.withoutFaults()
}

// files returns the segments on disk.
func (w *spoolWorld) files() (paths []string) {
	w.t.Helper()
	err := filepath.WalkDir(w.spool, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".lane") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return paths
}

func TestPausedTableKeepsItsChangesThroughACrashWhileTheSourceForgetsThem(t *testing.T) {
	w := newSpoolWorld(t)
	w.pauseA(50)
	w.refused.Store(false)
	s := w.once()
	for _, n := range []schema.Name{w.a, w.b} {
		if err := w.equal(n); err != nil {
			t.Error(err)
		}
	}
	for _, table := range s.Tables {
		if table.RowsCopied > 0 {
			t.Errorf("%s was copied again", table.Table)
		}
	}
	if again := w.events("copy_again"); len(again) > 0 {
		t.Errorf("copied again: %v", again)
	}
	w.once()
	if files := w.files(); len(files) > 0 {
		t.Errorf("what was applied stays on disk: %v", files)
	}
}

func TestPausedTableGoesOnInTheSameSession(t *testing.T) {
	w := newSpoolWorld(t)
	w.limits = func(l *Limits) { l.RetryPaused = 1 }
	w.insert(w.a, 1)
	w.once()
	opened := w.faults.Count(connectortest.CallStream)
	w.refused.Store(true)
	stop := w.follow()
	w.insert(w.a, 2)
	w.eventually(func() error { return w.hasPhase(w.a, Paused) })
	w.insert(w.a, 3)
	w.refused.Store(false)
	w.eventually(func() error { return w.equal(w.a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	if n := w.faults.Count(connectortest.CallStream) - opened; n != 1 {
		t.Errorf("the stream was opened %d times", n)
	}
}

func TestSlowTableDoesNotStopTheReader(t *testing.T) {
	w := newSpoolWorld(t)
	w.limits = func(l *Limits) { l.LaneBytes = 2000 }
	w.insert(w.a, 1)
	w.once()
	w.slow = make(chan struct{})
	stop := w.follow()
	for i := range 200 {
		w.insert(w.a, 100+i)
		w.insert(w.b, 100+i)
	}
	w.eventually(func() error { return w.equal(w.b) })
	head := w.head()
	w.eventually(func() error { return w.acked(head) })
	close(w.slow)
	w.eventually(func() error { return w.equal(w.a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedOrLostSpoolMeansANewCopyOfItsTableAlone(t *testing.T) {
	for name, harm := range map[string]func(w *spoolWorld) error{
		"a byte": func(w *spoolWorld) error {
			path := w.files()[0]
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text[len(text)/2] ^= 1
			return os.WriteFile(path, text, 0o600)
		},
		"a file": func(w *spoolWorld) error { return os.Remove(w.files()[0]) },
		"all":    func(w *spoolWorld) error { return os.RemoveAll(w.spool) },
		"the list": func(w *spoolWorld) error {
			return w.store.SaveSegments(w.t.Context(), nil)
		},
		"the state": func(w *spoolWorld) (err error) {
			w.store, err = state.Open(w.t.Context(), w.t.TempDir()+"/state.db")
			if err == nil {
				w.t.Cleanup(func() { w.store.Close() })
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSpoolWorld(t)
			w.pauseA(5)
			if err := harm(w); err != nil {
				t.Fatal(err)
			}
			w.refused.Store(false)
			s := w.once()
			for _, n := range []schema.Name{w.a, w.b} {
				if err := w.equal(n); err != nil {
					t.Error(err)
				}
			}
			if s.Tables[0].RowsCopied == 0 || s.Tables[1].RowsCopied > 0 {
				t.Errorf("a was to be copied, b not: %+v", s.Tables)
			}
			if again := w.events("copy_again"); len(again) != 1 || !strings.Contains(again[0], "spool") {
				t.Errorf("the events do not say why: %v", again)
			}
		})
	}
}

// lostListStore saves the first list of segments that names any and loses the answer. After that it takes only an empty
// one.
type lostListStore struct {
	Store
	lost atomic.Bool
}

func (s *lostListStore) SaveSegments(ctx context.Context, list []state.Segment) error {
	err := errors.New("connection lost before the answer")
	if len(list) == 0 {
		return s.Store.SaveSegments(ctx, list)
	}
	if s.lost.CompareAndSwap(false, true) {
		err = errors.Join(err, s.Store.SaveSegments(ctx, list))
	}
	return err
}

func TestListWhoseAnswerWasLostNamesNoFileThatIsGone(t *testing.T) {
	w := newSpoolWorld(t)
	w.limits = func(l *Limits) { l.RetryPaused = 1 }
	w.insert(w.a, 1)
	w.once()
	store := &lostListStore{Store: w.store}
	change := w.change
	w.change = func(o *Options) {
		change(o)
		o.Store = store
	}
	w.refused.Store(true)
	stop := w.follow()
	w.insert(w.a, 2)
	w.eventually(func() error {
		if !store.lost.Load() {
			return errors.New("no list was saved")
		}
		return nil
	})
	w.refused.Store(false)
	w.eventually(func() error { return w.equal(w.a) })
	w.eventually(func() error {
		if files := w.files(); len(files) > 0 {
			return fmt.Errorf("still there: %v", files)
		}
		return nil
	})
	listed, err := w.store.Segments(t.Context())
	if err != nil || len(listed) > 0 {
		t.Errorf("the state lists %v, whose files are gone (%v)", listed, err)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.once()
	if again := w.events("copy_again"); len(again) > 0 {
		t.Errorf("copied again: %v", again)
	}
}

func TestTableThatFillsTheSpoolIsDetachedForTheSakeOfAHealthyOne(t *testing.T) {
	w := newSpoolWorld(t)
	w.limits = func(l *Limits) { l.LaneMemory, l.SpoolBytes = 0, 6000 }
	w.insert(w.a, 1)
	w.insert(w.b, 1)
	w.once()
	w.refused.Store(true)
	stop := w.follow()
	for i := range 200 {
		w.insert(w.a, 100+i)
		w.insert(w.b, 100+i)
	}
	w.eventually(func() error { return w.equal(w.b) })
	w.eventually(func() error {
		if len(w.events("detached")) != 1 {
			return fmt.Errorf("events: %v", w.events("detached"))
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.refused.Store(false)
	if s := w.once(); s.Tables[0].RowsCopied != 201 || s.Tables[1].RowsCopied != 0 {
		t.Errorf("a was to be copied, b not: %+v", s.Tables)
	}
	if err := w.equal(w.a); err != nil {
		t.Error(err)
	}
}

// slowWorld is tables of which the sink writes only some rows a second.
func slowWorld(t *testing.T, writers int, slow ...string) *clocked {
	c := newClocked(t)
	c.writers, c.spool = writers, t.TempDir()
	c.delay(func(n schema.Name, _ int) time.Duration {
		if slices.Contains(slow, n.Table) {
			return time.Second
		}
		return time.Millisecond
	})
	return c
}

func narrowSpool(l *Limits) {
	l.LaneMemory, l.SpoolBytes, l.BatchRows, l.RetryPaused, l.FloorEvery = 0, 8000, 5, time.Hour, time.Second
}

func TestTableThatIsAppliedTooSlowlyIsDetachedForTheSakeOfAHealthyOne(t *testing.T) {
	for _, writers := range []int{1, 4} {
		t.Run(fmt.Sprintf("writers=%d", writers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := slowWorld(t, writers, "a")
				a, b := c.table("a"), c.table("b")
				stop := c.run(narrowSpool)
				c.await("both stream", func() bool { return c.streaming(a, b) })
				for id := range 400 {
					c.insert(id, a, b)
				}
				c.await("b is complete", func() bool { return c.equal(b) })
				stop()
				if given := c.events("detached"); !slices.Equal(given, []string{"a"}) {
					t.Errorf("detached: %v, want a", given)
				}
				c.delay(func(schema.Name, int) time.Duration { return 0 })
				stop = c.run(func(l *Limits) { narrowSpool(l); l.RetryPaused = time.Second })
				c.await("a is copied anew", func() bool { return c.equal(a) })
				stop()
			})
		})
	}
}

func TestReaderWaitsWhenAllTablesAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := []string{"a", "b", "c", "d"}
		c := slowWorld(t, 4, names...)
		var tables []schema.Name
		for _, n := range names {
			tables = append(tables, c.table(n))
		}
		stop := c.run(narrowSpool)
		c.await("all stream", func() bool { return c.streaming(tables...) })
		for id := range 200 {
			c.insert(id, tables...)
		}
		c.await("all are complete", func() bool { return c.equal(tables...) })
		stop()
		if given := append(c.events("detached"), c.events("copy_again")...); len(given) > 0 {
			t.Errorf("given up: %v", given)
		}
	})
}

func TestReaderWaitsForASlowTableThatHoldsBackNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := slowWorld(t, 4, "a")
		a := c.table("a")
		stop := c.run(narrowSpool)
		c.await("it streams", func() bool { return c.streaming(a) })
		for id := range 400 {
			c.insert(id, a)
		}
		c.await("it is complete", func() bool { return c.equal(a) })
		stop()
		if given := append(c.events("detached"), c.events("copy_again")...); len(given) > 0 {
			t.Errorf("given up: %v", given)
		}
	})
}

func TestDetachedTableWithChangedSettingsIsNotTakenUpWhereItStood(t *testing.T) {
	w := newSpoolWorld(t)
	w.limits = func(l *Limits) { l.LaneMemory, l.SpoolBytes = 0, 6000 }
	w.insert(w.a, 1)
	w.insert(w.b, 1)
	w.once()
	change := w.change
	w.change = func(o *Options) {
		change(o)
		o.Select = func(t *schema.Table) (Settings, bool) {
			if t.Name == w.a {
				return Settings{Destination: schema.Name{Schema: "public", Table: "elsewhere"}}, true
			}
			return Settings{Destination: t.Name}, true
		}
	}
	stop := w.follow()
	for i := range 200 {
		w.insert(w.a, 100+i)
		w.insert(w.b, 100+i)
	}
	w.eventually(func() error { return w.equal(w.b) })
	if _, err := stop(); err != nil || len(w.events("detached")) != 1 {
		t.Fatalf("run: %v, detached: %v", err, w.events("detached"))
	}
	w.change = change
	w.once()
	if err := w.equal(w.a); err != nil {
		t.Error(err)
	}
}

func TestReaderWaitsWhenNothingElseWouldBeHeldBack(t *testing.T) {
	w := newSpoolWorld(t)
	w.limits = func(l *Limits) { l.LaneMemory, l.LaneBytes, l.SpoolBytes, l.RetryPaused = 0, 1000, 6000, 1 }
	w.change = func(change func(*Options)) func(*Options) {
		return func(o *Options) {
			change(o)
			o.Select = func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, t.Name == w.a }
		}
	}(w.change)
	w.insert(w.a, 1)
	w.once()
	w.refused.Store(true)
	stop := w.follow()
	for i := range 300 {
		w.insert(w.a, 100+i)
	}
	w.eventually(func() error { return w.hasPhase(w.a, Paused) })
	w.refused.Store(false)
	w.eventually(func() error { return w.equal(w.a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	if again := append(w.events("copy_again"), w.events("detached")...); len(again) > 0 {
		t.Errorf("it was given up: %v", again)
	}
}

func TestTableWithChangedSettingsHoldsNothingBackAndGoesOnWhenTheyAreUndone(t *testing.T) {
	w := newSpoolWorld(t)
	w.insert(w.a, 1)
	w.once()
	change := w.change
	w.change = func(o *Options) {
		change(o)
		o.Select = func(t *schema.Table) (Settings, bool) {
			if t.Name == w.a {
				return Settings{Destination: schema.Name{Schema: "public", Table: "elsewhere"}}, true
			}
			return Settings{Destination: t.Name}, true
		}
	}
	stop := w.follow()
	w.insert(w.a, 2)
	w.insert(w.b, 2)
	w.eventually(func() error { return w.equal(w.b) })
	head := w.head()
	w.eventually(func() error { return w.acked(head) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.change = change
	if s := w.once(); s.Tables[0].RowsCopied != 0 {
		t.Errorf("copied again: %+v", s.Tables[0])
	}
	if err := w.equal(w.a); err != nil {
		t.Error(err)
	}
}

func TestTableWhoseChangesOutgrowTheSpoolInTwoCopiesWaitsForAPersonWithTheArithmetic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.table("public", "b")
		w.insert(b, 0)
		w.once()
		a := w.table("public", "a")
		for id := range 50 {
			w.insert(a, id)
		}
		w.hookSink(func(ctx context.Context, target *connector.Target) error {
			if target.Table.Name == a {
				time.Sleep(10 * time.Second) // a chunk
			}
			return nil
		})
		hook := w.change
		w.change = func(o *Options) {
			hook(o)
			o.Limits.LaneMemory, o.Limits.SpoolBytes, o.Limits.ChunkRows, o.Limits.TableFailures, o.Limits.RetryPaused = 0, 6000, 10, 100, time.Second
		}
		stop := w.follow()
		for id := 100; w.saved(a).Phase != string(Paused); id++ {
			if id > 5000 {
				t.Fatalf("it is copied for ever: %+v", w.saved(a))
			}
			w.commit(func(tx *connectortest.Txn) error {
				key := fmt.Sprint(id % 50)
				return tx.Update(a, connectortest.Row{key}, connectortest.Row{key, fmt.Sprint(id), "big"})
			})
			w.insert(b, id)
			time.Sleep(100 * time.Millisecond)
		}
		r := w.saved(a)
		if !strings.Contains(r.Reason, "2 times now") || !strings.Contains(r.Reason, "bytes of changes came in") || !r.RetryAt.IsZero() {
			t.Errorf("the state says %+v", r)
		}
		time.Sleep(time.Minute)
		if n := len(w.events("copying")); n != 2+1 {
			t.Errorf("%d copies of both tables, want 1 and 2", n)
		}
		w.eventually(func() error { return w.equal(b) })
		resumed := w.ask(state.Resume, a) // it changes less now
		time.Sleep(10 * time.Minute)
		if c := w.outcome(resumed); c.Failed {
			t.Error(c.Outcome)
		}
		if err := w.equal(a); err != nil {
			t.Error(err)
		}
		if _, err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}
