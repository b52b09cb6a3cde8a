package apply

import (
	"errors"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/schema"
)

// Table applies the changes of one table. It belongs to one goroutine at a time.
type Table struct {
	id      schema.ID
	target  *connector.Target
	sink    connector.Sink
	log     Log
	alloc   memory.Allocator
	skip    skipper
	decoder connector.Decoder
	reads   *schema.Table // the version that decoder reads
	from    []int         // where that is not the target's: by column of the target's, the one of reads, -1 for NULL
	at      Checkpoint
	keep    *filter.Filter // nil: every row is mirrored
	source  rereader       // of a table that converges, or may come to
	reread  int64          // rows, since Reread was called last

	quarantine *Quarantine
	careful    int // batches that are to be small, see carefulRows
}

// NewTable returns a Table of the rows that keep takes, of all if it is nil, that goes on from the checkpoint at. from is
// where the log begins to be delivered: if that is before the checkpoint, the checkpoint's own transaction must come again,
// and a log without it is another history.
func NewTable(
	target *connector.Target, keep *filter.Filter, at Checkpoint, from connector.Positions, log Log, sink connector.Sink, alloc memory.Allocator,
) (*Table, error) {
	decoder, err := log.Decoder(target.Table)
	if err != nil {
		return nil, err
	}
	t := &Table{
		id: target.Table.ID, target: target, keep: keep, sink: sink, log: log, alloc: alloc, decoder: decoder, reads: target.Table, at: at,
		quarantine: NewQuarantine(target.Table.ID, false),
	}
	t.skip = skipper{log: log, at: &t.at}
	t.source, _ = log.(rereader)
	if at.Overlap != "" && t.source == nil {
		return nil, t.fault("go on behind its copy", nil, errNoFinder)
	}
	if start, ok := from[at.Part]; ok && at.Tag != 0 {
		order, err := log.Compare(start, at.Position)
		if err != nil {
			return nil, err
		}
		t.skip.meet = order < 0
	}
	return t, nil
}

// UseQuarantine has the table know which of its rows are in quarantine, before it applies anything.
func (t *Table) UseQuarantine(q *Quarantine) { t.quarantine = q }

// MostRows returns how many rows the next batch may have at most, given how many it may have otherwise.
func (t *Table) MostRows(rows int) int {
	if t.careful > 0 {
		return min(rows, carefulRows)
	}
	return rows
}

// Has reports whether the destination accounts for what c, a commit of this table's log, did before its row message
// c.First: the checkpoint is beyond it, or the copy's snapshot holds it.
func (t *Table) Has(c connector.Commit) (bool, error) {
	c.Rows = 1
	n, err := t.skip.covered(c)
	if err != nil {
		return false, t.fault("place a change of the schema in the log", []connector.Commit{c}, err)
	}
	return n > 0, nil
}

// Meeting reports whether the checkpoint's own transaction must come again and has not come yet.
func (t *Table) Meeting() bool { return t.skip.meet }

// Diverged is the error of a log that was read beyond the checkpoint without meeting its transaction.
func (t *Table) Diverged() error { return t.fault("place changes in the log", nil, errDiverged) }

// Checkpoint returns what the sink's entry says now.
func (t *Table) Checkpoint() Checkpoint { return t.at }

// next is the checkpoint behind the run last. The snapshot's token goes when no change that it contains can follow, the
// overlap when no change can that is older than a row of the destination.
func (t *Table) next(last connector.Commit) (Checkpoint, error) {
	next := t.at
	next.Ignored = next.Ignored || t.from != nil
	next.advance(last)
	if next.Token != "" {
		order, err := t.log.Compare(last.Position, next.Until)
		if err != nil {
			return next, err
		}
		if order > 0 {
			next.Token, next.Until = "", ""
		}
	}
	if next.Overlap != "" {
		order, err := t.log.Compare(last.Position, next.Overlap)
		if err != nil {
			return next, err
		}
		if order > 0 {
			next.Overlap = ""
		}
	}
	return next, nil
}

// fault makes an error of this table of what went wrong with its changes before they reached the sink.
func (t *Table) fault(op string, runs []connector.Commit, err error) error {
	if _, ok := errors.AsType[*connector.Error](err); ok {
		return err
	}
	e := &connector.Error{Kind: connector.TableFault, System: "apply", Op: op, Table: t.target.Table.Name, Err: err}
	if len(runs) > 0 {
		e.Position = runs[0].Position
	}
	if errors.Is(err, errUndecided) {
		e.Hint = "have the source log whole old rows (in PostgreSQL: REPLICA IDENTITY FULL), or leave the column out of the filter"
	}
	if errors.Is(err, errDiverged) {
		e.Kind = connector.Gap
		e.Hint = "the table needs a new copy"
	}
	return e
}
