package mirror

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// reloading makes the next run take selections from the returned function.
func (w *world) reloading(first func(*schema.Table) (Settings, bool)) (reload func(func(*schema.Table) (Settings, bool))) {
	reloads := make(chan Selector)
	w.change = func(o *Options) { o.Select, o.Reloads = first, reloads }
	return func(sel func(*schema.Table) (Settings, bool)) {
		w.t.Helper()
		select {
		case reloads <- Selector{Select: sel}:
		case <-w.t.Context().Done():
		}
	}
}

// selecting selects these tables, all into their own names but for those of moved.
func selecting(moved map[schema.Name]schema.Name, names ...schema.Name) func(*schema.Table) (Settings, bool) {
	return func(t *schema.Table) (Settings, bool) {
		for _, n := range names {
			if n == t.Name {
				destination := n
				if to, ok := moved[n]; ok {
					destination = to
				}
				return Settings{Destination: destination}, true
			}
		}
		return Settings{}, false
	}
}

func TestReloadedSelectionTakesInAndLeavesOutWithoutTouchingTheOthers(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.table("public", "a"), w.table("public", "b"), w.table("public", "c")
	for _, name := range []schema.Name{a, b, c} {
		w.insert(name, 1)
	}
	reload := w.reloading(selecting(nil, a, b))
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.awaitPhase(b, Streaming)
	reload(selecting(nil, a, c))
	w.awaitPhase(c, Streaming)
	w.awaitPhase(b, Dropped)
	for _, name := range []schema.Name{a, b, c} {
		w.insert(name, 2)
	}
	w.eventually(func() error { return errors.Join(w.equal(a), w.equal(c)) })
	if n := len(w.sink.Rows(b)); n != 1 {
		t.Errorf("%d rows of a table that was left out, want those that were there", n)
	}
	reload(selecting(nil, a, b, c))
	w.eventually(func() error { return w.equal(b) })
	if n := w.faults.Count(connectortest.CallClaim); n != 1 {
		t.Errorf("%d sessions, want one", n)
	}
	s, err := stop()
	if err != nil || !s.InOrder() || s.Tables[0].RowsCopied != 1 {
		t.Errorf("%v, %+v", err, s.Tables)
	}
}

func TestSettingsChangedWhileRunningPauseTheTableUntilTheyAreUndoneOrAccepted(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	reload := w.reloading(selecting(nil, a, b))
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.awaitPhase(b, Streaming)
	elsewhere := schema.Name{Schema: "public", Table: "elsewhere"}
	moved := selecting(map[schema.Name]schema.Name{a: elsewhere}, a, b)

	reload(moved)
	w.awaitPhase(a, Paused)
	if r := w.saved(a); r.PausedBy != "config" || !strings.HasPrefix(r.Reason, "config_changed: ") || !strings.Contains(r.Reason, "public.elsewhere") {
		t.Errorf("the state says %+v", r)
	}
	w.insert(a, 2)
	w.insert(b, 2)
	w.eventually(func() error { return w.equal(b) })
	if n := len(w.sink.Rows(a)); n != 1 {
		t.Errorf("%d rows of a table whose settings differ, want 1", n)
	}

	reload(selecting(nil, a, b)) // undone: it goes on without a copy
	w.eventually(func() error { return w.equal(a) })

	reload(moved)
	w.awaitPhase(a, Paused)
	w.do(state.Resync, a)
	w.insert(a, 3)
	w.eventually(func() error {
		if n := len(w.sink.Rows(elsewhere)); n != 3 {
			return fmt.Errorf("%d rows at the new destination, want 3", n)
		}
		return nil
	})
	s, err := stop()
	if err != nil || !s.InOrder() || s.Tables[0].RowsCopied != 2 {
		t.Errorf("%v, %+v", err, s.Tables) // those of the second copy
	}
	if n := w.faults.Count(connectortest.CallClaim); n != 1 {
		t.Errorf("%d sessions, want one", n)
	}
}

func TestSettingsUndoneInARunThatBeganWithThemGoOnWithoutACopy(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	reload := w.reloading(selecting(map[schema.Name]schema.Name{a: {Schema: "public", Table: "elsewhere"}}, a))
	stop := w.follow()
	w.awaitPhase(a, Paused)
	w.insert(a, 2)
	reload(selecting(nil, a))
	w.eventually(func() error { return w.equal(a) })
	if s, err := stop(); err != nil || s.Tables[0].RowsCopied != 0 {
		t.Errorf("%v, %+v", err, s.Tables)
	}
}

func TestSelectionTakenWhileTheSourceIsAwayHoldsInTheNextSession(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	reload := w.reloading(selecting(nil, a))
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.faults.Refuse(connectortest.CallTables, 1, connector.Unavailable)
	reload(selecting(nil, a, b))
	w.eventually(func() error { return w.equal(b) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestSelectionThatIsTakenBackWhileItsTableIsBusyLetsTheTableGoOn(t *testing.T) {
	a := &table{id: "a", phase: Streaming, queued: true, lane: lane.New(lane.NewBudget(1)), quarantine: apply.NewQuarantine("a", false)}
	a.planned = planned{table: &schema.Table{ID: "a"}, target: &connector.Target{Name: schema.Name{Table: "a"}}}
	was, moved := a.planned, a.planned
	moved.target = &connector.Target{Name: schema.Name{Table: "b"}}
	s := &session{
		ready: newReadyQueue(1), joins: newQueue(), tables: map[schema.ID]*table{"a": a}, changes: map[*table]*planned{a: &moved},
	}
	if err := s.settle(t.Context()); err != nil || !a.isHalted() {
		t.Fatalf("%v; it is to wait for who has the table", err)
	}
	s.changes[a] = &was
	if err := s.settle(t.Context()); err != nil || a.isHalted() || len(s.changes) != 0 {
		t.Errorf("%v, halted %v, %d changes left", err, a.isHalted(), len(s.changes))
	}
}

func TestSelectionThatComesWhileOneIsActedOnIsNotLost(t *testing.T) {
	a, before, after := &table{}, &planned{}, &planned{}
	s := &session{changes: map[*table]*planned{a: after}}
	s.settled(a, before)
	if s.changes[a] != after {
		t.Error("the later selection is forgotten")
	}
	s.settled(a, after)
	if len(s.changes) != 0 {
		t.Error("a selection that was acted on stays")
	}
}

func TestTableThatTwoFoundAtOnceIsTakenInOnce(t *testing.T) {
	a := &table{id: "a", phase: Copying}
	s := &session{tables: map[schema.ID]*table{"a": a}}
	if err := s.takeIn(t.Context(), planned{table: &schema.Table{ID: "a"}}); err != nil || s.tables["a"] != a {
		t.Errorf("%v; another one took the place of the table", err)
	}
}
