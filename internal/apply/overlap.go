package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
)

// A copy that went on under a later snapshot holds rows of several moments, all at or after the first one, from which on
// the lane is applied. Until the lane has passed the last of these moments (Checkpoint.Overlap) the table converges:
// older changes are replayed over newer rows. What is true then of each value of a stored row: it is the source's at the
// lane's place, or the source's of a later moment, up to which the lane holds every change of that key. So
//
//   - whole rows, deletes and truncations are simply replayed;
//   - an update that leaves values unsent and keeps its key takes them from the stored row: if that is newer, a change
//     still to come settles it; if there is none, the row is read from the source;
//   - an update that leaves values unsent and moves its row to another key must not take them from the row stored under
//     the old one, which may be another row by now, and nothing to come would ever mend the moved one. It is read from
//     the source under its new key.
//
// What is read from the source is of a later moment too, so the overlap then lasts until the lane has passed that. Reading
// every partial row would be right as well, but a table whose rows are updated all the time would never get out of it.

// findKeys is how many rows are read from the source at once.
const findKeys = 500

// rereader is the source of a table that converges.
type rereader interface {
	connector.Finder
	Head(ctx context.Context, log string) (connector.Positions, error)
}

var errNoFinder = errors.New("rows must be read by their key, which this source cannot")

// Converges reports whether older changes may still come than some rows of the destination.
func (t *Table) Converges() bool { return t.at.Overlap != "" }

// MayRead reports whether applying may have to read from the source, and so take a while.
func (t *Table) MayRead() bool { return t.Converges() || t.keep != nil }

// Reread returns how many rows were read from the source since it was last asked.
func (t *Table) Reread() int64 {
	n := t.reread
	t.reread = 0
	return n
}

// overlaps reports whether a batch that begins with this run may have changes that are older than rows of the destination.
func (t *Table) overlaps(first connector.Commit) (bool, error) {
	if t.at.Overlap == "" {
		return false, nil
	}
	order, err := t.log.Compare(first.Position, t.at.Overlap)
	return order <= 0, err
}

// applyWhole writes a batch of which a stored row is missing, or another one refused: with all its partial rows read from
// the source, as a set, and if that is refused row by row.
func (b *Batch) applyWhole(ctx context.Context) error {
	if b.set.rows == nil {
		return b.inTx(ctx, b.Write)
	}
	if err := b.complete(ctx, true); err != nil {
		return err
	}
	err := b.inTx(ctx, b.Write)
	if !isRefusal(err) {
		return err
	}
	b.set.rows.Distinct = false
	defer func() { b.set.rows.Distinct = true }()
	return b.inTx(ctx, b.Write)
}

// complete reads the rows from the source whose unsent values are not to be taken from a stored row: those that moved to
// another key, or all. A row that is not there is deleted: a change that is still to come does the same. The overlap then
// lasts until the lane has passed what was read.
func (b *Batch) complete(ctx context.Context, all bool) error {
	if b.set.rows == nil {
		return nil
	}
	c := completion{rows: b.set.rows, keys: newKeyEncoder(b.set.rows.Values, b.table.target.Table.Key)}
	if wanted := c.wanted(all); len(wanted) > 0 {
		return b.readWhole(ctx, &c, wanted)
	}
	return nil
}

// readWhole reads these rows from the source. From then on the table converges.
func (b *Batch) readWhole(ctx context.Context, c *completion, wanted []int32) error {
	t := b.table
	if t.source == nil {
		return t.fault("complete changes", b.rows.Commits, errNoFinder)
	}
	b.converges = true
	defer c.release()
	for len(wanted) > 0 {
		n := min(len(wanted), findKeys)
		if err := t.find(ctx, c, wanted[:n]); err != nil {
			return err
		}
		t.reread += int64(n)
		wanted = wanted[n:]
	}
	// After the reading: whatever it saw was in the log by now.
	head, err := t.source.Head(ctx, t.target.Table.Log)
	if err != nil {
		return err
	}
	if b.next.Overlap, err = t.later(b.next.Overlap, head[t.at.Part]); err != nil {
		return err
	}
	c.gone = b.next.Time
	whole, err := c.result(ctx, t.alloc)
	if err != nil {
		return t.fault("complete changes", b.rows.Commits, err)
	}
	b.set.rows.Release()
	b.set.rows = whole
	return nil
}

// later returns the later of two positions; a may be "".
func (t *Table) later(a, b connector.Position) (connector.Position, error) {
	if a == "" {
		return b, nil
	}
	order, err := t.log.Compare(a, b)
	if err == nil && order < 0 {
		return b, nil
	}
	return a, err
}

// find reads rows by the keys of these rows of the batch.
func (t *Table) find(ctx context.Context, c *completion, wanted []int32) error {
	table := t.target.Table
	columns := make([]arrow.Array, len(table.Key))
	fields := make([]arrow.Field, len(table.Key))
	for i, k := range table.Key {
		var err error
		if columns[i], err = takeRows(ctx, t.alloc, c.rows.Values.Column(k), wanted); err != nil {
			return fmt.Errorf("gather keys: %w", err)
		}
		defer columns[i].Release()
		fields[i] = c.rows.Values.Schema().Field(k)
	}
	keys := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, int64(len(wanted)))
	defer keys.Release()
	found, err := t.source.Find(ctx, table, keys)
	if err != nil {
		return err
	}
	c.add(wanted, found, table.Key)
	return nil
}

