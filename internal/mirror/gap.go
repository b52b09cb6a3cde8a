package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// restart is a new start of the log, the answer to one that lacks what is needed.
type restart struct {
	why    error
	paused []state.Table // the tables that wait for a person then; the others are copied anew
}

// restartFor returns the answer to what ended a session, nil if it is not to be answered by a new start of the log. Who
// lets the log be dropped when it is too much also wants what follows from that, at the next start of the process too.
func (m *runner) restartFor(ctx context.Context, err error) (*restart, error) {
	switch {
	case ctx.Err() != nil:
		return nil, nil
	case errors.Is(err, errTooMuchLog):
		return &restart{why: err}, nil
	case connector.KindOf(err) != connector.Gap || m.fresh:
		return nil, nil
	case m.ResyncOnGap, m.OnRetained == DropRetained && m.Limits.RetainedBytes > 0:
		return &restart{why: err}, nil
	}
	records, storeErr := m.Store.Tables(ctx)
	if storeErr != nil {
		return nil, storeErr
	}
	lack := slices.DeleteFunc(slices.Clone(records), func(r state.Table) bool { return !hasRows(&r) })
	agreed, storeErr := m.resyncsAreAsked(ctx, lack)
	if storeErr != nil {
		return nil, storeErr
	}
	_, elsewhere := errors.AsType[*connector.OtherHistoryError](err)
	switch {
	case agreed:
		return &restart{why: err}, nil
	case elsewhere || len(records) == 0: // nothing is given up unasked that may still be good, or is not known
		return nil, nil
	}
	return &restart{why: err, paused: lack}, nil
}

// hasRows reports whether a table of the state has rows in the sink that a person may want to keep reading.
func hasRows(r *state.Table) bool {
	switch Phase(r.Phase) {
	case CatchingUp, Streaming:
		return true
	case Paused:
		return r.PausedBy == byGap || r.Checkpoint != ""
	}
	return false
}

// resyncsAreAsked reports whether a person has asked for a new copy of each of the tables.
func (m *runner) resyncsAreAsked(ctx context.Context, tables []state.Table) (bool, error) {
	commands, err := m.Store.OpenCommands(ctx)
	if err != nil || len(tables) == 0 {
		return false, err
	}
	return !slices.ContainsFunc(tables, func(t state.Table) bool {
		return !slices.ContainsFunc(commands, func(c state.Command) bool { return c.Kind == state.Resync && c.Table == t.ID })
	}), nil
}

// startOver forgets the log's position: what the source kept for us is dropped, and the next session makes it anew. First
// it becomes durable which tables wait for a person then.
func (m *runner) startOver(ctx context.Context, r *restart) error {
	m.Log.Warn("the log is given up, and begins anew", "tables_that_wait", len(r.paused), "error", r.why)
	if err := m.pauseForGap(ctx, r); err != nil {
		return err
	}
	id, err := m.Store.MirrorID(ctx)
	if err != nil {
		return err
	}
	source, err := m.Source(ctx, id)
	if err != nil {
		return err
	}
	defer source.Close()
	if remover, ok := source.(connector.Remover); ok {
		if err := remover.Remove(ctx); err != nil {
			return err
		}
	}
	m.fresh = true
	m.overLimit = false
	m.event(ctx, schema.Name{}, "gap", r.why.Error())
	return nil
}

// pauseForGap has the state keep which tables lack changes, and since where.
func (m *runner) pauseForGap(ctx context.Context, r *restart) error {
	if len(r.paused) == 0 {
		return nil
	}
	known, err := readFloors(ctx, m.Store)
	if err != nil {
		return err
	}
	now := time.Now()
	for i := range r.paused {
		t := &r.paused[i]
		if t.PausedBy == byGap { // since the first one that nobody has mended
			continue
		}
		t.Phase, t.PausedBy, t.Since, t.RetryAt = string(Paused), byGap, now, time.Time{}
		t.Reason = fmt.Sprintf("gap: its changes since %s are lost: %v", lacksSince(t, known), r.why)
		t.Remedy = "`sluice resync` copies it anew; until then its rows stand still"
		m.event(ctx, t.Name, "paused", t.Reason)
	}
	return m.Store.SaveTables(ctx, r.paused...)
}

// lacksSince names the position up to which the sink has all of a table: its checkpoint, or the floor if that is later, as
// far as the state knows.
func lacksSince(t *state.Table, known floors) string {
	if len(known) > 0 {
		return known.String()
	}
	if at, err := apply.ParseCheckpoint(t.Checkpoint); err == nil {
		return string(at.Position)
	}
	return "its copy"
}
