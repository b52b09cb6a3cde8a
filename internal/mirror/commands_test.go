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
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// ask records a command for a table, and returns its number.
func (w *world) ask(kind state.CommandKind, name schema.Name) int64 {
	w.t.Helper()
	numbers, err := w.store.AddCommands(w.t.Context(), state.Command{
		Kind: kind, Table: w.saved(name).ID, Name: name, AskedAt: time.Now(), AskedBy: "the test",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return numbers[0]
}

// outcome waits until a command is done.
func (w *world) outcome(number int64) state.Command {
	w.t.Helper()
	var done state.Command
	w.eventually(func() error {
		commands, err := w.store.CommandsFrom(w.t.Context(), number)
		if err != nil {
			return err
		}
		if done = commands[0]; done.DoneAt.IsZero() {
			return fmt.Errorf("not done: %+v", done)
		}
		return nil
	})
	return done
}

// do gives a command to the running mirror and wants it fulfilled.
func (w *world) do(kind state.CommandKind, name schema.Name) state.Command {
	w.t.Helper()
	c := w.outcome(w.ask(kind, name))
	if c.Failed {
		w.t.Fatalf("%s %s: %s", kind, name, c.Outcome)
	}
	return c
}

func TestWhatAPersonPausedStaysSoThroughARestartAndGoesOnWithoutANewCopy(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.change = func(o *Options) { o.Limits.RetryPaused = time.Millisecond }
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.do(state.Pause, a)
	if r := w.saved(a); r.Phase != string(Paused) || r.PausedBy != "person" || !strings.Contains(r.Reason, "the test") || r.Remedy == "" {
		t.Errorf("the state says %+v", r)
	}
	paused := w.sink.Rows(a)
	w.insert(a, 2)
	w.insert(b, 1)
	w.eventually(func() error { return w.equal(b) })
	w.faults.Refuse(connectortest.CallNext, 1, connector.Unavailable) // a new session
	w.insert(b, 2)
	w.eventually(func() error { return w.equal(b) })
	if s, err := stop(); err != nil || s.InOrder() {
		t.Fatalf("%v, in order %v", err, s.InOrder())
	}
	w.insert(a, 3)
	stop = w.follow()
	w.insert(b, 3)
	w.eventually(func() error { return w.equal(b) })
	if now := w.sink.Rows(a); len(now) != len(paused) {
		t.Errorf("rows of a paused table: %v, were %v", now, paused)
	}
	w.do(state.Resume, a)
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
	if s, err := stop(); err != nil || !s.InOrder() || s.Tables[0].RowsCopied != 0 || s.Tables[0].ChangesApplied != 2 {
		t.Errorf("%v, %+v", err, s.Tables)
	}
}

func TestPauseIsDoneOnlyWhenNothingIsBeingWrittenAndKeepsNoOtherWaiting(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.once()
	writing, goOn := make(chan struct{}), make(chan struct{})
	w.hookSink(func(context.Context, *connector.Target) error {
		close(writing)
		<-goOn
		return nil
	})
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.insert(a, 1)
	<-writing
	number := w.ask(state.Pause, a)
	w.do(state.Pause, b)
	w.do(state.Resume, b)
	commands, err := w.store.CommandsFrom(t.Context(), number)
	if err != nil || commands[0].AcceptedAt.IsZero() || !commands[0].DoneAt.IsZero() {
		t.Errorf("not accepted, or done while a batch is being written: %v, %+v", err, commands)
	}
	close(goOn)
	w.outcome(number)
	if err := w.equal(a); err != nil {
		t.Errorf("the batch that was under way: %v", err)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestPauseStopsACopyAndResumeMakesIt(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	for id := range 20 {
		w.insert(a, id)
	}
	var free atomic.Bool
	w.hookSink(func(ctx context.Context, target *connector.Target) error {
		if target.Table.Name != a || free.Load() {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	stop := w.follow()
	w.awaitPhase(a, Copying)
	c := w.do(state.Pause, a)
	if !strings.Contains(c.Outcome, "copies it from the start") {
		t.Errorf("outcome %q", c.Outcome)
	}
	w.insert(b, 1)
	w.eventually(func() error { return w.equal(b) })
	w.insert(a, 20)
	free.Store(true)
	w.do(state.Resume, a)
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
	if n := w.faults.Count(connectortest.CallClaim); n != 1 {
		t.Errorf("%d sessions, want one", n)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestResumeTakesUpAtOnceWhatAFaultPausedAndSaysIfItPausesAgain(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.once()
	var mended atomic.Bool
	w.hookSink(func(context.Context, *connector.Target) error {
		if mended.Load() {
			return nil
		}
		return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.RetryPaused = 0
	}
	stop := w.follow()
	w.insert(a, 1)
	w.awaitPhase(a, Paused)
	if c := w.outcome(w.ask(state.Resume, a)); !c.Failed || !strings.Contains(c.Outcome, "refused") {
		t.Errorf("resume of a table whose fault is still there: %+v", c)
	}
	mended.Store(true)
	w.do(state.Resume, a)
	if r := w.saved(a); r.Failures != 0 {
		t.Errorf("%d failures are still counted", r.Failures)
	}
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestFaultPausedTableWaitsItsTimeThroughALostConnection(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.once()
	var tries atomic.Int32
	w.hookSink(func(_ context.Context, target *connector.Target) error {
		if target.Table.Name != a {
			return nil
		}
		tries.Add(1)
		return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
	})
	hook := w.change
	w.change = func(o *Options) {
		hook(o)
		o.Limits.RetryPaused = 0
	}
	stop := w.follow()
	w.insert(a, 1)
	w.awaitPhase(a, Paused)
	before := tries.Load()
	w.faults.Refuse(connectortest.CallNext, 1, connector.Unavailable)
	claims := w.faults.Count(connectortest.CallClaim)
	w.insert(b, 1)
	w.eventually(func() error {
		if w.faults.Count(connectortest.CallClaim) == claims {
			return errors.New("the connection was not lost")
		}
		return nil
	})
	w.insert(b, 2)
	w.eventually(func() error { return w.equal(b) })
	if now := tries.Load(); now != before {
		t.Errorf("tried %d times more, though only by hand", now-before)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.change = nil
	w.once() // a restart tries
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func TestCommandsToAStoppedMirrorAreCarriedOutAtItsNextStart(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.table("public", "a"), w.table("public", "b"), w.table("public", "c")
	w.once()
	pause, resync := w.ask(state.Pause, a), w.ask(state.Resync, b)
	for _, name := range []schema.Name{a, b, c} {
		w.insert(name, 1)
	}
	s := w.once()
	if s.Tables[0].Phase != string(Paused) || len(w.sink.Rows(a)) != 0 {
		t.Errorf("paused before the start: %+v, rows %v", s.Tables[0], w.sink.Rows(a))
	}
	if s.Tables[1].RowsCopied != 1 || s.Tables[2].RowsCopied != 0 {
		t.Errorf("resync before the start: %+v", s.Tables)
	}
	for _, number := range []int64{pause, resync} {
		if done := w.outcome(number); done.Failed {
			t.Errorf("outcome: %+v", done)
		}
	}
	resume := w.ask(state.Resume, a)
	s = w.once()
	if done := w.outcome(resume); done.Failed || !s.InOrder() || s.Tables[0].RowsCopied != 0 {
		t.Errorf("resume before the start: %+v, %+v", done, s.Tables)
	}
	for _, name := range []schema.Name{a, b, c} {
		if err := w.equal(name); err != nil {
			t.Error(err)
		}
	}
}

func TestResyncPutsBackWhatSomebodyChangedInTheSink(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.insert(a, 2)
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	before := w.saved(a).Copy
	w.do(state.Resync, a)
	if now := w.saved(a).Copy; now <= before {
		t.Errorf("copy %d is in place, was %d", now, before)
	}
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestResyncAcceptsChangedSettingsAndResumeDoesNot(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	elsewhere := schema.Name{Schema: "public", Table: "elsewhere"}
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{Destination: elsewhere}, true }
	}
	stop := w.follow()
	w.awaitPhase(a, Paused)
	if r := w.saved(a); r.PausedBy != "config" || !strings.HasPrefix(r.Reason, "config_changed: ") || !strings.Contains(r.Remedy, "resync") {
		t.Errorf("the state says %+v", r)
	}
	if c := w.outcome(w.ask(state.Resume, a)); !c.Failed || !strings.Contains(c.Outcome, "config_changed") {
		t.Errorf("resume: %+v", c)
	}
	w.do(state.Resync, a)
	w.insert(a, 2)
	w.eventually(func() error {
		if n := len(w.sink.Rows(elsewhere)); n != 2 {
			return fmt.Errorf("%d rows at the new destination", n)
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	if s := w.once(); !s.InOrder() || s.Tables[0].RowsCopied != 0 {
		t.Errorf("after a restart: %+v", s.Tables)
	}
}

func TestPersonsPauseOutlastsAChangeOfSettings(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.once()
	w.ask(state.Pause, a)
	w.once()
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{Destination: a, History: true}, true }
	}
	w.once()
	w.change = nil
	if s := w.once(); s.Tables[0].Phase != string(Paused) || w.saved(a).PausedBy != "person" {
		t.Errorf("%+v", s.Tables)
	}
}

func TestCommandForATableThatIsNotMirroredFails(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.once()
	number := w.ask(state.Pause, a)
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{}, false }
	}
	w.once()
	if c := w.outcome(number); !c.Failed || c.Outcome != "it is not mirrored" {
		t.Errorf("%+v", c)
	}
}

func TestCopyThatIsResumedWhileItStopsForAPauseIsMade(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	var free atomic.Bool
	stopping, goOn := make(chan struct{}), make(chan struct{})
	w.hookSink(func(ctx context.Context, _ *connector.Target) error {
		if free.Load() {
			return nil
		}
		<-ctx.Done()
		close(stopping)
		<-goOn
		return ctx.Err()
	})
	stop := w.follow()
	w.awaitPhase(a, Copying)
	w.ask(state.Pause, a)
	<-stopping
	number := w.ask(state.Resume, a)
	w.eventually(func() error {
		commands, err := w.store.CommandsFrom(t.Context(), number)
		if err == nil && commands[0].AcceptedAt.IsZero() {
			err = errors.New("not accepted")
		}
		return err
	})
	free.Store(true)
	close(goOn)
	if c := w.outcome(number); c.Failed {
		t.Error(c.Outcome)
	}
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
	if n := w.faults.Count(connectortest.CallClaim); n != 1 {
		t.Errorf("%d sessions, want one", n)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestCommandForATableThatWasSentBackWhileItWasHaltedLetsItGoOn(t *testing.T) {
	for _, kind := range []state.CommandKind{state.Resync, state.Retry} {
		s := &session{ready: newReadyQueue(1), joins: newQueue()}
		a := &table{id: "a", phase: Pending, halted: true, lane: lane.New(lane.NewBudget(1)), total: &totals{}, quarantine: apply.NewQuarantine("a", true)}
		a.planned.table = &schema.Table{ID: "a"}
		o := &order{Command: state.Command{Kind: kind, Table: "a", AcceptedAt: time.Now()}}
		if err := s.carryOut(kind)(t.Context(), o, a); err != nil {
			t.Fatal(err)
		}
		if a.isHalted() {
			t.Errorf("%s: nobody may copy the table", kind)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if next, err := s.joins.pop(ctx); next != a {
			t.Errorf("%s: the table does not wait for its copy: %v", kind, err)
		}
	}
}

func TestSeizedTableIsNotTakenUp(t *testing.T) {
	a := &table{id: "a", phase: Paused, pausedBy: byFault, retryAt: time.Now(), lane: lane.New(lane.NewBudget(1))}
	if !a.seize() {
		t.Fatal("the table cannot be seized")
	}
	if !a.takeUp(nil) || !a.inPhase(Paused) {
		t.Errorf("the table is %s while it is being given up", a.phase)
	}
}
