package mirror

import (
	"context"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

const (
	// progressEvery is how often the state is told how far the run is, for Status to read beside it.
	progressEvery = 2 * time.Second
	// measureTimeout bounds the question to the source that goes with it.
	measureTimeout = time.Second
	// readingSlack is how old what is read may be without reading being behind: the way of a message, and the error of
	// two clocks.
	readingSlack = time.Second
)

// lag is what of a table's changes is not durable. Since is by the source's clock, zero if there is none.
type lag struct {
	since time.Time
	bytes int64 // of log from there on; -1: not known
}

// keepProgress tells the state again and again how far the run is.
func (s *session) keepProgress(ctx context.Context) error {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.saveProgress(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// saveProgress saves what has changed since it was saved last. One goroutine at a time calls it.
func (s *session) saveProgress(ctx context.Context) {
	lags := map[*table]lag{}
	for _, l := range s.allLogs() {
		s.measure(ctx, l, lags)
	}
	if s.saving.Acquire(ctx, 1) != nil {
		return
	}
	defer s.saving.Release(1)
	byID, byTable := map[schema.ID]state.Progress{}, map[*table]state.Progress{}
	for _, t := range s.allTables() {
		if p, changed := t.measured(lags[t]); changed {
			byID[t.id], byTable[t] = p, p
		}
	}
	run := state.Run{Saved: time.Now(), ClockAhead: time.Duration(s.clockAhead.Load())}
	if err := s.Store.SaveProgress(ctx, run, byID); err != nil {
		if ctx.Err() == nil {
			s.Log.Warn("state not saved", "error", err)
		}
		return
	}
	for t, p := range byTable {
		t.told(p)
	}
}

// measure finds out how far the tables of a log are behind.
func (s *session) measure(ctx context.Context, l *logReader, lags map[*table]lag) {
	last, tables := l.last.Load(), l.added()
	from := make([]connector.Positions, len(tables))
	for i, t := range tables {
		from[i] = t.lane.Safe(last.UpTo)
	}
	bytes := s.ask(ctx, l, from)
	behind := l.behind(time.Duration(s.clockAhead.Load()))
	for i, t := range tables {
		since := l.behindSince(t, behind)
		if since.IsZero() {
			continue
		}
		lags[t] = lag{since: since, bytes: -1}
		if bytes != nil {
			lags[t] = lag{since: since, bytes: bytes[i]}
		}
	}
}

// ask asks the source for its clock and for how much log lies behind these positions; nil: it does not tell.
func (s *session) ask(ctx context.Context, l *logReader, from []connector.Positions) []int64 {
	meter, ok := s.source.(connector.Meter)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	asked := time.Now()
	bytes, clock, err := meter.Measure(ctx, l.name, from)
	if err != nil {
		s.Log.Debug("the source does not tell how far the log is", "error", err)
		return nil
	}
	s.clockAhead.Store(int64(clock.Sub(asked.Add(time.Since(asked) / 2))))
	return bytes
}

// behind reports whether what the reader read last was old already when it came: then there is more that is not read.
func (l *logReader) behind(clockAhead time.Duration) bool {
	received := l.received.Load()
	return received != 0 && time.Unix(0, received).Add(clockAhead).Sub(l.last.Load().Time) >= readingSlack
}

// measured takes note of a table's lag, and reports whether the state has another progress of it than now.
func (t *table) measured(behind lag) (p state.Progress, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.behind = behind
	p = t.progress()
	return p, p != t.kept
}

// told takes note of what the state has.
func (t *table) told(p state.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = p
}

// progress is how far the table is. The caller holds t.mu.
func (t *table) progress() state.Progress {
	return state.Progress{
		RowsCopied: t.total.copied, RowsReread: t.total.readOld + t.total.reread, ChangesApplied: t.total.before + t.total.changes, BehindSince: t.behind.since,
		BehindBytes: t.behind.bytes, LaneBytes: t.lane.Bytes() + t.lane.SpoolBytes(), Failures: t.failures, LastError: t.lastErr,
		Quarantined: t.quarantine.Len(),
	}
}

// resume takes over what earlier runs have counted.
func (n *totals) resume(saved state.Progress) {
	if !n.resumed {
		n.resumed, n.copied, n.before, n.readOld = true, saved.RowsCopied, saved.ChangesApplied, saved.RowsReread
	}
}

// kept names what of the source stays behind a run and keeps log there.
func (s *session) kept(ctx context.Context) []string {
	retainer, ok := s.source.(connector.Retainer)
	if !ok {
		return nil
	}
	var names []string
	for _, l := range s.allLogs() {
		if r, err := retainer.Retained(ctx, l.name); err == nil {
			names = append(names, r.By)
		}
	}
	return names
}
