package sluice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// Check returns everything that keeps a run from working, with what mends it. It changes nothing.
func (m *Mirror) Check(ctx context.Context, log *slog.Logger) (*mirror.Check, error) {
	id, err := m.savedID(ctx)
	if err != nil {
		return nil, err
	}
	return mirror.MakeCheck(ctx, m.sides(id, log), m.selector(), int64(m.file.Mirror.RetainedLog.Max)), nil
}

// Status returns how the mirror stands, running or not. It changes nothing.
func (m *Mirror) Status(ctx context.Context, log *slog.Logger) (*mirror.Status, error) {
	o := mirror.StatusOptions{Mirror: m.file.Name, Spool: m.file.Mirror.Spool.Path, Selected: m.file.Mirror.Selects, RetainedMax: int64(m.file.Mirror.RetainedLog.Max)}
	var err error
	if o.Owner, err = state.Running(m.file.State.Path); err != nil {
		return nil, err
	}
	id := ""
	store, err := state.OpenRead(ctx, m.file.State.Path)
	if err == nil {
		defer store.Close()
		o.Store = store
		id, err = store.MirrorID(ctx)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o.Sides = m.sides(id, log)
	return mirror.ReadStatus(ctx, o)
}

// Events returns the newest entries of the mirror's history, limit at most, oldest first: those of tables that keep takes,
// or all if keep is nil. It changes nothing.
func (m *Mirror) Events(ctx context.Context, keep func(schema.Name) bool, limit int) ([]state.Event, error) {
	store, err := state.OpenRead(ctx, m.file.State.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer store.Close()
	if keep == nil {
		return store.Events(ctx, limit)
	}
	all, err := store.Events(ctx, math.MaxInt)
	if err != nil {
		return nil, err
	}
	var kept []state.Event
	for _, e := range all {
		if keep(e.Table) {
			kept = append(kept, e)
		}
	}
	return kept[max(0, len(kept)-limit):], nil
}

// Discover returns what the source has. It changes nothing.
func (m *Mirror) Discover(ctx context.Context, log *slog.Logger) ([]mirror.Found, error) {
	source, err := m.openSource(ctx, "", log)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	return mirror.Discover(ctx, source, m.selects)
}

// Teardown removes what the mirror has made: its slot and its own publications at the source, what the sink keeps of it, and the state.
// It returns the destinations, which stay. While the mirror runs it is refused.
func (m *Mirror) Teardown(ctx context.Context, log *slog.Logger) ([]schema.Name, error) {
	_, err := os.Stat(m.file.State.Path)
	known := err == nil
	store, err := state.Open(ctx, m.file.State.Path) // holds the lock
	if err != nil {
		return nil, err
	}
	stay, err := mirror.TearDown(ctx, m.options(store, log))
	if err != nil && known {
		return stay, errors.Join(err, store.Close())
	}
	err = errors.Join(err, store.Remove())
	m.removeFolder()
	return stay, err
}

// removeFolder removes the folders that a state has by default, unless something else is in them.
func (m *Mirror) removeFolder() {
	ours := filepath.Join(m.file.Dir, ".sluice")
	for dir := filepath.Dir(m.file.State.Path); strings.HasPrefix(dir, ours); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return
		}
	}
}

func (m *Mirror) sides(id string, log *slog.Logger) mirror.Sides {
	return mirror.Sides{
		Source: func(ctx context.Context) (connector.Source, error) { return m.openSource(ctx, id, log) },
		Sink:   func(ctx context.Context) (connector.Sink, error) { return m.openSink(ctx, id, log) },
	}
}

// noteKept tells in the summary of a run that has ended by itself what it leaves at the source.
func (m *Mirror) noteKept(s *mirror.Summary) {
	for _, what := range s.Kept {
		s.Notes = append(s.Notes, fmt.Sprintf("%s stays at the source, which keeps its log from here on for the next run. If there will be none: sluice teardown %s",
			what, m.file.Path))
	}
}
