package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicehq/sluice/connector"
)

// conflictTries is how often a batch is repeated after a deadlock or a lock time-out before its table is at fault;
// conflictPause is the first pause between two tries, doubled each time.
const (
	conflictTries = 6
	conflictPause = 50 * time.Millisecond
)

// Batch is changes of one table ready to be written: decoded, and folded where they are written as a set. Its table is
// not to be prepared again before the batch is written, or given up. It is to be released.
type Batch struct {
	Messages int64     // row messages that are new to the sink; more than none
	Bytes    int64     // of these
	Oldest   time.Time // of the commit of the first of them, by the source's clock

	table *Table
	rows  *connector.Rows // all of it, row by row
	byRow bool            // it is written row by row: a history gets every one, and what a soft truncation deletes must be stored
	set   folded          // else what it comes to
	next  Checkpoint      // behind it

	converges bool // changes of it may be older than rows of the destination
}

// Prepare decodes and folds what of the frames the sink does not have. It returns nil if that is nothing.
func (t *Table) Prepare(ctx context.Context, frames []*connector.Frames) (*Batch, error) {
	left, err := t.skip.merge(frames)
	if err != nil {
		return nil, t.fault("place changes in the log", frames[0].Commits, err)
	}
	if len(left.Commits) == 0 {
		return nil, nil
	}
	if !t.understands(left.Table) {
		return nil, &VersionError{Table: left.Table, Commit: left.Commits[0]}
	}
	b := &Batch{table: t, Bytes: int64(len(left.Data)), Oldest: left.Commits[0].Time}
	for _, c := range left.Commits {
		b.Messages += int64(c.Rows)
	}
	if b.next, err = t.next(left.Commits[len(left.Commits)-1]); err != nil {
		return nil, err
	}
	if b.rows, err = t.decode(left); err != nil {
		return nil, t.fault("decode changes", left.Commits, err)
	}
	b.byRow = t.target.History || t.target.SoftDelete && slices.Contains(b.rows.Ops, connector.Truncate)
	if t.target.History && t.keep != nil {
		err = b.judgeHistory(ctx)
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	if !b.byRow {
		if b.set, err = fold(ctx, t.alloc, b.rows, t.target.Table.Key, t.target.SoftDelete); err != nil {
			b.rows.Release()
			return nil, t.fault("fold changes", b.rows.Commits, err)
		}
	}
	if b.converges, err = t.overlaps(left.Commits[0]); err == nil && b.converges && !b.byRow {
		err = b.complete(ctx, false)
	}
	if err == nil && t.keep != nil {
		err = b.judge(ctx)
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

// Release frees the batch's rows.
func (b *Batch) Release() {
	b.rows.Release()
	if b.set.rows != nil {
		b.set.rows.Release()
	}
}

// Entry is what accounts for the batch, to be committed with it.
func (b *Batch) Entry() (key, text string) { return Key(b.table.id), b.next.String() }

// Committed takes note that the batch is durable.
func (b *Batch) Committed() { b.table.at = b.next }

// Apply makes the batch durable in a transaction of its own, with its checkpoint: as a set, and row by row if the set is
// refused. After an error of Kind Unavailable it may be in the sink: only a new Claim can tell.
func (b *Batch) Apply(ctx context.Context) error {
	for try := 1; ; try++ {
		err := b.applyOnce(ctx)
		if err == nil {
			b.Committed()
			return nil
		}
		if connector.KindOf(err) != connector.Conflict || ctx.Err() != nil {
			return err
		}
		if try == conflictTries {
			return &connector.Error{
				Kind: connector.TableFault, System: "apply", Op: fmt.Sprintf("write a batch, %d tries", try), Table: b.table.target.Table.Name, Err: err,
				Hint: "find what holds the locks in the sink",
			}
		}
		select {
		case <-time.After(conflictPause << (try - 1)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *Batch) applyOnce(ctx context.Context) error {
	err := b.inTx(ctx, b.Write)
	if !isRefusal(err) || b.byRow {
		return err
	}
	if b.converges || b.table.keep != nil {
		return b.applyWhole(ctx)
	}
	return b.inTx(ctx, b.writeRows)
}

// isRefusal reports whether the sink refuses what it was given, so that it may take it in another form.
func isRefusal(err error) bool {
	kind := connector.KindOf(err)
	return err != nil && (kind == connector.Constraint || kind == connector.BadRow)
}

// Write writes the batch as a set, or row by row where it must be. Who commits tx with the Entry calls Committed.
func (b *Batch) Write(ctx context.Context, tx connector.Tx) error {
	if b.byRow {
		return b.writeRows(ctx, tx)
	}
	if b.set.truncated {
		if err := b.truncate(ctx, tx); err != nil {
			return err
		}
	}
	if b.set.rows == nil {
		return nil
	}
	return tx.Write(ctx, b.table.target, b.set.rows)
}

func (b *Batch) writeRows(ctx context.Context, tx connector.Tx) error {
	return tx.Write(ctx, b.table.target, b.rows)
}

// truncate passes on the batch's last Truncate row alone.
func (b *Batch) truncate(ctx context.Context, tx connector.Tx) error {
	i := b.rows.Len() - 1
	for b.rows.Op(i) != connector.Truncate {
		i--
	}
	one := &connector.Rows{Table: b.rows.Table, Ops: b.rows.Ops[i : i+1], Values: b.rows.Values.NewSlice(int64(i), int64(i+1))}
	defer one.Release()
	return tx.Write(ctx, b.table.target, one)
}

// inTx runs write in a transaction that commits the entry with the rows.
func (b *Batch) inTx(ctx context.Context, write func(context.Context, connector.Tx) error) error {
	tx, err := b.table.sink.Begin(ctx)
	if err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		return b.locate(errors.Join(err, tx.Rollback()))
	}
	key, text := b.Entry()
	return tx.Commit(ctx, map[string]string{key: text})
}

// locate adds to a refused row the position of its change.
func (b *Batch) locate(err error) error {
	e, ok := errors.AsType[*connector.Error](err)
	if !ok || e.Kind != connector.BadRow || e.Position != "" || b.converges || b.table.keep != nil && !b.table.target.History {
		return err
	}
	row := e.Row
	for _, c := range b.rows.Commits {
		if row < c.Rows {
			e.Position = c.Position
			break
		}
		row -= c.Rows
	}
	return err
}
