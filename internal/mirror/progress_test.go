package mirror

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// saved returns what the state tells of a table, also while a mirror runs.
func (w *world) saved(name schema.Name) state.Table {
	w.t.Helper()
	tables, err := w.store.Tables(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range tables {
		if r.Name == name {
			return r
		}
	}
	return state.Table{}
}

func TestStateTellsHowFarBehindATableIs(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	goOn := make(chan struct{})
	w.hookSink(func(ctx context.Context, _ *connector.Target) error {
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	before := time.Now()
	w.insert(a, 2)
	w.eventually(func() error {
		if r := w.saved(a); r.LaneBytes == 0 || r.BehindSince.Before(before.Add(-time.Minute)) || r.BehindBytes != -1 {
			return fmt.Errorf("a change waits, and the state says %+v", r)
		}
		return nil
	})
	close(goOn)
	w.eventually(func() error {
		if r := w.saved(a); r.LaneBytes != 0 || !r.BehindSince.IsZero() || r.ChangesApplied != 1 || r.RowsCopied != 1 {
			return fmt.Errorf("all is applied, and the state says %+v", r)
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	run, err := w.store.Run(t.Context())
	if err != nil || time.Since(run.Saved) > time.Minute {
		t.Errorf("run %+v, %v", run, err)
	}
	w.change = nil
	w.insert(a, 3)
	w.once()
	if r := w.saved(a); r.ChangesApplied != 2 || r.RowsCopied != 1 {
		t.Errorf("counts of earlier runs are lost: %+v", r)
	}
}

func TestPausedTableTellsSinceWhenItIsBehind(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.once()
	w.hookSink(func(context.Context, *connector.Target) error {
		return &connector.Error{Kind: connector.Setup, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
	})
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.insert(a, 1)
	w.awaitPhase(a, Paused)
	w.eventually(func() error {
		if r := w.saved(a); r.BehindSince.IsZero() || r.PausedBy != "fault" {
			return fmt.Errorf("a change was left in the log, and the state says %+v", r)
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}
