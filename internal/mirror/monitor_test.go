package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// watched has the next runs tell a monitor.
func (w *world) watched() *Monitor {
	m := &Monitor{}
	w.change = func(o *Options) { o.Monitor = m }
	return m
}

// tableOf is what a monitor tells of a table.
func tableOf(l Live, name schema.Name) (TableStatus, TableCounts) {
	for i, t := range l.Tables {
		if t.Name == name {
			return t, l.Counts[i]
		}
	}
	return TableStatus{}, TableCounts{}
}

func TestMonitorTellsOfEachTableAndOfWhatWaits(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	m := w.watched()
	if _, ok := m.Live(); ok {
		t.Error("a run that has not begun is told of")
	}
	goOn, armed := make(chan struct{}), atomic.Bool{}
	w.hookSinkAnd(m, func(ctx context.Context, _ *connector.Target) error {
		if !armed.Load() {
			return nil
		}
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	armed.Store(true)
	w.insert(a, 2)
	w.eventually(func() error {
		l, _ := m.Live()
		if s, _ := tableOf(l, a); l.State != Running || s.Phase != "streaming" || s.Lag <= 0 || s.LaneBytes == 0 || l.Lag < s.Lag {
			return fmt.Errorf("a change waits, and the monitor says %+v", l)
		}
		return nil
	})
	first, _ := m.Live()
	second, _ := m.Live()
	if second.Lag <= first.Lag {
		t.Errorf("a change that waits does not grow older: %v, %v", first.Lag, second.Lag)
	}
	close(goOn)
	w.eventually(func() error {
		l, _ := m.Live()
		s, c := tableOf(l, a)
		if s.Lag != 0 || s.LagBytes != 0 || c.RowsCopied != 1 || c.ChangesApplied != 1 || c.BytesCopied == 0 || c.BytesApplied == 0 {
			return fmt.Errorf("all is applied, and the monitor says %+v, %+v", s, c)
		}
		if l.Batches.Count != 1 || l.Delays.Count != 1 || l.Delays.Sum <= 0 || l.Delays.Within[5*time.Minute] != 1 {
			return fmt.Errorf("batches %+v, delays %+v", l.Batches, l.Delays)
		}
		if l.Position == "" || l.Source.State != "reachable" || l.Sink.State != "reachable" {
			return fmt.Errorf("the monitor says %+v", l.Status)
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	if l, ok := m.Live(); !ok || l.State != Ended || l.Running || len(l.Tables) != 1 {
		t.Errorf("after the end the monitor says %+v", l)
	}
}

// hookSinkAnd is hookSink for a run that tells a monitor.
func (w *world) hookSinkAnd(m *Monitor, f func(context.Context, *connector.Target) error) {
	w.hookSink(f)
	hooked := w.change
	w.change = func(o *Options) {
		hooked(o)
		o.Monitor = m
	}
}

func TestMonitorNamesTheSideThatIsAwayAndCountsErrors(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	m := w.watched()
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.faults.Refuse(connectortest.CallBegin, 0, connector.Unavailable)
	w.insert(a, 2)
	w.eventually(func() error {
		if l, _ := m.Live(); l.State != Waiting || l.Error == "" || l.RetryAt.IsZero() || l.Errors["unavailable"] == 0 {
			return fmt.Errorf("the sink is away, and the monitor says %+v", l)
		}
		return nil
	})
	if l, _ := m.Live(); len(l.Tables) != 1 || len(l.Errors) != kinds {
		t.Errorf("the tables of the last session are gone: %+v", l)
	}
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	var l Live
	l.blame(fmt.Errorf("run: %w", &connector.Error{System: "sink sqlite", Err: errors.New("locked")}))
	if l.Sink.State != "unreachable" || l.Source.State != "" {
		t.Errorf("blamed: %+v, %+v", l.Source, l.Sink)
	}
}

func TestMonitorCountsAFaultOnce(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.once()
	m := &Monitor{}
	w.hookSinkAnd(m, func(context.Context, *connector.Target) error {
		return &connector.Error{Kind: connector.BadRow, System: "sink", Op: "write rows", Table: a, Err: errors.New("refused")}
	})
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.insert(a, 1)
	w.awaitPhase(a, Paused)
	w.eventually(func() error {
		l, _ := m.Live()
		if s, _ := tableOf(l, a); l.Errors["bad_row"] != 1 || s.Reason == "" {
			return fmt.Errorf("a row was refused, and the monitor says %+v", l)
		}
		return nil
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}
