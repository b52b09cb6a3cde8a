// Package mirror runs a mirror: it discovers tables, joins each to the running stream by a copy, follows the log, and
// tells the source how far everything is durable. To read it in the order in which data flows: plan, reconcile, session,
// reader, spool, join, appliers, floor.
package mirror

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// Store keeps what the sink does not: the mirror's id, phases, events, and a second copy of the floor. *state.Store is
// one.
type Store interface {
	MirrorID(ctx context.Context) (string, error)
	SetMirrorID(ctx context.Context, id string) error
	Tables(ctx context.Context) ([]state.Table, error)
	SaveTables(ctx context.Context, tables ...state.Table) error
	Floor(ctx context.Context) (string, error)
	SaveFloor(ctx context.Context, floor string, checkpoints map[schema.ID]string) error
	Segments(ctx context.Context) ([]state.Segment, error)
	SaveSegments(ctx context.Context, segments []state.Segment) error
	SaveProgress(ctx context.Context, run state.Run, tables map[schema.ID]state.Progress) error
	AddEvent(ctx context.Context, e state.Event) error
	OpenCommands(ctx context.Context) ([]state.Command, error)
	SaveCommand(ctx context.Context, c state.Command) error
}

// Options is what a run needs.
type Options struct {
	Mirror string                                                         // the mirror's name
	Source func(ctx context.Context, id string) (connector.Source, error) // id is the mirror's
	Sink   func(ctx context.Context, id string) (connector.Sink, error)   // id is "" as long as the state knows none
	Store  Store
	Selector
	Reloads <-chan Selector // what is received takes the place of Selector while the mirror runs; may be nil
	Limits  Limits
	Spool   string // folder where lanes go beyond memory; "": nowhere, the reader waits
	Once    bool   // end when each table has passed the end of the log as it was when its copy was done, or at the start

	OnRetained  RetainedAction // when the source keeps more log than Limits.RetainedBytes
	FollowNew   bool           // tables found later that Select takes are mirrored too
	ResyncOnGap bool           // copy all tables anew when the log lacks what is needed; else they wait for a person
	FailOnTable bool           // a table's fault ends the run; else the table pauses

	Monitor *Monitor // shows how the run stands; nil: nobody asks

	Log   *slog.Logger
	Alloc memory.Allocator
}

// Limits bounds what a run takes. All must be set; DefaultLimits does.
type Limits struct {
	CopyWorkers   int           // chunks read at once, over all tables
	ChunkRows     int64         // rows a chunk, about
	ViewAge       time.Duration // of a snapshot, from which on no chunk is begun under it; 0: no limit
	Appliers      int           // batches written at once
	BatchRows     int           // row messages a batch, about
	BatchBytes    int64         // bytes of frames a batch, about
	BatchAge      time.Duration // how long a batch is gathered
	LaneBytes     int64         // bytes of frames in memory, over all lanes; beyond it they go to the spool
	LaneMemory    int64         // likewise of one lane
	SpoolBytes    int64         // bytes of the spool
	SpoolTable    int64         // bytes of one table there; 0: no limit of its own
	SpoolFree     int64         // bytes of the disk that the spool leaves free, or 5 % of it if that is less
	SpoolSync     time.Duration // how often the spool is forced to disk while it counts as durable
	RetainedBytes int64         // log that the source may keep for the mirror; 0: no limit
	DurableBytes  int64         // log retained at the source beyond which the spool counts as durable; 0: always
	DurableAge    time.Duration // or its age; 0: always
	TableFailures int           // faults of a table in a row before it pauses
	RetryPaused   time.Duration // after which a table paused by a fault is tried again; 0: not by itself
	DiscoverEvery time.Duration // 0: only at the start
	FloorEvery    time.Duration // how often the floor is saved and acknowledged
	DrainFor      time.Duration // how long a stop waits for the appliers
	BackoffMin    time.Duration // between two sessions after the source or the sink could not be reached, doubled each time
	BackoffMax    time.Duration // the longest of these waits
}

// DefaultLimits returns the limits of a mirror without settings.
func DefaultLimits() Limits {
	return Limits{
		CopyWorkers: 4, ChunkRows: 100_000, ViewAge: time.Hour, Appliers: 8, BatchRows: 10_000, BatchBytes: 16 << 20, BatchAge: time.Second,
		LaneBytes: 32 << 20, LaneMemory: 4 << 20, SpoolBytes: 10 << 30, SpoolFree: 1 << 30, SpoolSync: time.Second, DurableBytes: 1 << 30, DurableAge: 10 * time.Minute,
		TableFailures: 3, RetryPaused: 5 * time.Minute, DiscoverEvery: 5 * time.Minute, FloorEvery: 5 * time.Second,
		DrainFor: 30 * time.Second, BackoffMin: 100 * time.Millisecond, BackoffMax: 30 * time.Second,
	}
}

