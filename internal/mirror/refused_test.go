package mirror

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// refuser makes a source's tables ones that cannot be mirrored.
type refuser struct {
	mu      sync.Mutex
	refused map[schema.Name]string
	rounds  int           // of discovery
	hold    chan struct{} // views are not taken before it is closed; nil: at once
}

type forbiddingSource struct {
	connector.Source
	connector.Finder
	by *refuser
}

func (s forbiddingSource) Tables(ctx context.Context) ([]*schema.Table, error) {
	tables, err := s.Source.Tables(ctx)
	s.by.mu.Lock()
	defer s.by.mu.Unlock()
	s.by.rounds++
	for i, t := range tables {
		if why := s.by.refused[t.Name]; why != "" {
			refused := *t
			refused.Refused = why
			tables[i] = &refused
		}
	}
	return tables, err
}

func (s forbiddingSource) Snapshot(ctx context.Context, t *schema.Table) (connector.Snapshot, error) {
	if s.by.hold != nil {
		select {
		case <-s.by.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return s.Source.Snapshot(ctx, t)
}

// refuse sets why a table is refused from now on, "": it is not.
func (r *refuser) refuse(name schema.Name, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused[name] = why
}

func (r *refuser) discovered() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rounds
}

// refusing has the mirror's source refuse tables.
func (w *world) refusing() *refuser {
	r := &refuser{refused: map[schema.Name]string{}}
	w.change = func(o *Options) {
		o.Limits.RetryPaused = time.Millisecond
		open := o.Source
		o.Source = func(ctx context.Context, id string) (connector.Source, error) {
			s, err := open(ctx, id)
			if err != nil {
				return nil, err
			}
			return forbiddingSource{s, s.(connector.Finder), r}, nil
		}
	}
	return r
}

// seen waits until discovery has seen, and acted on, what is so now.
func (w *world) seen(r *refuser) {
	w.t.Helper()
	before := r.discovered()
	w.eventually(func() error {
		if r.discovered() < before+3 {
			return errors.New("discovery does not look")
		}
		return nil
	})
}

// wantCopies waits until a table streams, equal, from its nth copy.
func (w *world) wantCopies(name schema.Name, n int) {
	w.t.Helper()
	w.awaitPhase(name, Streaming)
	w.eventually(func() error { return w.equal(name) })
	if now := w.saved(name).Copy; now != n {
		w.t.Errorf("the table has been copied %d times, want %d", now, n)
	}
}

func TestStreamingTableThatWasRefusedForAWhileIsCopiedAgain(t *testing.T) {
	w := newWorld(t)
	r := w.refusing()
	a := w.table("public", "a")
	w.insert(a, 1)
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	r.refuse(a, "it is not published; publish it")
	w.awaitPhase(a, Refused)
	if was := w.saved(a); was.Reason != "it is not published; publish it" {
		t.Errorf("the state says %+v", was)
	}
	w.insert(a, 2)
	r.refuse(a, "")
	w.wantCopies(a, 2)
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestPausedTableThatWasRefusedForAWhileIsCopiedAgainWhenItIsResumed(t *testing.T) {
	w := newWorld(t)
	r := w.refusing()
	a := w.table("public", "a")
	w.insert(a, 1)
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.do(state.Pause, a)
	r.refuse(a, "it is not published; publish it")
	w.seen(r)
	r.refuse(a, "")
	w.seen(r)
	if now := w.saved(a); now.Phase != string(Paused) || now.PausedBy != "person" {
		t.Errorf("what a person paused is %+v", now)
	}
	if n := len(w.events("copy_again")); n != 1 {
		t.Errorf("told %d times that it needs a new copy", n)
	}
	w.insert(a, 2)
	w.do(state.Resume, a)
	w.wantCopies(a, 2)
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestCopyOfATableThatWasRefusedMeanwhileIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	r := w.refusing()
	a := w.table("public", "a")
	w.insert(a, 1)
	r.hold = make(chan struct{})
	stop := w.follow()
	w.awaitPhase(a, Copying)
	r.refuse(a, "it is not published; publish it")
	w.seen(r)
	r.refuse(a, "")
	close(r.hold)
	w.wantCopies(a, 2)
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestCopyOfWhichChangesWereGivenUpIsNotGoneOnWith(t *testing.T) {
	for name, blocked := range map[string]int{"before its plan was kept": 0, "after": 5} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			a := w.table("public", "a")
			w.twentyRows(a)
			var loads atomic.Int32
			reached, goOn := make(chan struct{}), make(chan struct{})
			w.hookSink(func(context.Context, *connector.Target) error {
				switch n := int(loads.Add(1)); {
				case n == blocked:
					close(reached)
					<-goOn
				case n == 10: // a row that is copied already
					w.commit(func(tx *connectortest.Txn) error { return tx.Delete(a, connectortest.Row{"1"}) })
				}
				return nil
			})
			hooked := w.change
			r := w.refusing()
			refusing := w.change
			w.inChunks(hooked, refusing, func(o *Options) { o.Limits.TableFailures = 3 })
			if blocked == 0 {
				r.hold = make(chan struct{})
			}
			stop := w.follow()
			w.awaitPhase(a, Copying)
			if blocked > 0 {
				<-reached
			}
			r.refuse(a, "it is not published; publish it")
			w.seen(r)
			r.refuse(a, "")
			if blocked == 0 {
				close(r.hold)
			} else {
				close(goOn)
			}
			w.wantCopies(a, 2)
			if _, err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
