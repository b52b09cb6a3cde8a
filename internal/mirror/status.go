package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

const (
	// sideTimeout is how long a side has to answer.
	sideTimeout = 5 * time.Second
	// freshFor is how long what a run has saved tells of the present: some times progressEvery.
	freshFor = 15 * time.Second
)

// Status is how a mirror stands, running or not.
type Status struct {
	Mirror        string
	Running       bool
	PID           int       // of the process that runs it; 0: none, or not known
	Since         time.Time // since it runs, or does not; zero: it was never run
	Position      string    // everything up to here is durable in the sink
	Lag           time.Duration
	SpoolBytes    int64
	RetainedBytes int64  // of log at the source; -1: not known
	RetainedMax   int64  // as the config allows; 0: no limit
	Kept          string // what makes the source keep it
	Source, Sink  Side
	Tables        []TableStatus // by name
}

// Side is whether an end of the mirror can be used.
type Side struct {
	State string // "reachable", "unreachable", or "unusable" where a person must act
	Error string // why it is not reachable
}

// TableStatus is how one table stands. A Lag of -1 and LagBytes of -1 are not known.
type TableStatus struct {
	state.Table
	Selected bool // by the config as it is now
	Lag      time.Duration
	LagBytes int64
}

// TooMuchLog reports whether the source keeps more log for the mirror than it may.
func (s *Status) TooMuchLog() bool { return s.RetainedMax > 0 && s.RetainedBytes > s.RetainedMax }

// InOrder reports whether each selected table is mirrored, and the source keeps no more log than it may.
func (s *Status) InOrder() bool {
	return !s.TooMuchLog() && !slices.ContainsFunc(s.Tables, func(t TableStatus) bool {
		return t.Selected && (t.Phase == string(Paused) || t.Phase == string(Refused))
	})
}

// StatusOptions is what ReadStatus needs.
type StatusOptions struct {
	Mirror   string
	Sides    Sides
	Store    *state.Store // nil: the mirror was never run
	Owner    *state.Owner // nil: it does not run
	Spool    string       // folder, which need not exist
	Selected func(schema.Name) bool

	RetainedMax int64 // bytes of log that the source may keep; 0: no limit
}

// ReadStatus reads the state and asks both sides whether they can be used. It changes nothing.
func ReadStatus(ctx context.Context, o StatusOptions) (*Status, error) {
	s := &Status{Mirror: o.Mirror, Lag: -1, RetainedBytes: -1, RetainedMax: o.RetainedMax}
	var logs floors
	if o.Store != nil {
		var err error
		if logs, err = s.readState(ctx, o, time.Now()); err != nil {
			return nil, err
		}
	}
	if o.Owner != nil {
		s.Running, s.PID, s.Since = true, o.Owner.PID, o.Owner.Since
	}
	var err error
	if s.SpoolBytes, err = folderSize(o.Spool); err != nil {
		return nil, err
	}
	var g errgroup.Group
	g.Go(func() error {
		s.Source = probe(ctx, func(ctx context.Context) error { return s.askSource(ctx, o, logs) })
		return nil
	})
	g.Go(func() error {
		s.Sink = probe(ctx, func(ctx context.Context) error { return askSink(ctx, o) })
		return nil
	})
	_ = g.Wait() // they return no error
	return s, ctx.Err()
}

func (s *Status) readState(ctx context.Context, o StatusOptions, now time.Time) (floors, error) {
	run, err := o.Store.Run(ctx)
	if err != nil {
		return nil, err
	}
	tables, err := o.Store.Tables(ctx)
	if err != nil {
		return nil, err
	}
	text, err := o.Store.Floor(ctx)
	if err != nil {
		return nil, err
	}
	var logs floors
	if text != "" {
		if err := json.Unmarshal([]byte(text), &logs); err != nil {
			return nil, &connector.Error{Kind: connector.Setup, System: "state", Op: "read the floor", Err: err}
		}
	}
	s.Since, s.Position = run.Saved, logs.String()
	for _, t := range tables {
		status := TableStatus{Table: t, Selected: o.Selected(t.Name)}
		status.splitRemedy()
		status.Lag, status.LagBytes = lagOf(&t, run, now)
		s.Lag = max(s.Lag, status.Lag)
		s.Tables = append(s.Tables, status)
	}
	return logs, nil
}

// splitRemedy parts the reason of a refused table from what to do, which stands behind the first semicolon, see
// Check.refuse.
func (t *TableStatus) splitRemedy() {
	if t.Phase == string(Refused) && t.Remedy == "" {
		t.Reason, t.Remedy, _ = strings.Cut(t.Reason, "; ")
	}
}

// lagOf returns how far a table is behind. When nobody has looked for a while there may be changes that nobody knows of: a
// table that had none then counts as behind since.
func lagOf(t *state.Table, run state.Run, now time.Time) (time.Duration, int64) {
	switch phase := Phase(t.Phase); {
	case phase == Pending, phase == Refused, phase == Dropped, run.Saved.IsZero():
		return -1, -1
	}
	fresh := now.Sub(run.Saved) <= freshFor
	since, bytes := t.BehindSince, t.BehindBytes
	switch {
	case since.IsZero() && fresh:
		return 0, 0
	case since.IsZero():
		since = run.Saved.Add(run.ClockAhead)
	}
	if !fresh {
		bytes = -1
	}
	return max(0, now.Add(run.ClockAhead).Sub(since)), bytes
}

// String writes the positions of all logs; mostly there is one.
func (f floors) String() string {
	var texts []string
	for _, log := range slices.Sorted(maps.Keys(f)) {
		for _, part := range slices.Sorted(maps.Keys(f[log])) {
			texts = append(texts, string(f[log][part]))
		}
	}
	return strings.Join(texts, ", ")
}

// folderSize returns the bytes of the files in a folder, 0 if it does not exist.
func folderSize(path string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(path, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // not there, or deleted a moment ago
			return nil
		}
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, &state.Error{Path: path, Op: "look at the spool", Err: err}
	}
	return sum, nil
}

// probe runs ask for a bounded time and judges its error.
func probe(ctx context.Context, ask func(context.Context) error) Side {
	ctx, cancel := context.WithTimeout(ctx, sideTimeout)
	defer cancel()
	err := ask(ctx)
	switch {
	case err == nil:
		return Side{State: "reachable"}
	case errors.Is(err, context.DeadlineExceeded):
		return Side{State: "unreachable", Error: fmt.Sprintf("no answer within %v", sideTimeout)}
	case passes(err):
		return Side{State: "unreachable", Error: err.Error()}
	default:
		return Side{State: "unusable", Error: err.Error()}
	}
}

// askSource opens the source and asks how much log it keeps for the mirror.
func (s *Status) askSource(ctx context.Context, o StatusOptions, logs floors) error {
	source, err := o.Sides.Source(ctx)
	if err != nil {
		return err
	}
	defer source.Close()
	retainer, ok := source.(connector.Retainer)
	if !ok || len(logs) == 0 {
		return nil
	}
	var sum int64
	var names []string
	for _, log := range slices.Sorted(maps.Keys(logs)) {
		kept, err := retainer.Retained(ctx, log)
		if err != nil {
			return err
		}
		sum += kept.Bytes
		names = append(names, kept.By)
	}
	s.RetainedBytes, s.Kept = sum, strings.Join(names, ", ")
	return nil
}

func askSink(ctx context.Context, o StatusOptions) error {
	sink, err := o.Sides.Sink(ctx)
	if err != nil {
		return err
	}
	defer sink.Close()
	if checker, ok := sink.(connector.Checker); ok {
		_, err = checker.Check(ctx, nil)
	}
	return err
}
