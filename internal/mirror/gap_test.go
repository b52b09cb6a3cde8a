package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// loseLog has tables of one row stream, and then changes them while the slot is gone.
func (w *world) loseLog(tables ...schema.Name) {
	w.t.Helper()
	for _, n := range tables {
		w.insert(n, 1)
	}
	w.once()
	w.changeUnseen(tables...)
	w.db.DropSlot()
}

// changeUnseen adds a row to each of the tables and deletes the first.
func (w *world) changeUnseen(tables ...schema.Name) {
	w.t.Helper()
	for _, n := range tables {
		w.insert(n, 2)
		w.commit(func(tx *connectortest.Txn) error { return tx.Delete(n, connectortest.Row{"1"}) })
	}
}

// waits reports an error if a table is not one that a gap has paused, with rows that stand still.
func (w *world) waits(name schema.Name) error {
	r := w.saved(name)
	switch {
	case r.Phase != string(Paused) || r.PausedBy != byGap || !strings.Contains(r.Reason, "gap: its changes since") || !strings.Contains(r.Remedy, "sluice resync"):
		return fmt.Errorf("%s does not wait: %+v", name, r)
	case len(w.sink.Rows(name)) != 1:
		return fmt.Errorf("%s holds %v", name, w.sink.Rows(name))
	}
	return nil
}

// onceGap runs the mirror and wants it to end with a gap.
func (w *world) onceGap() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	if _, err := Run(ctx, w.options(true)); connector.KindOf(err) != connector.Gap {
		w.t.Fatalf("run: %v, want a gap", err)
	}
}

func TestTablesThatLackChangesWaitForAPersonAndNewOnesJoin(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.loseLog(a, b)
	c := w.table("public", "c")
	w.insert(c, 1)
	for range 2 { // and through a restart
		if s := w.once(); s.InOrder() {
			t.Errorf("in order: %+v", s.Tables)
		}
		if err := errors.Join(w.waits(a), w.waits(b), w.equal(c)); err != nil {
			t.Fatal(err)
		}
	}
	stop := w.follow()
	if done := w.outcome(w.ask(state.Resume, a)); !done.Failed || !strings.Contains(done.Outcome, "gap") {
		t.Errorf("resume: %+v", done)
	}
	w.do(state.Resync, a)
	w.awaitPhase(a, Streaming)
	w.insert(c, 2)
	w.eventually(func() error { return errors.Join(w.equal(a), w.waits(b), w.equal(c)) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.change = func(o *Options) { o.ResyncOnGap = true }
	s := w.once()
	if err := w.equal(b); err != nil || s.Tables[0].RowsCopied != 0 {
		t.Errorf("on_gap: resync set afterwards: %v, %+v", err, s.Tables)
	}
}

func TestSlotThatIsDroppedWhileTheMirrorRunsLeavesItRunning(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.db.DropSlot()
	w.awaitPhase(a, Paused)
	w.changeUnseen(a)
	if err := w.waits(a); err != nil {
		t.Error(err)
	}
	w.do(state.Resync, a)
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) })
	if s, err := stop(); err != nil || !s.InOrder() {
		t.Errorf("%v, %+v", err, s)
	}
}

func TestSecondGapDoesNotTakeUpWhatWaitsSinceTheFirst(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.loseLog(a, b)
	w.once()
	since := w.saved(a)
	w.ask(state.Resync, b)
	w.once()
	w.insert(b, 9)
	w.db.DropSlot()
	w.once()
	if r := w.saved(a); r.Reason != since.Reason || !r.Since.Equal(since.Since) {
		t.Errorf("a waits since %v, %s; was %v, %s", r.Since, r.Reason, since.Since, since.Reason)
	}
	if err := w.waits(b); err != nil {
		t.Error(err)
	}
}

func TestCrashWhileTheLogIsGivenUpMakesNoCopyUnasked(t *testing.T) {
	for step := 1; ; step++ {
		w := newWorld(t)
		a := w.table("public", "a")
		w.loseLog(a)
		w.faults = &connectortest.Faults{}
		w.faults.CrashAt(step)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := Run(ctx, w.options(true))
		cancel()
		crashed := w.faults.Crashed()
		if crashed != errors.Is(err, connectortest.ErrCrash) {
			t.Fatalf("step %d: %v", step, err)
		}
		w.faults = &connectortest.Faults{}
		w.once()
		if err := w.waits(a); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		w.ask(state.Resync, a)
		w.once()
		if err := w.equal(a); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if !crashed {
			return
		}
	}
}

func TestTableThatIsBeingCopiedWhenTheLogIsLostIsCopiedAnewUnasked(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.inChunks()
	w.twentyRows(a)
	w.cutOff(3)
	w.db.DropSlot()
	w.moveAbout(a)
	if s := w.once(); !s.InOrder() {
		t.Errorf("%+v", s.Tables)
	}
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func TestSourceOfAnotherHistoryIsLeftAloneUntilEveryTableIsToBeCopiedAnew(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	acked := w.db.Acked()
	if err := w.store.SaveFloor(t.Context(), `{"memory":{"":"another server/5"}}`, nil); err != nil {
		t.Fatal(err)
	}
	w.changeUnseen(a, b)
	w.onceGap()
	w.ask(state.Resync, a)
	w.onceGap()
	if w.db.Acked() != acked || w.saved(a).Phase != string(Streaming) {
		t.Errorf("acknowledged %s, was %s; %+v", w.db.Acked(), acked, w.saved(a))
	}
	w.ask(state.Resync, b)
	if s := w.once(); !s.InOrder() {
		t.Errorf("%+v", s.Tables)
	}
	if err := errors.Join(w.equal(a), w.equal(b)); err != nil {
		t.Error(err)
	}
}

func TestStateAndLogLostTogetherIsForAPersonToMend(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.loseLog(a)
	lost, err := state.Open(t.Context(), t.TempDir()+"/state.db")
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	w.store = lost
	w.onceGap()
	w.change = func(o *Options) { o.ResyncOnGap = true }
	w.once()
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}
