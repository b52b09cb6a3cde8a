// Package config reads config files. Each setting is declared once, as a field with tags, and that declaration gives its
// parsing, its checks, its explanation in errors, and its part of the JSON Schema:
//
//	yaml      the key
//	doc       what it does, for people
//	required  "true": there is no default
//	min, max  limits, written as the value would be
//	enum      the possible values, separated by "|"
//	later     those of them that are not available yet; "*": only the default is
//	secret    "true": the value never appears in an error
//	side      "source" or "sink": the end that a connector's setting is for
//
// A default is what the constructor of the struct sets.
package config

import (
	"fmt"
	"slices"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/nearest"
	"github.com/sluicehq/sluice/schema"
)

// File is a config file that was found in order.
type File struct {
	Path string `yaml:"-"` // as it was given
	Dir  string `yaml:"-"` // its folder, absolute; relative paths in it begin there

	Version int     `yaml:"version" required:"true" min:"1" max:"1" doc:"Version of the config's format."`
	Name    string  `yaml:"name" required:"true" doc:"Name of the mirror: letters, digits, - and _, 40 at most. It names the slot, the state and the checkpoints."`
	Source  Block   `yaml:"source" required:"true" side:"source" doc:"The system that is read, snapshot and change log alike."`
	Sink    Block   `yaml:"sink" required:"true" side:"sink" doc:"The system that is written."`
	State   State   `yaml:"state" doc:"Where the mirror keeps what it must remember beside the sink."`
	Mirror  *Mirror `yaml:"mirror" required:"true" doc:"What is mirrored, and how. May be empty: every table, with the defaults."`
}

// Block is a source or a sink.
type Block struct {
	Type   string
	Driver connector.Driver
	Config connector.Config // of the type that Driver.NewConfig makes, validated
}

// State is where the state is kept.
type State struct {
	Type string `yaml:"type" enum:"sqlite|postgres" later:"postgres" doc:"Kind of store."`
	Path string `yaml:"path" doc:"File, relative to the config file. By default .sluice/NAME/state.db."` // absolute after Load
	URL  string `yaml:"url" secret:"true" later:"*" doc:"Connection string, for type postgres."`
}

// Values of settings.
type (
	// Mode is what the sink keeps of a table.
	Mode string
	// Deletes is what becomes of a row that was deleted.
	Deletes string
	// Existing is what becomes of a destination that somebody else has made.
	Existing string
	// NewTables is what happens to a table that appears while the mirror runs.
	NewTables string
	// Keyless is what happens to a table without a usable key.
	Keyless string
	// OnGap is what happens to a table whose changes are gone from the log.
	OnGap string
	// OnBadRow is what happens to a row that the sink refuses.
	OnBadRow string
	// SchemaChanges is what happens when a table's columns change.
	SchemaChanges string
	// DroppedColumns is what happens in the sink to a column that was dropped.
	DroppedColumns string
	// OnTableError is what happens when a table cannot go on.
	OnTableError string
)

// The values available.
const (
	Current Mode = "current" // the rows as they are now
	History Mode = "history" // every change, appended

	HardDeletes Deletes = "hard" // the row goes
	SoftDeletes Deletes = "soft" // it stays, with the time of its deletion

	RefuseExisting  Existing = "refuse"  // the table is refused if there are rows
	ReplaceExisting Existing = "replace" // the copy's rows take the place of those that are there
	MergeExisting   Existing = "merge"   // they are put among those that are there

	Follow NewTables = "follow"
	Ignore NewTables = "ignore"

	RefuseKeyless  Keyless = "refuse"
	HistoryKeyless Keyless = "history"

	PauseOnGap  OnGap = "pause"
	ResyncOnGap OnGap = "resync"

	PauseOnBadRow    OnBadRow = "pause"
	QuarantineBadRow OnBadRow = "quarantine"

	FollowSchema SchemaChanges = "follow" // alter the destination, or copy the table anew
	PauseSchema  SchemaChanges = "pause"
	IgnoreSchema SchemaChanges = "ignore" // go on with the columns known

	KeepColumns DroppedColumns = "keep"
	DropColumns DroppedColumns = "drop"

	PauseOnError OnTableError = "pause"
	FailOnError  OnTableError = "fail"
)

