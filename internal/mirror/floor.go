package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/schema"
)

// floorFormat is the version of a floor's text. A newer one is refused.
const floorFormat = 1

// floorRecord is the entry of a log in the sink: everything up to At is durable, so the source may forget it.
type floorRecord struct {
	Format int                 `json:"v"`
	At     connector.Positions `json:"at"`
	Time   time.Time           `json:"time"`
	// Behind names the tables of which the sink does not hold everything up to At: the spool holds the rest, up to these
	// runs at least.
	Behind map[schema.ID][]lane.Run `json:"behind,omitempty"`
}

// floors are those of all logs, by name, as the state keeps them.
type floors map[string]connector.Positions

func floorKey(log string) string { return "floor/" + log }

func parseFloor(text string) (floorRecord, error) {
	var f floorRecord
	if text == "" {
		return f, nil
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return f, &connector.Error{Kind: connector.Setup, System: "sink", Op: "read the floor", Err: err}
	}
	if f.Format != floorFormat {
		return f, &connector.Error{
			Kind: connector.Setup, System: "sink", Op: "read the floor",
			Err:  fmt.Errorf("format %d, this version knows %d", f.Format, floorFormat),
			Hint: "use the version of sluice that wrote it, or a newer one",
		}
	}
	return f, nil
}

// readFloors returns the floors as the state has them; nil: there are none.
func readFloors(ctx context.Context, store Store) (floors, error) {
	text, err := store.Floor(ctx)
	if err != nil || text == "" {
		return nil, err
	}
	var f floors
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return nil, &connector.Error{Kind: connector.Setup, System: "state", Op: "read the floor", Err: err}
	}
	return f, nil
}

// keepFloor saves and acknowledges the floor again and again.
func (s *session) keepFloor(ctx context.Context) error {
	tick := time.NewTicker(s.Limits.FloorEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			// A stop must not cut off a commit whose outcome the last one needs to know.
			bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Limits.DrainFor)
			err := s.saveFloor(bounded)
			if bounded.Err() != nil && errors.Is(err, bounded.Err()) {
				err = &connector.Error{Kind: connector.Unavailable, System: "sink", Op: "save the floor", Err: err}
			}
			cancel()
			if err != nil {
				s.floorErr = err
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// saveFloor moves the floors of all logs to where everything is durable. The order is: durable in the sink or the spool,
// then in the state, then acknowledged; never otherwise.
func (s *session) saveFloor(ctx context.Context) error {
	logs := s.allLogs()
	relied := false
	for _, l := range logs {
		l.relied = s.relies(ctx, l)
		relied = relied || l.relied
	}
	if s.spool != nil {
		s.spool.Rely(relied)
	}
	fs := make([]floorRecord, len(logs))
	var err error
	for i, l := range logs {
		if fs[i].At, fs[i].Behind, err = l.floor(); err != nil {
			return err
		}
	}
	if err := s.saveSegments(ctx); err != nil {
		s.Log.Error("list of the spool's files not saved, so nothing is acknowledged to the source", "error", err)
		return nil
	}
	for i, l := range logs {
		floor := fs[i].At
		if !l.unsaved && maps.Equal(floor, l.saved) {
			continue
		}
		if err := s.writeFloor(ctx, l, floor, fs[i].Behind); err != nil {
			return err
		}
	}
	return nil
}

// writeFloor makes a log's floor durable in the sink, then in the state with the checkpoints that the sink holds, and
// then acknowledges it. Without the state nothing is acknowledged, and the mirror goes on.
func (s *session) writeFloor(ctx context.Context, l *logReader, floor connector.Positions, behind map[schema.ID][]lane.Run) error {
	checkpoints, changed := s.checkpoints()
	text, err := json.Marshal(floorRecord{Format: floorFormat, At: floor, Time: time.Now().UTC(), Behind: behind})
	if err != nil {
		return err
	}
	if err := s.commit(ctx, map[string]string{floorKey(l.name): string(text)}); err != nil {
		return err
	}
	all := s.floors()
	all[l.name] = floor
	if text, err = json.Marshal(all); err != nil {
		return err
	}
	if err := s.saveCheckpoints(ctx, string(text), checkpoints, changed); err != nil {
		s.Log.Error("state not saved, so nothing is acknowledged to the source", "error", err)
		return nil
	}
	l.saved, l.unsaved = floor, false
	s.position.Store(&all)
	return l.stream.Ack(ctx, floor)
}

func (s *session) saveCheckpoints(ctx context.Context, floors string, byID map[schema.ID]string, byTable map[*table]string) error {
	if err := s.saving.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.saving.Release(1)
	if err := s.Store.SaveFloor(ctx, floors, byID); err != nil {
		return err
	}
	for t, text := range byTable {
		t.mu.Lock()
		t.saved = text
		t.mu.Unlock()
	}
	return nil
}

// checkpoints returns the tables' entries that the state does not have yet.
func (s *session) checkpoints() (byID map[schema.ID]string, byTable map[*table]string) {
	byID, byTable = map[schema.ID]string{}, map[*table]string{}
	for _, t := range s.allTables() {
		t.mu.Lock()
		if t.entry != "" && t.entry != t.saved {
			byID[t.id], byTable[t] = t.entry, t.entry
		}
		t.mu.Unlock()
	}
	return byID, byTable
}

// floor returns the position up to which every table is durable in the sink, or in the spool if that is relied on, but
// never one before that of the last floor; and what the spool holds of the tables of which the sink lacks something.
func (l *logReader) floor() (connector.Positions, map[schema.ID][]lane.Run, error) {
	last := l.last.Load().UpTo // before the looks into the lanes: what they get later is beyond it
	floor := maps.Clone(last)
	safe := map[*table]connector.Positions{}
	for _, t := range l.added() {
		safe[t] = l.safe(t, last)
		durable := safe[t]
		if l.relied {
			var err error
			if durable, err = l.larger(durable, t.lane.Durable(last)); err != nil {
				return nil, nil, err
			}
		}
		if err := l.lower(floor, durable); err != nil {
			return nil, nil, err
		}
	}
	floor, err := l.larger(floor, l.saved) // what the spool held then it holds now, or the sink
	if err != nil {
		return nil, nil, err
	}
	behind := map[schema.ID][]lane.Run{}
	for t, at := range safe {
		has, err := l.s.reached(at, floor)
		if err != nil {
			return nil, nil, err
		}
		if !has && l.s.spool != nil {
			behind[t.id] = t.lane.Ends()
		}
	}
	return floor, behind, nil
}

// lower moves floor back to where to is before it.
func (l *logReader) lower(floor, to connector.Positions) error {
	for part, p := range to {
		at, ok := floor[part]
		if !ok {
			continue
		}
		order, err := l.s.source.Compare(p, at)
		if err != nil {
			return err
		}
		if order < 0 {
			floor[part] = p
		}
	}
	return nil
}

// larger returns for each part of a the larger of the two positions.
func (l *logReader) larger(a, b connector.Positions) (connector.Positions, error) {
	out := maps.Clone(a)
	for part, at := range a {
		p, ok := b[part]
		if !ok {
			continue
		}
		order, err := l.s.source.Compare(p, at)
		if err != nil {
			return nil, err
		}
		if order > 0 {
			out[part] = p
		}
	}
	return out, nil
}

// safe returns the position up to which the log may go as far as t needs it.
func (l *logReader) safe(t *table, last connector.Positions) connector.Positions {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.meeting {
		return l.start
	}
	return t.lane.Safe(last)
}
