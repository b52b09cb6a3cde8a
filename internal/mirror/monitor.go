package mirror

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicehq/sluice/connector"
)

// Monitor lets others see how a run stands while it goes on. The zero value is ready; it is given to one Run at a time, in
// Options, and may be asked from any goroutine, before, during and after it.
type Monitor struct{ run atomic.Pointer[runner] }

// RunState is what a run as a whole is doing.
type RunState string

// The states of a run.
const (
	Starting RunState = "starting" // it has not reached both sides yet
	Running  RunState = "running"
	Waiting  RunState = "waiting"  // for a side that cannot be reached, to try again
	Stopping RunState = "stopping" // it reads no more, and applies what it has read
	Ended    RunState = "ended"
)

// Live is how a run stands at one moment, as plain numbers. What it counts began with the run.
type Live struct {
	Status   // without PID and Kept
	State    RunState
	Error    string           // why it waits
	RetryAt  time.Time        // when it tries again
	LagBytes int64            // of the table that is furthest behind; -1: not known
	Counts   []TableCounts    // of the Tables, in their order
	Batches  Histogram        // how long the appliers' batches took to become durable in the sink
	Delays   Histogram        // from the commit of a batch's oldest change at the source, by its clock, until it was durable in the sink
	Errors   map[string]int64 // that the engine has reacted to, by kind; every kind is there
}

// TableCounts is what a run has done for one table.
type TableCounts struct {
	RowsCopied, BytesCopied      int64 // bytes in memory, as columns
	ChangesApplied, BytesApplied int64 // bytes of the source's own row messages
}

// Live returns how the run stands now; ok is false before it has begun. It asks neither the source nor the sink.
func (m *Monitor) Live() (live Live, ok bool) {
	run := m.run.Load()
	if run == nil {
		return Live{}, false
	}
	return run.live(), true
}

// retainedEvery is how often the source is asked how much log it keeps, if somebody watches.
const retainedEvery = 10 * time.Second

// observed is what a run tells its Monitor beside what its tables know.
type observed struct {
	began   time.Time
	session atomic.Pointer[session] // the newest that could be opened
	state   atomic.Pointer[stateOfRun]
	errors  [kinds]atomic.Int64
	batches histogram
	delays  histogram
}

// kinds is the number of kinds of errors.
const kinds = int(connector.Fenced) + 1

type stateOfRun struct {
	state   RunState
	err     error     // for Waiting
	retryAt time.Time // likewise
}

// is notes what the run is doing.
func (o *observed) is(state RunState) { o.state.Store(&stateOfRun{state: state}) }

// waits notes that the run waits after an error.
func (o *observed) waits(err error, wait time.Duration) {
	o.state.Store(&stateOfRun{state: Waiting, err: err, retryAt: time.Now().Add(wait)})
}

// noteError counts an error that the engine reacts to.
func (o *observed) noteError(err error) {
	if kind := int(connector.KindOf(err)); kind < kinds {
		o.errors[kind].Add(1)
	}
}

func (m *runner) live() Live {
	now := m.observed.state.Load()
	live := Live{
		Status: Status{
			Mirror: m.Mirror, Running: now.state != Ended, Since: m.observed.began, Lag: -1, RetainedBytes: -1,
			Source: Side{State: "connecting"}, Sink: Side{State: "connecting"},
		},
		State: now.state, RetryAt: now.retryAt, LagBytes: -1, Errors: map[string]int64{},
		Batches: m.observed.batches.snapshot(), Delays: m.observed.delays.snapshot(),
	}
	for k := range kinds {
		live.Errors[connector.Kind(k).String()] = m.observed.errors[k].Load()
	}
	if s := m.observed.session.Load(); s != nil {
		live.Source, live.Sink = Side{State: "reachable"}, Side{State: "reachable"}
		s.observe(&live)
	}
	if now.err != nil {
		live.Error = now.err.Error()
		live.blame(now.err)
	}
	return live
}

// blame says which side cannot be reached, if the error tells.
func (l *Live) blame(err error) {
	e, ok := errors.AsType[*connector.Error](err)
	if !ok {
		return
	}
	for name, side := range map[string]*Side{"source": &l.Source, "sink": &l.Sink} {
		if strings.HasPrefix(e.System, name) {
			*side = Side{State: "unreachable", Error: err.Error()}
		}
	}
}