// completion is a folded batch and what the source has of some of its rows.
type completion struct {
	rows  *connector.Rows
	keys  keyEncoder
	found []*connector.Rows
	at    map[int32]int32 // by row of the batch, its place in found, counted through; -1: not there
	gone  time.Time       // with soft deletes, when a row that is not there counts as deleted
}

// wanted returns the rows that are to be read.
func (c *completion) wanted(all bool) []int32 {
	var wanted []int32
	for i := range c.rows.Len() {
		if c.rows.Op(i) == connector.Update && c.partial(i) && (all || c.moved(i)) {
			wanted = append(wanted, int32(i))
		}
	}
	return wanted
}

func (c *completion) partial(i int) bool {
	for col := range c.rows.Unsent {
		if c.rows.IsUnsent(col, i) {
			return true
		}
	}
	return false
}

// moved reports whether the row that update i changes is stored under another key.
func (c *completion) moved(i int) bool {
	if i == 0 || c.rows.Op(i-1) != connector.Before {
		return false
	}
	before := string(c.keys.encode(i - 1))
	return before != string(c.keys.encode(i))
}

// add takes what was found for these rows; found is the completion's to release from then on.
func (c *completion) add(wanted []int32, found *connector.Rows, key []int) {
	if c.at == nil {
		c.at = map[int32]int32{}
	}
	first := int32(0)
	for _, f := range c.found {
		first += int32(f.Len())
	}
	c.found = append(c.found, found)
	keys := newKeyEncoder(found.Values, key)
	place := make(map[string]int32, found.Len())
	for i := range found.Len() {
		place[string(keys.encode(i))] = first + int32(i)
	}
	for _, i := range wanted {
		n, ok := place[string(c.keys.encode(int(i)))]
		if !ok {
			n = -1
		}
		c.at[i] = n
	}
}

func (c *completion) release() {
	for _, f := range c.found {
		f.Release()
	}
}

// result is the batch with the values found.
func (c *completion) result(ctx context.Context, alloc memory.Allocator) (*connector.Rows, error) {
	out := &connector.Rows{Table: c.rows.Table, Distinct: true}
	var from []int32 // by row of the result, the row of the batch
	for i := range c.rows.Len() {
		op := c.rows.Op(i)
		if _, read := c.at[int32(i)+1]; read && op == connector.Before {
			continue // the old key has a row of its own in the batch
		}
		if n, read := c.at[int32(i)]; read {
			op = connector.Insert
			if n < 0 {
				op = connector.Delete
			}
		}
		if c.rows.Deleted != nil {
			at := c.rows.Deleted[i]
			if op == connector.Delete && at.IsZero() {
				at = c.gone
			}
			out.Deleted = append(out.Deleted, at)
		}
		from, out.Ops = append(from, int32(i)), append(out.Ops, op)
	}
	columns := make([]arrow.Array, c.rows.Values.NumCols())
	defer func() {
		for _, col := range columns {
			if col != nil {
				col.Release()
			}
		}
	}()
	out.Unsent = make([][]byte, len(columns))
	for col := range columns {
		var err error
		if columns[col], out.Unsent[col], err = c.column(ctx, alloc, col, from); err != nil {
			return nil, fmt.Errorf("complete column %s: %w", c.rows.Table.Columns[col].Name, err)
		}
	}
	out.Values = array.NewRecordBatch(c.rows.Values.Schema(), columns, int64(len(from)))
	return out, nil
}

// column returns the values of a column and which of them are still unsent.
func (c *completion) column(ctx context.Context, alloc memory.Allocator, col int, from []int32) (arrow.Array, []byte, error) {
	own := c.rows.Values.Column(col)
	indices := make([]int32, len(from))
	var unsent []byte
	read := false
	for r, i := range from {
		indices[r] = i
		if !c.rows.IsUnsent(col, int(i)) {
			continue
		}
		if n, ok := c.at[i]; ok && n >= 0 {
			indices[r], read = int32(own.Len())+n, true
			continue
		}
		if unsent == nil {
			unsent = make([]byte, bitutil.BytesForBits(int64(len(from))))
		}
		bitutil.SetBit(unsent, r)
	}
	if !read {
		taken, err := takeRows(ctx, alloc, own, indices)
		return taken, unsent, err
	}
	parts := []arrow.Array{own}
	for _, f := range c.found {
		parts = append(parts, f.Values.Column(col))
	}
	joined, err := array.Concatenate(parts, alloc)
	if err != nil {
		return nil, nil, err
	}
	defer joined.Release()
	taken, err := takeRows(ctx, alloc, joined, indices)
	return taken, unsent, err
}

// takeRows returns the values with these indexes.
func takeRows(ctx context.Context, alloc memory.Allocator, values arrow.Array, indexes []int32) (arrow.Array, error) {
	b := array.NewInt32Builder(alloc)
	defer b.Release()
	b.AppendValues(indexes, nil)
	list := b.NewArray()
	defer list.Release()
	return compute.TakeArrayOpts(compute.WithAllocator(ctx, alloc), values, list, compute.TakeOptions{BoundsCheck: false})
}
