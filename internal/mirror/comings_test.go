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
	"github.com/sluicehq/sluice/schema"
)

// awaitPhase waits until the state holds a table of this name in one of these phases.
func (w *world) awaitPhase(name schema.Name, phases ...Phase) {
	w.t.Helper()
	w.eventually(func() error {
		tables, err := w.store.Tables(w.t.Context())
		for _, r := range tables {
			for _, p := range phases {
				if r.Name == name && r.Phase == string(p) {
					return err
				}
			}
		}
		return fmt.Errorf("%s is in none of the phases %v: %+v", name, phases, tables)
	})
}

func TestTableDroppedAndMadeAgainIsCopiedBehindTheOldOne(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.awaitPhase(b, Streaming)
	if err := w.db.DropTable(a); err != nil {
		t.Fatal(err)
	}
	w.table("public", "a")
	w.insert(a, 7)
	w.eventually(func() error { return w.equal(a) })
	w.insert(a, 8)
	w.insert(b, 2)
	w.eventually(func() error { return w.equal(a) })
	w.eventually(func() error { return w.equal(b) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestNewTableDoesNotTakeTheDestinationOfAnother(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{Destination: a}, true }
	}
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	b := w.table("public", "b")
	w.insert(b, 2)
	w.awaitPhase(b, Refused)
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestCopyCutOffLeavesNoChunksInTheSink(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	for id := range 12 {
		w.insert(a, id)
		w.insert(b, id)
	}
	w.change = func(o *Options) { o.Limits.ChunkRows = 1 }
	landing := w.faults.Hang(connectortest.CallReady, 0) // until both are loaded
	chunks := func() (n int) {
		for key := range w.sink.Entries("shop") {
			if strings.HasPrefix(key, chunkPrefix) {
				n++
			}
		}
		return n
	}
	stop := w.follow()
	w.eventually(func() error {
		if n := chunks(); n < 24 {
			return fmt.Errorf("%d chunks are loaded", n)
		}
		if landing.Happened() == 0 {
			return errors.New("no copy is about to be put in place")
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.faults.Clear()
	w.commit(func(tx *connectortest.Txn) error { return tx.Truncate(a) })
	w.change = func(o *Options) {
		o.Select = func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, t.Name == a }
	}
	w.once()
	if n := chunks(); n != 0 {
		t.Errorf("%d entries of chunks are left: %v", n, w.sink.Entries("shop"))
	}
}

// refusingSource finds a table unfit from some moment on.
type refusingSource struct {
	connector.Source
	table   schema.Name
	refused *atomic.Bool
}

func (s refusingSource) Tables(ctx context.Context) ([]*schema.Table, error) {
	found, err := s.Source.Tables(ctx)
	for i, t := range found {
		if t.Name == s.table && s.refused.Load() {
			unfit := *t
			unfit.Refused = "it is unlogged"
			found[i] = &unfit
		}
	}
	return found, err
}

func TestTableThatBecomesUnfitIsNotShownAsStreaming(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	var refused atomic.Bool
	w.change = func(o *Options) {
		source := o.Source
		o.Source = func(ctx context.Context, id string) (connector.Source, error) {
			s, err := source(ctx, id)
			return refusingSource{s, a, &refused}, err
		}
	}
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	refused.Store(true)
	w.awaitPhase(a, Dropped)
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	refused.Store(false)
	w.insert(a, 2)
	w.once()
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func TestTableKeepsItsDestinationWhenAnotherIsConfiguredForIt(t *testing.T) {
	w := newWorld(t)
	z := w.table("public", "z")
	w.insert(z, 1)
	w.once()
	a := w.table("public", "a")
	w.insert(a, 7)
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{Destination: z}, true }
	}
	w.insert(z, 2)
	s := w.once()
	if s.Tables[0].Phase != string(Refused) || s.Tables[1].Phase != string(Streaming) || s.Tables[1].RowsCopied != 0 {
		t.Errorf("summary: %+v", s.Tables)
	}
	if err := w.equal(z); err != nil {
		t.Error(err)
	}
}

func TestTableThatTheLogTellsOfJoinsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.db.PublishAll = true
	a := w.table("public", "a")
	w.insert(a, 1)
	w.change = func(o *Options) { o.Limits.DiscoverEvery = time.Hour }
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	b := w.table("public", "b")
	w.insert(b, 1)
	w.eventually(func() error { return w.equal(b) })
	w.awaitPhase(b, Streaming)
	w.insert(b, 2)
	w.eventually(func() error { return w.equal(b) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestLogOfTablesNotSelectedCausesNoDiscovery(t *testing.T) {
	w := newWorld(t)
	w.db.PublishAll = true
	a, other := w.table("public", "a"), w.table("public", "other")
	w.insert(a, 1)
	w.change = func(o *Options) {
		o.Limits.DiscoverEvery = time.Hour
		o.Select = func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, t.Name == a }
	}
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	before := w.faults.Count(connectortest.CallTables)
	w.insert(other, 1)
	w.insert(a, 2)
	w.eventually(func() error { return w.equal(a) })
	if n := w.faults.Count(connectortest.CallTables) - before; n != 0 {
		t.Errorf("the source was asked for its tables %d times", n)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestRefusedTableIsTakenInWhenTheReasonIsGone(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once() // a has a copy from before it was refused
	var refused atomic.Bool
	refused.Store(true)
	w.change = func(o *Options) {
		source := o.Source
		o.Source = func(ctx context.Context, id string) (connector.Source, error) {
			s, err := source(ctx, id)
			return refusingSource{s, a, &refused}, err
		}
	}
	stop := w.follow()
	w.awaitPhase(a, Refused)
	w.awaitPhase(b, Streaming)
	w.insert(a, 2)
	refused.Store(false)
	w.awaitPhase(a, Streaming)
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) })
	s, err := stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := s.Tables[1].RowsCopied; n != 0 {
		t.Errorf("%d rows of another table were copied again", n)
	}
}

func TestPausedTableIsTriedAgainWhenItHasChanged(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	var fixed atomic.Bool
	w.hookSink(func(context.Context, *connector.Target) error {
		if fixed.Load() {
			return nil
		}
		return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("a column is missing")}
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.RetryPaused = time.Hour
	}
	stop := w.follow()
	w.awaitPhase(a, Paused)
	fixed.Store(true)
	if _, err := w.db.AddColumn(a, connectortest.Text("missing")); err != nil {
		t.Fatal(err)
	}
	w.awaitPhase(a, Streaming)
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestTableAddedToTheSelectionJoinsAtTheNextStart(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.change = func(o *Options) {
		o.Select = func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, t.Name == a }
	}
	w.once()
	w.change = nil
	w.insert(a, 2)
	w.insert(b, 2)
	s := w.once()
	if s.Tables[0].RowsCopied != 0 || s.Tables[1].RowsCopied != 2 || s.Tables[1].Phase != string(Streaming) {
		t.Errorf("summary: %+v", s.Tables)
	}
	for _, name := range []schema.Name{a, b} {
		if err := w.equal(name); err != nil {
			t.Error(err)
		}
	}
}