// Mirror is how tables are mirrored.
type Mirror struct {
	Tables            Tables         `yaml:"tables" doc:"Which tables are mirrored."`
	Destination       Destination    `yaml:"destination" doc:"Where a table goes."`
	Mode              Mode           `yaml:"mode" enum:"current|history" doc:"What the sink keeps: the rows as they are now, or every change, appended."`
	Deletes           Deletes        `yaml:"deletes" enum:"hard|soft" doc:"Whether a deleted row goes, or stays with the time of its deletion in the column _sluice_deleted_at."`
	Existing          Existing       `yaml:"existing" enum:"refuse|replace|merge" doc:"What happens to a destination that somebody else has made and that holds rows: the table is refused, the copy takes the place of the rows, or is merged into them by key."`
	WithoutPrimaryKey Keyless        `yaml:"without_primary_key" enum:"refuse|history|full_row" later:"full_row" doc:"What happens to a table without a usable key."`
	SchemaChanges     SchemaChanges  `yaml:"schema_changes" enum:"follow|pause|ignore" doc:"What happens when a table's columns change."`
	DroppedColumns    DroppedColumns `yaml:"dropped_columns" enum:"keep|drop" doc:"What happens in the sink to a column that was dropped."`
	DroppedPartitions string         `yaml:"dropped_partitions" enum:"keep|delete" later:"delete" doc:"What happens in the sink to the rows of a partition that was dropped, detached or truncated at the source."`
	OnUnrepresentable string         `yaml:"on_unrepresentable" enum:"error|null|clamp|text|quarantine" later:"null|clamp|text|quarantine" doc:"What happens to a value that the sink cannot hold."`
	OnBadRow          OnBadRow       `yaml:"on_bad_row" enum:"pause|quarantine" doc:"What happens to a row that the sink refuses: its table waits for a person, or the row goes into quarantine and the table goes on."`
	OnGap             OnGap          `yaml:"on_gap" enum:"pause|resync" doc:"What happens to a table whose changes are gone from the log: it waits for a person, or is copied again."`
	OnTableError      OnTableError   `yaml:"on_table_error" enum:"pause|fail" doc:"What happens when a table cannot go on: it alone pauses, or the run ends."`
	MaxTableFailures  int            `yaml:"max_table_failures" min:"1" max:"1000" doc:"Failures in a row after which a table is paused."`
	RetryPaused       Duration       `yaml:"retry_paused" doc:"Time after which a table that a fault paused is tried again; 0: only by hand."`
	RetainedLog       RetainedLog    `yaml:"retained_log" doc:"Limit for the log that the source keeps for the mirror."`
	MaxRowBytes       Size           `yaml:"max_row_bytes" min:"1KiB" max:"1GiB" later:"*" doc:"Largest row that is mirrored."`
	Snapshot          Snapshot       `yaml:"snapshot" doc:"How tables are copied."`
	Apply             Apply          `yaml:"apply" doc:"How changes are written."`
	Spool             Spool          `yaml:"spool" doc:"Where changes wait that no memory is left for."`
	// PerTable holds what single tables have of their own. ForTable finds in it.
	PerTable map[schema.Name]*PerTable `yaml:"per_table" doc:"Settings of single tables, by exact name."`
}

// Tables selects tables by name.
type Tables struct {
	Include          []Pattern `yaml:"include" doc:"Patterns; a table is mirrored if one of them matches its name."`
	Exclude          []Pattern `yaml:"exclude" doc:"Patterns; a table is not mirrored if one of them matches its name."`
	NewTables        NewTables `yaml:"new_tables" enum:"follow|ignore" doc:"Whether tables made while the mirror runs are mirrored too."`
	DiscoverInterval Duration  `yaml:"discover_interval" doc:"How often the source is asked for its tables; 0: only at the start."`
}

// Destination says where a table goes.
type Destination struct {
	Schema Template `yaml:"schema" doc:"Schema, with {schema} and {table} for the names at the source."`
	Table  Template `yaml:"table" doc:"Table, with {schema} and {table} for the names at the source."`
}

// RetainedLog limits the log that the source keeps.
type RetainedLog struct {
	Max    Size   `yaml:"max" doc:"Bytes; 0: no limit."`
	Action string `yaml:"action" enum:"warn|detach|drop_slot" doc:"What happens beyond the limit: it is said; the table that holds the log back is given up and copied again; or the log is given up and every table copied again."`
}

// Snapshot is how tables are copied.
type Snapshot struct {
	Concurrency int      `yaml:"concurrency" min:"1" max:"64" doc:"Chunks that are copied at once over all tables; each takes a connection at both ends."`
	ChunkRows   int64    `yaml:"chunk_rows" min:"1" max:"100000000" doc:"Rows of a chunk, about."`
	MaxAge      Duration `yaml:"max_age" doc:"Age of a snapshot from which on no chunk is begun under it; the copy goes on under a new one if it can. 0: no limit."`
}

