package sluice

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
)

// taken are the settings that a running mirror takes from its config file when that is read again: those of which
// Mirror.selector makes a selection.
var taken = []string{
	"mirror.tables.include", "mirror.tables.exclude", "mirror.destination.schema", "mirror.destination.table", "mirror.mode",
	"mirror.deletes", "mirror.existing", "mirror.without_primary_key", "mirror.schema_changes", "mirror.dropped_columns",
	"mirror.on_bad_row",
	"mirror.per_table.destination.schema", "mirror.per_table.destination.table", "mirror.per_table.mode", "mirror.per_table.key",
	"mirror.per_table.columns", "mirror.per_table.exclude_columns", "mirror.per_table.filter", "mirror.per_table.deletes",
	"mirror.per_table.existing", "mirror.per_table.schema_changes", "mirror.per_table.on_bad_row",
}

// fixed are the settings, or groups of them, that hold from the start of a run to its end.
var fixed = []string{
	"version", "name", "source", "sink", "state",
	"mirror.tables.new_tables", "mirror.tables.discover_interval", "mirror.dropped_partitions", "mirror.on_unrepresentable",
	"mirror.on_gap", "mirror.on_table_error", "mirror.max_table_failures", "mirror.retry_paused", "mirror.retained_log",
	"mirror.max_row_bytes", "mirror.snapshot", "mirror.apply", "mirror.spool", "mirror.per_table.on_unrepresentable",
}

// reloader reads the config file again while the mirror runs.
type reloader struct {
	*Mirror
	options RunOptions
	store   *state.Store
	to      chan<- mirror.Selector
}

// run reads the file each time that it is asked to, until ctx ends.
func (r *reloader) run(ctx context.Context) {
	for {
		select {
		case <-r.options.Reload:
			r.reload(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// reload hands the selection of the file as it is now to the engine. What else has changed needs a restart; a file that is
// not in order changes nothing.
func (r *reloader) reload(ctx context.Context) {
	next, err := Load(r.file.Path)
	if err != nil {
		r.options.Log.Error("config file is not in order, so nothing changes", "error", err)
		r.event(ctx, "config_invalid", err.Error())
		return
	}
	if later := needRestart(r.file, next.file); len(later) > 0 {
		r.options.Log.Warn("settings changed that need a restart", "settings", strings.Join(later, ", "))
	}
	select {
	case r.to <- next.selector():
		r.options.Log.Info("config file is read again")
		r.event(ctx, "config_read", "")
	case <-ctx.Done():
	}
}

func (r *reloader) event(ctx context.Context, kind, text string) {
	if err := r.store.AddEvent(ctx, state.Event{At: time.Now(), Kind: kind, Text: text}); err != nil && ctx.Err() == nil {
		r.options.Log.Warn("event not recorded", "kind", kind, "error", err)
	}
}

// needRestart returns the settings that differ and that a running mirror does not take.
func needRestart(is, next *config.File) []string {
	return slices.DeleteFunc(config.Differences(is, next), func(key string) bool { return slices.Contains(taken, key) })
}
