package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	rows  *connector.Rows // all of it that is written, row by row
	byRow bool            // it is written row by row: a history gets every one, and what a soft truncation deletes must be stored
	set   folded          // else what it comes to
	next  Checkpoint      // behind it

	converges bool // changes of it may be older than rows of the destination

	again bool            // it has rows in quarantine, which stay there if they are refused
	held  map[string]held // the quarantine before it; nil for a history
	aside sifted          // what of all its rows goes into the quarantine, or leaves it
	inSet sifted          // and of those of set
}

// sifted is rows of which a sieve has taken out those in quarantine.
type sifted struct {
	all   *connector.Rows // nil: they were not sifted
	from  []int32         // by row that is left, its place in all
	bad   map[int32]error // by row of all, why the sink refuses it
	moves moves
}

func (s *sifted) release() {
	if s.all != nil {
		s.all.Release()
	}
}

// ErrTooLarge says that a batch has refused rows and is to be taken again in smaller ones, see Table.MostRows.
var ErrTooLarge = errors.New("the batch is too large to find the rows that are refused")

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
	switch {
	case t.target.History && t.keep != nil:
		err = b.judgeHistory(ctx)
	case !t.target.History:
		b.held = t.quarantine.snapshot()
		if len(b.held) > 0 {
			err = b.sift(ctx)
		}
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	if !b.byRow && b.rows.Len() > 0 {
		if b.set, err = fold(ctx, t.alloc, b.rows, t.target.Table.Key, t.target.SoftDelete); err != nil {
			b.Release()
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
	b.aside.release()
	b.inSet.release()
}

// Entries is what accounts for the batch, to be committed with it: the checkpoint, and which rows are in quarantine.
func (b *Batch) Entries() map[string]string {
	entries := map[string]string{Key(b.table.id): b.next.String()}
	for _, m := range []moves{b.aside.moves, b.inSet.moves} {
		for id, q := range m {
			key := quarantineKey(b.table.id, id)
			if q != nil {
				entries[key] = q.text()
			} else if _, was := b.held[id]; was {
				entries[key] = ""
			} else {
				delete(entries, key)
			}
		}
	}
	return entries
}

// Committed takes note that the batch is durable.
func (b *Batch) Committed() {
	t := b.table
	t.at = b.next
	for _, m := range []moves{b.aside.moves, b.inSet.moves} {
		t.quarantine.move(m)
	}
	switch {
	case len(b.aside.bad)+len(b.inSet.bad) > 0:
		t.careful = carefulBatches
	case t.careful > 0:
		t.careful--
	}
}

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
	switch {
	case !isRefusal(err) || b.table.target.History:
		return err
	case b.byRow || b.inSet.all != nil: // in order already
	case b.converges || b.table.keep != nil:
		err = b.applyWhole(ctx)
	default:
		err = b.inTx(ctx, b.writeRows)
	}
	for connector.KindOf(err) == connector.BadRow && (b.again || b.table.quarantine.Takes()) {
		if err := b.setAside(ctx, err); err != nil {
			return err
		}
		err = b.inTx(ctx, b.Write)
	}
	return err
}

// setAside puts the row into the quarantine that the sink has refused among those that were written in order.
func (b *Batch) setAside(ctx context.Context, refused error) error {
	e, _ := errors.AsType[*connector.Error](refused)
	_, truncating := errors.AsType[*truncateError](refused)
	whole := !b.byRow && (b.converges || b.table.keep != nil)
	written, s := b.rows, &b.aside
	if whole {
		written, s = b.set.rows, &b.inSet
	}
	switch {
	case truncating || written == nil || e.Row < 0 || e.Row >= written.Len():
		return refused
	case b.Messages > carefulRows && b.table.careful == 0:
		b.table.careful = carefulBatches
		return ErrTooLarge
	}
	row := int32(e.Row)
	if s.from != nil {
		row = s.from[row]
	}
	if s.bad == nil {
		s.bad = map[int32]error{}
	}
	if s.bad[row] != nil {
		return refused // it was left out: the sink does not tell the right row
	}
	s.bad[row] = refused
	if whole {
		return b.siftSet(ctx)
	}
	b.byRow = true
	return b.sift(ctx)
}

// sift takes the rows in quarantine out of those that are written.
func (b *Batch) sift(ctx context.Context) error {
	if b.aside.all == nil {
		b.aside.all = b.rows
		b.aside.all.Values.Retain()
	}
	left, err := b.passSieve(ctx, &b.aside, b.held)
	if err != nil {
		return err
	}
	b.rows.Release()
	b.rows = left
	return nil
}

// siftSet does so with those of the set, which are written in order from then on.
func (b *Batch) siftSet(ctx context.Context) error {
	if b.inSet.all == nil {
		b.inSet.all = b.set.rows
		b.inSet.all.Values.Retain()
	}
	before := maps.Clone(b.held)
	for id, q := range b.aside.moves {
		if q == nil {
			delete(before, id)
		} else {
			before[id] = heldOf(q)
		}
	}
	left, err := b.passSieve(ctx, &b.inSet, before)
	if err != nil {
		return err
	}
	b.set.rows.Release()
	b.set.rows = left
	b.set.rows.Distinct = false
	return nil
}

func (b *Batch) passSieve(ctx context.Context, s *sifted, before map[string]held) (*connector.Rows, error) {
	sieve := newSieve(s.all, b.table.target.Table.Key, b.next.Copy, before, s.bad)
	sieve.last = connector.Commit{Position: b.next.Position, Time: b.next.Time}
	if err := sieve.run(); err != nil {
		return nil, b.table.fault("sift changes", b.rows.Commits, err)
	}
	left, err := sieve.result(ctx, b.table.alloc)
	if err != nil {
		return nil, b.table.fault("sift changes", b.rows.Commits, err)
	}
	s.from, s.moves = sieve.from, sieve.moves
	return left, nil
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
	if b.set.rows == nil || b.set.rows.Len() == 0 {
		return nil
	}
	return tx.Write(ctx, b.table.target, b.set.rows)
}

func (b *Batch) writeRows(ctx context.Context, tx connector.Tx) error {
	if b.rows.Len() == 0 {
		return nil
	}
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
	if err := tx.Write(ctx, b.table.target, one); err != nil {
		return &truncateError{err}
	}
	return nil
}

// truncateError tells the refusal of a truncation from that of a row.
type truncateError struct{ error }

func (e *truncateError) Unwrap() error { return e.error }

// inTx runs write in a transaction that commits the entry with the rows.
func (b *Batch) inTx(ctx context.Context, write func(context.Context, connector.Tx) error) error {
	tx, err := b.table.sink.Begin(ctx)
	if err != nil {
		return err
	}
	if err := write(ctx, tx); err != nil {
		return b.locate(errors.Join(err, tx.Rollback()))
	}
	return tx.Commit(ctx, b.Entries())
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
