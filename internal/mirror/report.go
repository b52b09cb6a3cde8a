package mirror

import (
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Plan is what a run would do, table by table.
type Plan struct {
	Tables []TablePlan
	Notes  []string // what a person should know of the source
	Unused []string // settings of single tables that no table takes
}

// TablePlan is what a run would do with one table.
type TablePlan struct {
	Table, Destination schema.Name
	Action             string // "copy", "continue", "refuse"
	Refused            string // why and what to do, for "refuse"
	Mode               string // "current" or "history"
	Deletes            string // "hard" or "soft"
	Existing           string // "replace" or "merge" for a destination that somebody else has made; else ""
	Notes              []string
	Key                []string
	Filter             string // of the rows that are mirrored; "": all
	Columns            []ColumnPlan
	Rows, Bytes        int64 // estimates; -1 unknown
}

// ColumnPlan is how one column is stored.
type ColumnPlan struct {
	Name, SourceType   string
	SinkName, SinkType string // SinkName is "" where the column is left out
	Misfit             string // which values do not fit; "": all do
}

// Summary is the outcome of a run.
type Summary struct {
	Tables   []TableSummary
	Position connector.Positions // everything up to here is in the sink
	Kept     []string            // with Options.Once: what stays at the source and makes it keep log, for people
	Notes    []string            // what a person should know of what is left behind
}

// TableSummary is the outcome of a run for one table.
type TableSummary struct {
	Table, Destination schema.Name
	Phase              string // design: pending, copying, catching_up, streaming, paused, refused, dropped
	Reason, Remedy     string // for paused and refused
	RowsCopied         int64  // in this run
	ChangesApplied     int64  // in this run
	Since              time.Time
}

// InOrder reports whether every selected table is mirrored.
func (s *Summary) InOrder() bool {
	for _, t := range s.Tables {
		if t.Phase == "paused" || t.Phase == "refused" {
			return false
		}
	}
	return true
}
