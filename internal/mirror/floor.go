package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// floorFormat is the version of a floor's text. A newer one is refused.
const floorFormat = 1

// floorRecord is the entry of a log in the sink: everything up to At is durable there, so the source may forget it.
type floorRecord struct {
	Format int                 `json:"v"`
	At     connector.Positions `json:"at"`
	Time   time.Time           `json:"time"`
}

// floors are those of all logs, by name, as the state keeps them.
type floors map[string]connector.Positions

func floorKey(log string) string { return "floor/" + log }

func parseFloor(text string) (connector.Positions, error) {
	if text == "" {
		return nil, nil
	}
	var f floorRecord
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return nil, &connector.Error{Kind: connector.Setup, System: "sink", Op: "read the floor", Err: err}
	}
	if f.Format != floorFormat {
		return nil, &connector.Error{
			Kind: connector.Setup, System: "sink", Op: "read the floor",
			Err:  fmt.Errorf("format %d, this version knows %d", f.Format, floorFormat),
			Hint: "use the version of sluice that wrote it, or a newer one",
		}
	}
	return f.At, nil
}

func (s *session) stateFloors(ctx context.Context) (floors, error) {
	text, err := s.Store.Floor(ctx)
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

// saveFloor moves the floors of all logs to where everything is durable. The order is: durable in the sink, then in the
// state, then acknowledged; never otherwise.
func (s *session) saveFloor(ctx context.Context) error {
	for _, l := range s.allLogs() {
		floor, err := l.floor()
		if err != nil {
			return err
		}
		if !l.unsaved && maps.Equal(floor, l.saved) {
			continue
		}
		if err := s.writeFloor(ctx, l, floor); err != nil {
			return err
		}
	}
	return nil
}

// writeFloor makes a log's floor durable in the sink, then in the state with the checkpoints that the sink holds, and
// then acknowledges it. Without the state nothing is acknowledged, and the mirror goes on.
func (s *session) writeFloor(ctx context.Context, l *logReader, floor connector.Positions) error {
	checkpoints, changed := s.checkpoints()
	text, err := json.Marshal(floorRecord{Format: floorFormat, At: floor, Time: time.Now().UTC()})
	if err != nil {
		return err
	}
	if err := s.commit(ctx, map[string]string{floorKey(l.name): string(text)}); err != nil {
		return err
	}
	all := floors{}
	for _, other := range s.allLogs() {
		all[other.name] = other.saved
	}
	all[l.name] = floor
	if text, err = json.Marshal(all); err != nil {
		return err
	}
	if err := s.saveCheckpoints(ctx, string(text), checkpoints, changed); err != nil {
		s.Log.Error("state not saved, so nothing is acknowledged to the source", "error", err)
		return nil
	}
	l.saved, l.unsaved = floor, false
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

// floor returns the position up to which every table is durable in the sink.
func (l *logReader) floor() (connector.Positions, error) {
	last := l.last.Load().UpTo // before the looks into the lanes: what they get later is beyond it
	floor := maps.Clone(last)
	for _, t := range l.added() {
		for part, safe := range l.safe(t, last) {
			at, ok := floor[part]
			if !ok {
				continue
			}
			order, err := l.s.source.Compare(safe, at)
			if err != nil {
				return nil, err
			}
			if order < 0 {
				floor[part] = safe
			}
		}
	}
	return floor, nil
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
