package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// conflictTries is how often a batch is repeated after a deadlock or a lock time-out before its table is at fault;
// conflictPause is the first pause between two tries, doubled each time.
const (
	conflictTries = 6
	conflictPause = 50 * time.Millisecond
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
}

// NewTable returns a Table that goes on from the checkpoint at. floor is where the log was opened: if that is before the
// checkpoint, the checkpoint's own transaction must come again, and a log without it is another history.
func NewTable(target *connector.Target, at Checkpoint, floor connector.Positions, log Log, sink connector.Sink, alloc memory.Allocator) (*Table, error) {
	decoder, err := log.Decoder(target.Table)
	if err != nil {
		return nil, err
	}
	t := &Table{id: target.Table.ID, target: target, sink: sink, log: log, alloc: alloc, decoder: decoder, reads: target.Table, at: at}
	t.skip = skipper{log: log, at: &t.at}
	if start, ok := floor[at.Part]; ok && at.Tag != 0 {
		order, err := log.Compare(start, at.Position)
		if err != nil {
			return nil, err
		}
		t.skip.meet = order < 0
	}
	return t, nil
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

// Apply makes a batch durable in the sink together with its checkpoint and returns the number of row messages that were
// new. A batch of which the sink has everything writes nothing, so a checkpoint never moves back. After an error of Kind
// Unavailable the batch may be in the sink: only a new Claim can tell. Changes of another version are a *VersionError.
func (t *Table) Apply(ctx context.Context, batch []*connector.Frames) (int64, error) {
	left, err := t.skip.merge(batch)
	if err != nil {
		return 0, t.fault("place changes in the log", batch[0].Commits, err)
	}
	if len(left.Commits) == 0 {
		return 0, nil
	}
	if !t.understands(left.Table) {
		return 0, &VersionError{Table: left.Table, Commit: left.Commits[0]}
	}
	rows, err := t.decode(left)
	if err != nil {
		return 0, t.fault("decode changes", left.Commits, err)
	}
	defer rows.Release()
	next, err := t.next(left.Commits[len(left.Commits)-1])
	if err != nil {
		return 0, err
	}
	for try := 1; ; try++ {
		err = t.writeOnce(ctx, rows, next)
		if connector.KindOf(err) != connector.Conflict || ctx.Err() != nil {
			break
		}
		if try == conflictTries {
			return 0, &connector.Error{
				Kind: connector.TableFault, System: "apply", Op: fmt.Sprintf("write a batch, %d tries", try), Table: t.target.Table.Name, Err: err,
				Hint: "find what holds the locks in the sink",
			}
		}
		select {
		case <-time.After(conflictPause << (try - 1)):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err != nil {
		return 0, err
	}
	t.at = next
	var n int64
	for _, c := range left.Commits {
		n += int64(c.Rows)
	}
	return n, nil
}

func (t *Table) decode(f *connector.Frames) (*connector.Rows, error) {
	rows, err := t.decoder.Decode(f)
	if err != nil || t.from == nil {
		return rows, err
	}
	defer rows.Release()
	return project(rows, t.target.Table, t.from, t.alloc), nil
}

// next is the checkpoint behind the run last. The snapshot's token goes when no change that it contains can follow.
func (t *Table) next(last connector.Commit) (Checkpoint, error) {
	next := t.at
	next.Ignored = next.Ignored || t.from != nil
	next.advance(last)
	if next.Token == "" {
		return next, nil
	}
	order, err := t.log.Compare(last.Position, next.Until)
	if err == nil && order > 0 {
		next.Token, next.Until = "", ""
	}
	return next, err
}

// writeOnce writes the batch as a set, and row by row if the set is refused.
func (t *Table) writeOnce(ctx context.Context, rows *connector.Rows, next Checkpoint) error {
	if t.target.History {
		return t.inTx(ctx, rows, next, func(tx connector.Tx) error { return tx.Write(ctx, t.target, rows) })
	}
	err := t.inTx(ctx, rows, next, func(tx connector.Tx) error { return t.writeSet(ctx, tx, rows) })
	if connector.KindOf(err) != connector.Constraint && connector.KindOf(err) != connector.BadRow {
		return err
	}
	return t.inTx(ctx, rows, next, func(tx connector.Tx) error { return tx.Write(ctx, t.target, rows) })
}

// writeSet writes what the batch comes to.
func (t *Table) writeSet(ctx context.Context, tx connector.Tx, rows *connector.Rows) error {
	f, err := fold(ctx, t.alloc, rows, t.target.Table.Key)
	if err != nil {
		return t.fault("fold changes", rows.Commits, err)
	}
	if f.truncated {
		if err := t.truncate(ctx, tx, rows); err != nil {
			return err
		}
	}
	if f.rows == nil {
		return nil
	}
	defer f.rows.Release()
	return tx.Write(ctx, t.target, f.rows)
}

// truncate passes on the batch's last Truncate row alone.
func (t *Table) truncate(ctx context.Context, tx connector.Tx, rows *connector.Rows) error {
	i := rows.Len() - 1
	for rows.Op(i) != connector.Truncate {
		i--
	}
	one := &connector.Rows{Table: rows.Table, Ops: rows.Ops[i : i+1], Values: rows.Values.NewSlice(int64(i), int64(i+1))}
	defer one.Release()
	return tx.Write(ctx, t.target, one)
}

// inTx runs write in a transaction that commits next with the rows.
func (t *Table) inTx(ctx context.Context, rows *connector.Rows, next Checkpoint, write func(connector.Tx) error) error {
	tx, err := t.sink.Begin(ctx)
	if err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return t.locate(rows, errors.Join(err, tx.Rollback()))
	}
	return tx.Commit(ctx, map[string]string{Key(t.id): next.String()})
}

// locate adds to a refused row the position of its change.
func (t *Table) locate(rows *connector.Rows, err error) error {
	e, ok := errors.AsType[*connector.Error](err)
	if !ok || e.Kind != connector.BadRow || e.Position != "" {
		return err
	}
	row := e.Row
	for _, c := range rows.Commits {
		if row < c.Rows {
			e.Position = c.Position
			break
		}
		row -= c.Rows
	}
	return err
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
	if errors.Is(err, errDiverged) {
		e.Kind = connector.Gap
		e.Hint = "the table needs a new copy"
	}
	return e
}