// Apply is how changes are written. A batch holds what waits when an applier is free for its table, up to the limits.
type Apply struct {
	Concurrency int      `yaml:"concurrency" min:"1" max:"64" doc:"Batches that are written at once over all tables."`
	BatchRows   int64    `yaml:"batch_rows" min:"1" max:"1000000" doc:"Rows of a batch at most."`
	BatchBytes  Size     `yaml:"batch_bytes" min:"1KiB" max:"1GiB" doc:"Bytes of a batch at most, but for a single row."`
	BatchAge    Duration `yaml:"batch_age" min:"1ms" max:"1m" doc:"Time for which a batch is gathered at most, from memory and from the spool. A batch ends before that when nothing more waits: nothing is held back to fill one."`
}

// Spool is where changes wait on disk.
type Spool struct {
	Path         string       `yaml:"path" doc:"Folder, relative to the config file. By default .sluice/NAME/spool."`
	Max          Size         `yaml:"max" min:"1MiB" doc:"Bytes of all tables at most. At the limit a table that does not move, or moves too slowly, is given up for the sake of the others, else reading waits."`
	TableMax     Size         `yaml:"table_max" doc:"Bytes of one table at most; 0: no limit of its own."`
	DurableAfter DurableAfter `yaml:"durable_after" doc:"Log kept at the source beyond which the spool is acknowledged too."`
}

// DurableAfter is how much log the source keeps before the spool counts as durable.
type DurableAfter struct {
	Bytes Size     `yaml:"bytes" doc:"Bytes of log; 0: always."`
	Age   Duration `yaml:"age" doc:"Age of the log; 0: always."`
}

// PerTable is what one table has of its own; a zero value stands for the mirror's setting.
type PerTable struct {
	Destination       TableDestination `yaml:"destination" doc:"Where the table goes."`
	Mode              Mode             `yaml:"mode" enum:"current|history" doc:"What the sink keeps of the table."`
	Key               []string         `yaml:"key" doc:"Columns that identify a row, in place of the source's key. The source must keep them unique and NOT NULL and send them with each update and delete."`
	Columns           []string         `yaml:"columns" doc:"Columns that are mirrored; one that is added later is not."`
	ExcludeColumns    []string         `yaml:"exclude_columns" doc:"Columns that are left out; one that is added later is mirrored."`
	Filter            string           `yaml:"filter" doc:"Condition for the rows that are mirrored: status == \"open\" and total >= 10.50."`
	Deletes           Deletes          `yaml:"deletes" enum:"hard|soft" doc:"Whether a deleted row of the table goes, or stays with the time of its deletion."`
	Existing          Existing         `yaml:"existing" enum:"refuse|replace|merge" doc:"What happens to the table's destination if somebody else has made it and it holds rows."`
	SchemaChanges     SchemaChanges    `yaml:"schema_changes" enum:"follow|pause|ignore" doc:"What happens when the table's columns change."`
	OnBadRow          OnBadRow         `yaml:"on_bad_row" enum:"pause|quarantine" doc:"What happens to a row that the sink refuses: its table waits for a person, or the row goes into quarantine and the table goes on."`
	OnUnrepresentable string           `yaml:"on_unrepresentable" enum:"error|null|clamp|text|quarantine" later:"null|clamp|text|quarantine" doc:"What happens to a value that the sink cannot hold."`

	Where map[string]string // by key: file, line and column of its value, for what only the source can refuse
}

// TableDestination is the destination of one table; a part that is "" comes from the mirror's.
type TableDestination struct {
	Schema Template `yaml:"schema" doc:"Schema; by default as for every table."`
	Table  Template `yaml:"table" doc:"Table; by default as for every table."`
}

// newFile returns a File with its defaults. Those that hold the mirror's name are set when the name is known.
func newFile() *File {
	return &File{State: State{Type: "sqlite"}, Mirror: newMirror()}
}