// Run mirrors until ctx ends, which drains and is no error, or with Options.Once until everything has been copied and
// caught up. An error is one that no waiting mends: Kind Setup, Gap, Fenced or Internal, or Unavailable at the very start.
func Run(ctx context.Context, o Options) (*Summary, error) {
	m := &runner{Options: o, totals: map[schema.ID]*totals{}}
	m.observed.began = time.Now()
	m.observed.is(Starting)
	defer m.observed.is(Ended)
	if o.Monitor != nil {
		o.Monitor.run.Store(m)
	}
	backoff := m.Limits.BackoffMin
	for reached := false; ; {
		began := time.Now()
		s, err := m.open(ctx)
		if err == nil {
			reached = true
			m.observed.is(Running)
			err = s.run(ctx)
			m.last = s.summary()
			if errors.Is(err, errFinished) {
				m.last.Kept = s.kept(ctx)
			}
			if closeErr := s.close(); closeErr != nil {
				m.Log.Debug("closed with an error", "error", closeErr)
			}
		}
		if passes(err) && ctx.Err() == nil {
			if tooMuch := m.guardMeanwhile(ctx); tooMuch != nil {
				err = tooMuch
			}
		}
		if again, restartErr := m.restartFor(ctx, err); restartErr != nil {
			err = restartErr
		} else if again != nil {
			if err = m.startOver(ctx, again); err == nil {
				continue
			}
		}
		if ended(err) != nil && !errors.Is(err, errFinished) && !errors.Is(err, errRetry) {
			m.observed.noteError(err)
		}
		switch {
		case ctx.Err() != nil:
			if ended(err) != nil {
				m.Log.Warn("stopped with an error; what was not finished is taken up at the next start", "error", err)
			}
			return m.outcome(), nil
		case errors.Is(err, errFinished), err == nil:
			return m.outcome(), nil
		case errors.Is(err, errRetry):
			continue
		case !passes(err) || !reached:
			return m.outcome(), err
		}
		if time.Since(began) > 10*backoff { // it had been well in between
			backoff = m.Limits.BackoffMin
		}
		m.Log.Warn("source or sink unavailable, trying again", "in", backoff, "error", err)
		m.observed.waits(err, backoff)
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return m.outcome(), nil
		}
		backoff = min(2*backoff, m.Limits.BackoffMax)
	}
}

// passes reports whether waiting may mend an error.
func passes(err error) bool {
	if _, ok := errors.AsType[*state.Error](err); ok {
		return true
	}
	kind := connector.KindOf(err)
	return kind == connector.Unavailable || kind == connector.Conflict
}

var (
	errFinished = errors.New("every table has caught up")               // Options.Once is done
	errRetry    = errors.New("a paused table is due to be tried again") // the log is read again from where it stands
)

// runner is one call of Run: what outlives its sessions.
type runner struct {
	Options
	totals map[schema.ID]*totals
	last   *Summary
	fresh  bool               // the log starts anew: every table needs a copy, now or when a person asks for it
	known  map[schema.ID]bool // the tables of the first session: without Options.FollowNew no others join in a later one

	observed observed

	selecting sync.Mutex // guards Selector
	overLimit bool       // the source keeps too much log, as last seen
	later     bool       // a session has begun before: what a fault paused since is tried again when its time has come
}

// totals counts what a run did for one table.
type totals struct {
	rowsCopied, changes, reread int64 // rowsCopied: of the newest copy
	bytesCopied, bytesApplied   int64

	copied  int64 // rows of the newest copy, of an earlier run too
	before  int64 // changes that earlier runs applied
	readOld int64 // rows that earlier runs read again
	resumed bool  // copied, before and readOld are those of earlier runs
}

func (m *runner) outcome() *Summary {
	if m.last == nil {
		return &Summary{}
	}
	return m.last
}

func (m *runner) total(id schema.ID) *totals {
	if m.totals[id] == nil {
		m.totals[id] = &totals{}
	}
	return m.totals[id]
}

// event records what a person may want to know later. That it cannot be recorded stops nothing.
func (m *runner) event(ctx context.Context, table schema.Name, kind, text string) {
	err := m.Store.AddEvent(ctx, state.Event{At: time.Now(), Table: table, Kind: kind, Text: text})
	if err != nil {
		m.Log.Warn("event not recorded", "kind", kind, "error", err)
	}
}
