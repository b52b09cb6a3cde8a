package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// RetainedAction is what happens when the source keeps more log for the mirror than Limits.RetainedBytes.
type RetainedAction string

// The actions. Each does what the ones before it do.
const (
	WarnOfRetained RetainedAction = "warn"
	DetachRetained RetainedAction = "detach"    // the table that holds the log back is given up, and copied again
	DropRetained   RetainedAction = "drop_slot" // nothing of the log is kept any more: every table is copied again
)

const (
	// guardEvery is how often the source is asked how much log it keeps.
	guardEvery = 5 * time.Second
	// guardPatience is how long the floor must have stood still before a table is given up: a mirror that catches up after
	// a pause has much log too, and less of it all the time.
	guardPatience = 30 * time.Second
)

// errTooMuchLog ends a session because the log is given up.
var errTooMuchLog = errors.New("the source keeps too much log for the mirror")

// guard watches how much log the source keeps for the mirror.
type guard struct {
	over   bool                           // as last seen
	floors map[string]connector.Positions // as last seen
	since  time.Time                      // when they moved last
}

// guardLog acts when the source keeps too much log for the mirror.
func (s *session) guardLog(ctx context.Context) error {
	retainer, ok := s.source.(connector.Retainer)
	if s.Limits.RetainedBytes == 0 || !ok {
		return nil
	}
	g := guard{since: time.Now()}
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		kept := s.askRetained(ctx, retainer)
		if !s.tooMuch(ctx, kept) {
			g.over = false
			continue
		}
		if s.OnRetained == DropRetained {
			return errTooMuchLog
		}
		if err := s.relieveLog(ctx, &g, kept); err != nil {
			return err
		}
	}
}

// tooMuch compares what the source keeps with the limit, and says once that it is more.
func (m *runner) tooMuch(ctx context.Context, kept int64) bool {
	is := kept > m.Limits.RetainedBytes
	if is && !m.overLimit {
		text := fmt.Sprintf("the source keeps %d bytes of log for the mirror, more than retained_log.max, %d", kept, m.Limits.RetainedBytes)
		m.Log.Warn("the source keeps too much log", "bytes", kept, "max", m.Limits.RetainedBytes, "action", string(m.OnRetained))
		m.event(ctx, schema.Name{}, "retained_log", text)
	}
	m.overLimit = is
	return is
}

// relieveLog gives up the table that holds the log back, if the floor does not move.
func (s *session) relieveLog(ctx context.Context, g *guard, kept int64) error {
	floors := *s.position.Load()
	if !g.over || !maps.EqualFunc(floors, g.floors, maps.Equal) {
		g.over, g.floors, g.since = true, floors, time.Now()
		return nil
	}
	if s.OnRetained != DetachRetained || time.Since(g.since) < guardPatience {
		return nil
	}
	g.since = time.Now() // for what is done now to show
	t := s.oldestWaiting()
	if t == nil {
		s.Log.Warn("no table holds the log back: look for a long transaction at the source")
		return nil
	}
	why := fmt.Errorf("it holds back the log, of which the source keeps %d bytes, more than retained_log.max", kept)
	if t.inPhase(CatchingUp, Streaming) {
		s.doomed.Store(&doom{table: t, why: why}) // by the applier that has it next
		s.wake(t)
		return nil
	}
	_, err := s.detach(ctx, t, why)
	return err
}

// oldestWaiting returns the table of which the oldest change is not durable in the sink; nil: there is none.
func (s *session) oldestWaiting() (oldest *table) {
	var since time.Time
	for _, t := range s.allTables() {
		at := t.lane.Oldest()
		if !at.IsZero() && (oldest == nil || at.Before(since)) {
			oldest, since = t, at
		}
	}
	return oldest
}

// guardMeanwhile does what guardLog does while there is no session, because the sink is away, say. Tables can not be given
// up one by one then, as the sink would have to know.
func (m *runner) guardMeanwhile(ctx context.Context) error {
	if m.Limits.RetainedBytes == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	kept, err := m.keptAtSource(ctx)
	if err != nil {
		m.Log.Debug("retained log not known", "error", err)
		return nil
	}
	if m.tooMuch(ctx, kept) && m.OnRetained == DropRetained {
		return errTooMuchLog
	}
	return nil
}

func (m *runner) keptAtSource(ctx context.Context) (int64, error) {
	id, err := m.Store.MirrorID(ctx)
	if err != nil {
		return 0, err
	}
	f, err := readFloors(ctx, m.Store)
	if err != nil {
		return 0, err
	}
	source, err := m.Source(ctx, id)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	retainer, ok := source.(connector.Retainer)
	if !ok {
		return 0, nil
	}
	var sum int64
	for log := range f {
		kept, err := retainer.Retained(ctx, log)
		if err != nil {
			return 0, err
		}
		sum += kept.Bytes
	}
	return sum, nil
}
