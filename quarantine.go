package sluice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// NoRowError says that no row in quarantine has a key.
type NoRowError struct{ Key string }

// Error names the key, which a person has given.
func (e *NoRowError) Error() string {
	return fmt.Sprintf("no row in quarantine has the key %q; `sluice quarantine list` shows those that are there", e.Key)
}

// Quarantine returns the rows that the sink does not have as the source does because it refused them, of these tables, names
// or patterns, or of all if there are none. It reads the sink, beside a run too, and changes nothing.
func (m *Mirror) Quarantine(ctx context.Context, tables []string, log *slog.Logger) ([]apply.Quarantined, error) {
	store, err := state.OpenRead(ctx, m.file.State.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer store.Close()
	chosen, err := store.Tables(ctx)
	if err == nil && len(tables) > 0 {
		chosen, err = choose(chosen, tables)
	}
	if err != nil {
		return nil, err
	}
	ids := make([]schema.ID, len(chosen))
	for i, t := range chosen {
		ids[i] = t.ID
	}
	return m.quarantined(ctx, store, ids, log)
}

func (m *Mirror) quarantined(ctx context.Context, store *state.Store, ids []schema.ID, log *slog.Logger) ([]apply.Quarantined, error) {
	id, err := store.MirrorID(ctx)
	if err != nil {
		return nil, err
	}
	sink, err := m.openSink(ctx, id, log)
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	return mirror.ReadQuarantine(ctx, sink, ids)
}

// RetryQuarantined reads rows in quarantine from the source and puts them into the sink as they are now, all of the tables
// or those of CommandOptions.Row. What the sink takes is out of quarantine.
func (m *Mirror) RetryQuarantined(ctx context.Context, tables []string, o CommandOptions) ([]CommandResult, error) {
	return m.commandFor(ctx, state.Retry, tables, o, m.rowsOf(ctx, o.Row))
}

// DropQuarantined takes rows out of quarantine, all of the tables or those of CommandOptions.Row, and leaves the sink as it
// is: they differ from the source until a change brings them whole, or a new copy.
func (m *Mirror) DropQuarantined(ctx context.Context, tables []string, o CommandOptions) ([]CommandResult, error) {
	return m.commandFor(ctx, state.Drop, tables, o, m.rowsOf(ctx, o.Row))
}

// rowsOf returns what tells which rows of a table have a key, given as ShownKey has it; "": all.
func (m *Mirror) rowsOf(ctx context.Context, key string) func(state.Table) ([]string, error) {
	return func(t state.Table) ([]string, error) {
		if key == "" {
			return []string{""}, nil
		}
		held, err := m.Quarantine(ctx, []string{t.Name.String()}, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		var rows []string
		for _, q := range held {
			if ShownKey(&q) == key {
				rows = append(rows, q.ID)
			}
		}
		if rows == nil {
			return nil, &NoRowError{Key: key}
		}
		return rows, nil
	}
}

// ShownKey is the key of a row in quarantine for people: its values, in the order of the key.
func ShownKey(q *apply.Quarantined) string { return strings.Join(q.Shown, ", ") }
