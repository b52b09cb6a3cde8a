// Package sluice mirrors databases: it copies each table of a source from a recorded position of its change log and then
// follows the log for ever, table by table, into another system. This package is the library behind the command of the
// same name: load a config file, plan, run.
package sluice

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/all"
	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// Mirror is a mirror as its config file describes it.
type Mirror struct{ file *config.File }

// Load reads and checks a config file. Its error lists every finding, each with file, line and column. It opens no
// connection.
func Load(path string) (*Mirror, error) {
	file, err := config.Load(path, all.Drivers())
	if err != nil {
		return nil, err
	}
	return &Mirror{file}, nil
}

// Schema returns the JSON Schema of config files.
func Schema() ([]byte, error) { return config.Schema(all.Drivers()) }

// Name returns the mirror's name.
func (m *Mirror) Name() string { return m.file.Name }

// Plan returns what a run would do, table by table. It writes nothing, neither to the source nor to the sink nor to disk.
func (m *Mirror) Plan(ctx context.Context, log *slog.Logger) (*mirror.Plan, error) {
	id, err := m.savedID(ctx)
	if err != nil {
		return nil, err
	}
	source, err := m.openSource(ctx, id, log)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	sink, err := m.openSink(ctx, id, log)
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	return mirror.MakePlan(ctx, source, sink, m.selector())
}

// savedID returns the mirror's id, "" before its first run.
func (m *Mirror) savedID(ctx context.Context) (string, error) {
	store, err := state.OpenRead(ctx, m.file.State.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer store.Close()
	return store.MirrorID(ctx)
}

// RunOptions is how a mirror is run.
type RunOptions struct {
	Once bool // copy, catch up to the end of the log as it is then, and return; else follow until ctx ends
	Log  *slog.Logger
	// Reload asks for the config file to be read again: which tables are mirrored, and how. Tables whose settings changed
	// pause until the change is undone or Resync accepts it; other changes need a restart. May be nil.
	Reload <-chan struct{}

	Monitor *Monitor // shows how the run stands while it goes on; nil: nobody asks
}

// Monitor lets others see how a run stands while it goes on. The zero value is ready; it is given to one Run at a time, and
// asked from any goroutine. The package metrics serves what it tells to Prometheus.
type Monitor = mirror.Monitor

// Run mirrors until ctx ends, which drains: what was read is applied and acknowledged. It makes the state's folder and
// holds its lock; a second run on the same state is refused.
func (m *Mirror) Run(ctx context.Context, options RunOptions) (*mirror.Summary, error) {
	store, err := state.Open(ctx, m.file.State.Path)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	o := m.options(store, options.Log)
	o.Once, o.Monitor = options.Once, options.Monitor
	reloads := make(chan mirror.Selector)
	o.Reloads = reloads
	reloading, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { (&reloader{m, options, store, reloads}).run(reloading) })
	summary, err := mirror.Run(ctx, o)
	stop()
	wg.Wait()
	if summary != nil {
		m.noteKept(summary)
	}
	return summary, err
}

// options are those of the engine, as the config file says.
func (m *Mirror) options(store *state.Store, log *slog.Logger) mirror.Options {
	settings := m.file.Mirror
	limits := mirror.DefaultLimits()
	limits.CopyWorkers, limits.ChunkRows = settings.Snapshot.Concurrency, settings.Snapshot.ChunkRows
	limits.ViewAge = time.Duration(settings.Snapshot.MaxAge)
	limits.Appliers = settings.Apply.Concurrency
	limits.BatchRows, limits.BatchBytes = int(settings.Apply.BatchRows), int64(settings.Apply.BatchBytes)
	limits.BatchAge = time.Duration(settings.Apply.BatchAge)
	limits.TableFailures = settings.MaxTableFailures
	limits.RetryPaused = time.Duration(settings.RetryPaused)
	limits.SpoolBytes, limits.SpoolTable = int64(settings.Spool.Max), int64(settings.Spool.TableMax)
	limits.RetainedBytes = int64(settings.RetainedLog.Max)
	limits.DurableBytes = int64(settings.Spool.DurableAfter.Bytes)
	limits.DurableAge = time.Duration(settings.Spool.DurableAfter.Age)
	limits.DiscoverEvery = time.Duration(settings.Tables.DiscoverInterval)
	return mirror.Options{
		Mirror: m.file.Name,
		Source: func(ctx context.Context, id string) (connector.Source, error) { return m.openSource(ctx, id, log) },
		Sink:   func(ctx context.Context, id string) (connector.Sink, error) { return m.openSink(ctx, id, log) },
		Store:  store, Selector: m.selector(), Limits: limits, Spool: settings.Spool.Path,
		OnRetained:  mirror.RetainedAction(settings.RetainedLog.Action),
		FollowNew:   settings.Tables.NewTables == config.Follow,
		ResyncOnGap: settings.OnGap == config.ResyncOnGap,
		FailOnTable: settings.OnTableError == config.FailOnError,
		Log:         log, Alloc: memory.DefaultAllocator,
	}
}

var existing = map[config.Existing]connector.Existing{
	config.RefuseExisting: connector.RefuseExisting, config.ReplaceExisting: connector.ReplaceExisting, config.MergeExisting: connector.MergeExisting,
}

var schemaPolicies = map[config.SchemaChanges]mirror.SchemaPolicy{
	config.FollowSchema: mirror.FollowSchema, config.PauseSchema: mirror.PauseSchema, config.IgnoreSchema: mirror.IgnoreSchema,
}

// selects reports whether and how a table is mirrored.
func (m *Mirror) selects(t *schema.Table) (mirror.Settings, bool) {
	settings := m.file.Mirror
	if !settings.Selects(t.Name) {
		return mirror.Settings{}, false
	}
	keyless := len(t.Key) == 0 && settings.WithoutPrimaryKey == config.HistoryKeyless
	history := settings.ModeOf(t.Name) == config.History || keyless
	own := settings.ForTable(t.Name)
	return mirror.Settings{
		Destination:   settings.DestinationOf(t.Name),
		History:       history,
		SoftDelete:    settings.DeletesOf(t.Name) == config.SoftDeletes && !keyless,
		Existing:      existing[settings.ExistingOf(t.Name)],
		Quarantine:    settings.OnBadRowOf(t.Name) == config.QuarantineBadRow,
		SchemaChanges: schemaPolicies[settings.SchemaChangesOf(t.Name)], DropColumns: settings.DroppedColumns == config.DropColumns,
		Key: own.Key, Columns: own.Columns, ExcludeColumns: own.ExcludeColumns, Filter: own.Filter, Where: own.Where,
	}, true
}

func (m *Mirror) selector() mirror.Selector {
	return mirror.Selector{Select: m.selects, Unused: m.file.Mirror.Unused}
}

func (m *Mirror) openSource(ctx context.Context, id string, log *slog.Logger) (connector.Source, error) {
	block := m.file.Source
	return block.Driver.Source(ctx, block.Config, m.env(id, log))
}

func (m *Mirror) openSink(ctx context.Context, id string, log *slog.Logger) (connector.Sink, error) {
	block := m.file.Sink
	return block.Driver.Sink(ctx, block.Config, m.env(id, log))
}

func (m *Mirror) env(id string, log *slog.Logger) connector.Env {
	return connector.Env{Mirror: m.file.Name, ID: id, Dir: m.file.Dir, Log: log, Alloc: memory.DefaultAllocator}
}