func newMirror() *Mirror {
	return &Mirror{
		Tables:            Tables{Include: []Pattern{matchAll}, NewTables: Follow, DiscoverInterval: 5 * Minute},
		Destination:       Destination{Schema: "{schema}", Table: "{table}"},
		Mode:              Current,
		Deletes:           HardDeletes,
		Existing:          RefuseExisting,
		WithoutPrimaryKey: RefuseKeyless,
		SchemaChanges:     "follow",
		DroppedColumns:    "keep",
		DroppedPartitions: "keep",
		OnUnrepresentable: "error",
		OnBadRow:          PauseOnBadRow,
		OnGap:             PauseOnGap,
		OnTableError:      PauseOnError,
		MaxTableFailures:  3,
		RetryPaused:       5 * Minute,
		RetainedLog:       RetainedLog{Action: "warn"},
		MaxRowBytes:       64 * MiB,
		Snapshot:          Snapshot{Concurrency: 4, ChunkRows: 100_000, MaxAge: 60 * Minute},
		Apply:             Apply{Concurrency: 8, BatchRows: 10_000, BatchBytes: 16 * MiB, BatchAge: Second},
		Spool:             Spool{Max: 10 * GiB, DurableAfter: DurableAfter{Bytes: GiB, Age: 10 * Minute}},
	}
}

// Selects reports whether a table of this name is mirrored.
func (m *Mirror) Selects(n schema.Name) bool {
	return matchesAny(m.Tables.Include, n) && !matchesAny(m.Tables.Exclude, n)
}

func matchesAny(patterns []Pattern, n schema.Name) bool {
	for _, p := range patterns {
		if p.Match(n) {
			return true
		}
	}
	return false
}

// ForTable returns the table's own settings; the zero ones if it has none. A name without a schema stands in per_table
// for the table in the schema public too.
func (m *Mirror) ForTable(n schema.Name) PerTable {
	own := m.PerTable[n]
	if own == nil && n.Schema == defaultSchema {
		own = m.PerTable[schema.Name{Table: n.Table}]
	}
	if own == nil {
		return PerTable{}
	}
	return *own
}

// Unused returns the tables of per_table that are not among those of the source, or are not selected, each with its place
// in the file. Their settings are most likely meant for a table of another name.
func (m *Mirror) Unused(tables []schema.Name) []string {
	there := map[schema.Name]bool{}
	for _, n := range tables {
		there[n] = m.Selects(n)
		if n.Schema == defaultSchema {
			there[schema.Name{Table: n.Table}] = m.Selects(n)
		}
	}
	var names []string
	for n := range m.PerTable {
		names = append(names, n.String())
	}
	slices.Sort(names)
	var unused []string
	for _, text := range names {
		n, _ := schema.ParseName(text) // it is what String wrote
		where := m.PerTable[n].Where[""]
		switch selected, found := there[n]; {
		case !found:
			var all []string
			for _, t := range tables {
				all = append(all, t.String())
			}
			unused = append(unused, fmt.Sprintf("%s: per_table: the source has no table %s%s", where, text, nearest.Hint(text, all)))
		case !selected:
			unused = append(unused, fmt.Sprintf("%s: per_table: table %s is not selected by `mirror.tables`", where, text))
		}
	}
	return unused
}

// ModeOf returns the mode of a table.
func (m *Mirror) ModeOf(n schema.Name) Mode {
	if mode := m.ForTable(n).Mode; mode != "" {
		return mode
	}
	return m.Mode
}

// SchemaChangesOf returns what happens when a table's columns change.
func (m *Mirror) SchemaChangesOf(n schema.Name) SchemaChanges {
	if policy := m.ForTable(n).SchemaChanges; policy != "" {
		return policy
	}
	return m.SchemaChanges
}

// DeletesOf returns what becomes of a table's deleted rows. A history keeps every deletion in its own way, so the mirror's
// setting is not for it.
func (m *Mirror) DeletesOf(n schema.Name) Deletes {
	own := m.ForTable(n).Deletes
	switch {
	case own != "":
		return own
	case m.ModeOf(n) == History:
		return HardDeletes
	}
	return m.Deletes
}

// ExistingOf returns what becomes of a table's destination if somebody else has made it.
func (m *Mirror) ExistingOf(n schema.Name) Existing {
	if existing := m.ForTable(n).Existing; existing != "" {
		return existing
	}
	return m.Existing
}

// OnBadRowOf returns what happens to a row of a table that the sink refuses.
func (m *Mirror) OnBadRowOf(n schema.Name) OnBadRow {
	if own := m.ForTable(n).OnBadRow; own != "" {
		return own
	}
	return m.OnBadRow
}

// DestinationOf returns where a table goes. Its Schema is "" if the template gives that (a source without schemas): the
// sink's default.
func (m *Mirror) DestinationOf(n schema.Name) schema.Name {
	d := m.ForTable(n).Destination
	if d.Schema == "" {
		d.Schema = m.Destination.Schema
	}
	if d.Table == "" {
		d.Table = m.Destination.Table
	}
	return schema.Name{Schema: d.Schema.Expand(n), Table: d.Table.Expand(n)}
}
