package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// noteQuarantine tells of the first row of a table that goes into its quarantine, and of the last one that leaves it.
func (s *session) noteQuarantine(ctx context.Context, t *table) {
	now := t.quarantine.Len()
	t.mu.Lock()
	was := t.quarantined
	t.quarantined = now
	t.mu.Unlock()
	switch {
	case was == 0 && now > 0:
		s.Log.Warn("rows are in quarantine", "table", t.name().String())
		s.event(ctx, t.name(), "quarantined", "the sink refuses rows of it; `sluice quarantine list` tells which, and why")
	case was > 0 && now == 0:
		s.Log.Info("no row is in quarantine any more", "table", t.name().String())
		s.event(ctx, t.name(), "quarantine_empty", "")
	}
}

// quarantineFor tries rows in quarantine again, or drops them from it. It waits for the end of a copy, with which earlier
// rows leave the quarantine.
func (s *session) quarantineFor(ctx context.Context, o *order, t *table) error {
	if !s.accept(ctx, o) {
		return nil
	}
	if t.inPhase(Pending, Copying) {
		s.release(t) // it may have been halted, and then sent back to the start by who had it
		return nil
	}
	if !t.halt() {
		return nil
	}
	defer s.release(t)
	t.mu.Lock()
	applier := t.apply
	t.mu.Unlock()
	if applier == nil {
		s.conclude(ctx, o, false, "its rows are not in place: `sluice resume` or `sluice resync` it first")
		return nil
	}
	fulfilled, outcome, err := changeQuarantine(ctx, applier, o)
	if err == nil || ofOneTable(err) {
		at := applier.Checkpoint() // also after an error a part may be done
		t.mu.Lock()
		t.entry, t.overlap = at.String(), at.Converged()
		t.total.reread += applier.Reread()
		t.mu.Unlock()
		s.noteQuarantine(ctx, t)
	}
	switch {
	case err == nil:
		s.conclude(ctx, o, fulfilled, outcome)
		return nil
	case ctx.Err() == nil && ofOneTable(err):
		s.conclude(ctx, o, false, err.Error())
		return nil
	}
	return err
}

// changeQuarantine does what an order says to a table that nobody works on.
func changeQuarantine(ctx context.Context, t *apply.Table, o *order) (fulfilled bool, outcome string, err error) {
	var rows []string
	if o.Row != "" {
		rows = []string{o.Row}
	}
	if o.Kind == state.Drop {
		n, err := t.Drop(ctx, rows)
		return true, fmt.Sprintf("%d rows dropped from quarantine; they differ from the source until a change brings them whole, or `sluice resync`", n), err
	}
	tried, refused, err := t.Retry(ctx, rows)
	if refused > 0 {
		return false, fmt.Sprintf("%d of %d rows are refused again; `sluice quarantine list` tells why", refused, tried), err
	}
	return true, fmt.Sprintf("%d rows are as at the source again", tried), err
}

// ReadQuarantine returns the rows in quarantine of the tables of these ids, by table, those that were refused first in front.
// It changes nothing. A table without its place in the sink yet has none.
func ReadQuarantine(ctx context.Context, sink connector.Sink, tables []schema.ID) ([]apply.Quarantined, error) {
	entries, err := entriesOf(ctx, sink)
	if err != nil {
		return nil, err
	}
	var rows []apply.Quarantined
	for key, text := range entries {
		id, _, ok := apply.ParseQuarantineKey(key)
		if !ok || !slices.Contains(tables, id) {
			continue
		}
		row, err := apply.ParseQuarantined(key, text)
		if err != nil {
			return nil, &connector.Error{Kind: connector.Setup, System: "sink", Op: "read the quarantine", Err: err}
		}
		rows = append(rows, *row)
	}
	slices.SortFunc(rows, func(a, b apply.Quarantined) int {
		if order := strings.Compare(a.Table, b.Table); order != 0 {
			return order
		}
		if order := a.Since.Compare(b.Since); order != 0 {
			return order
		}
		return strings.Compare(a.ID, b.ID)
	})
	return rows, nil
}