// noteBatch counts a batch that has become durable a moment ago; oldest is the commit of its first change, by the source's
// clock, and zero if that is not known.
func (s *session) noteBatch(oldest, begun time.Time) {
	now := time.Now()
	s.observed.batches.observe(now.Sub(begun))
	if !oldest.IsZero() {
		s.observed.delays.observe(now.Add(time.Duration(s.clockAhead.Load())).Sub(oldest))
	}
}

// observe adds what a session knows.
func (s *session) observe(live *Live) {
	ahead := time.Duration(s.clockAhead.Load())
	now := time.Now().Add(ahead)
	for _, t := range s.allTables() {
		status, counts := s.observeTable(t, now, ahead)
		live.Lag, live.LagBytes = max(live.Lag, status.Lag), max(live.LagBytes, status.LagBytes)
		live.Tables = append(live.Tables, status)
		live.Counts = append(live.Counts, counts)
	}
	if s.spool != nil {
		live.SpoolBytes = s.spool.Bytes()
	}
	live.RetainedBytes = s.retained.Load()
	if at := s.position.Load(); at != nil {
		live.Position = at.String()
	}
}

// observeTable returns how a table stands at a moment of the source's clock, which is ahead of ours.
func (s *session) observeTable(t *table, now time.Time, ahead time.Duration) (TableStatus, TableCounts) {
	status := TableStatus{Table: t.record(), Selected: true, Lag: -1, LagBytes: -1}
	t.mu.Lock()
	counts := TableCounts{
		RowsCopied: t.total.rowsCopied, BytesCopied: t.total.bytesCopied, ChangesApplied: t.total.changes, BytesApplied: t.total.bytesApplied,
	}
	measured := t.behind
	t.mu.Unlock()
	status.splitRemedy()
	switch Phase(status.Phase) {
	case Pending, Refused, Dropped:
		return status, counts
	}
	status.Lag, status.LagBytes = 0, 0
	if since := t.log.behindSince(t, t.log.behind(ahead)); !since.IsZero() {
		status.Lag = max(0, now.Sub(since))
		status.LagBytes = -1
		if !measured.since.IsZero() {
			status.LagBytes = measured.bytes
		}
	}
	return status, counts
}

// behindSince is when the oldest change of a table that is not durable was committed, by the source's clock; zero: there is
// none. behind: the reader itself is behind, so there may be changes that it has not read.
func (l *logReader) behindSince(t *table, behind bool) time.Time {
	since := t.lane.Oldest()
	if since.IsZero() && behind {
		since = l.last.Load().Time
	}
	return since
}

// keepRetained asks the source again and again how much log it keeps for the mirror, if somebody watches.
func (s *session) keepRetained(ctx context.Context) error {
	retainer, ok := s.source.(connector.Retainer)
	if s.Monitor == nil || !ok {
		return nil
	}
	tick := time.NewTicker(retainedEvery)
	defer tick.Stop()
	for {
		s.retained.Store(s.askRetained(ctx, retainer))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// askRetained returns the bytes of log that the source keeps for the mirror; -1: it does not tell.
func (s *session) askRetained(ctx context.Context, retainer connector.Retainer) int64 {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	var sum int64
	for _, l := range s.allLogs() {
		kept, err := retainer.Retained(ctx, l.name)
		if err != nil {
			s.Log.Debug("retained log not known", "error", err)
			return -1
		}
		sum += kept.Bytes
	}
	return sum
}

// histogramBounds are the upper bounds of a Histogram's buckets.
var histogramBounds = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// Histogram is how often something took how long.
type Histogram struct {
	Within map[time.Duration]uint64 // how many took no longer than this
	Count  uint64
	Sum    time.Duration
}

// histogram collects one. It is safe for concurrent use.
type histogram struct {
	mu     sync.Mutex
	counts []uint64 // by bucket, each without those before it
	count  uint64
	sum    time.Duration
}

func (h *histogram) observe(d time.Duration) {
	d = max(d, 0) // two clocks
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counts == nil {
		h.counts = make([]uint64, len(histogramBounds))
	}
	if i, _ := slices.BinarySearch(histogramBounds, d); i < len(h.counts) {
		h.counts[i]++
	}
	h.count++
	h.sum += d
}

func (h *histogram) snapshot() Histogram {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := Histogram{Within: map[time.Duration]uint64{}, Count: h.count, Sum: h.sum}
	var n uint64
	for i, bound := range histogramBounds {
		if h.counts != nil {
			n += h.counts[i]
		}
		out.Within[bound] = n
	}
	return out
}
