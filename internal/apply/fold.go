package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
)

// folded is what the changes of a batch come to: nothing before the truncation counts, and then each key once.
type folded struct {
	truncated bool            // the table was emptied before rows
	rows      *connector.Rows // Distinct; nil if there are none
}

// outcome is what becomes of one key. Row numbers are indexes into the batch.
type outcome struct {
	deleted bool
	kept    bool    // deleted, and its image stays (soft deletes)
	by      int32   // the row that deleted it
	fresh   bool    // the batch made its row: unless the table converges, none is stored under its key
	row     int32   // the last image of the key's row, or the row that deleted it
	columns []int32 // by column, the row that its value comes from; nil: all from row
	partial bool    // a value is still unsent
	origin  int32   // the Before row whose key the stored row is under; -1: the key's own
}

// fold reduces rows to one action a key, in the order in which the keys were first met. A key that was deleted last stays
// a delete, whatever came before: a row under it may be stored. The changes of one key are merged, a value that was not
// sent taken from the change before; what is unsent even then is left for the sink to take from the row stored under
// the key that the row had when the batch began.
//
// With soft deletes a deleted key keeps the image that the batch made of it, with the time of the first deletion since; of
// a truncation, which deletes all that is stored too, fold can make nothing, and the rows must not hold one.
func fold(ctx context.Context, alloc memory.Allocator, rows *connector.Rows, key []int, soft bool) (folded, error) {
	f := folder{rows: rows, keys: newKeyEncoder(rows.Values, key), index: make(map[string]int32, rows.Len())}
	if soft {
		if f.times = rows.CommitTimes(); len(f.times) != rows.Len() {
			return folded{}, fmt.Errorf("commits cover %d of %d rows", len(f.times), rows.Len())
		}
	}
	simple := true // nothing was merged, moved or truncated: the batch is its own result
	for i := 0; i < rows.Len(); i++ {
		merged, err := f.add(int32(i))
		if err != nil {
			return folded{}, err
		}
		simple = simple && !merged
	}
	if simple {
		same := *rows
		same.Values.Retain()
		same.Distinct, same.Commits = true, nil
		if soft {
			same.Deleted = make([]time.Time, rows.Len())
			for _, o := range f.outcomes { // one a row, in their order
				same.Deleted[o.row] = f.deletedAt(&o)
			}
		}
		return folded{rows: &same}, nil
	}
	out, err := f.gather(ctx, alloc)
	return folded{truncated: f.truncated, rows: out}, err
}

type folder struct {
	rows      *connector.Rows
	keys      keyEncoder
	index     map[string]int32 // key to its place in outcomes
	outcomes  []outcome
	times     []time.Time // of the rows' commits, with soft deletes; else nil
	truncated bool
	before    int32 // the Before row that stands in front of the row being added, if hasBefore
	hasBefore bool
}

// add takes row i into account and reports whether the result differs from the rows as they are.
func (f *folder) add(i int32) (merged bool, err error) {
	switch op := f.rows.Op(int(i)); op {
	case connector.Truncate:
		if f.times != nil {
			return false, errors.New("a truncation among rows whose deletion is soft")
		}
		f.outcomes, f.truncated = f.outcomes[:0], true
		clear(f.index)
		return true, nil
	case connector.Before:
		f.before, f.hasBefore = i, true
		return true, nil
	case connector.Delete:
		o, isNew := f.at(i)
		f.remove(o, isNew, i)
		return !isNew, nil
	case connector.Insert:
		o, isNew := f.at(i)
		*o = outcome{row: i, origin: -1, fresh: isNew}
		return !isNew, nil
	case connector.Update:
		return f.update(i), nil
	default:
		return false, fmt.Errorf("row with unknown operation %d", op)
	}
}

// remove makes an outcome that of a key which row i deletes.
func (f *folder) remove(o *outcome, isNew bool, i int32) {
	switch {
	case f.times == nil, isNew:
		*o = outcome{deleted: true, by: i, row: i, origin: -1}
	case !o.deleted:
		o.deleted, o.kept, o.by = true, true, i
	}
}

// deletedAt returns when the outcome's row was deleted; the zero time: it lives.
func (f *folder) deletedAt(o *outcome) time.Time {
	if !o.deleted {
		return time.Time{}
	}
	return f.times[o.by]
}

// update merges row i onto what is known of the row that it changes, under its old key if there is a Before.
func (f *folder) update(i int32) (merged bool) {
	var base *outcome // what this batch already made of the row; nil: the row is as the sink stores it
	origin := int32(-1)
	if f.hasBefore {
		f.hasBefore = false
		origin = f.before
		old, isNew := f.at(f.before)
		if !isNew && !old.deleted {
			known := *old
			base = &known
			if base.origin >= 0 {
				origin = base.origin
			}
		}
		f.remove(old, isNew, f.before)
		o, _ := f.at(i)
		*o = f.image(i, base, origin)
		return true
	}
	o, isNew := f.at(i)
	if !isNew && !o.deleted {
		known := *o
		base, origin = &known, known.origin
	}
	*o = f.image(i, base, origin)
	o.fresh = base != nil && base.fresh
	return !isNew
}

// image is the row after update i: its own values, and those it left unsent from base; what base does not have either is
// in the row stored under the key of row origin.
func (f *folder) image(i int32, base *outcome, origin int32) outcome {
	o := outcome{row: i, origin: -1}
	for c := range f.rows.Unsent {
		if !f.rows.IsUnsent(c, int(i)) {
			continue
		}
		if base != nil {
			if o.columns == nil {
				o.columns = slices.Repeat([]int32{i}, int(f.rows.Values.NumCols()))
			}
			o.columns[c] = base.source(c)
			if !f.rows.IsUnsent(c, int(o.columns[c])) {
				continue
			}
		}
		o.partial, o.origin = true, origin
	}
	return o
}

// source returns the row that the value of column c comes from.
func (o *outcome) source(c int) int32 {
	if o.columns != nil {
		return o.columns[c]
	}
	return o.row
}

// at returns the outcome of row i's key, and whether it was made now.
func (f *folder) at(i int32) (o *outcome, isNew bool) {
	key := f.keys.encode(int(i))
	n, ok := f.index[string(key)]
	if !ok {
		n = int32(len(f.outcomes))
		f.index[string(key)] = n
		f.outcomes = append(f.outcomes, outcome{origin: -1})
	}
	return &f.outcomes[n], !ok
}

// gather builds the rows of the outcomes. An update whose stored row is under another key has that key's Before row in
// front of it.
func (f *folder) gather(ctx context.Context, alloc memory.Allocator) (*connector.Rows, error) {
	var ops []connector.Op
	var from []*outcome // by row of the result; a Before row's is its own
	for n := range f.outcomes {
		o := &f.outcomes[n]
		switch {
		case o.deleted && !o.kept:
			ops, from = append(ops, connector.Delete), append(from, o)
		case o.fresh && !o.partial:
			ops, from = append(ops, connector.Insert), append(from, o)
		case o.origin < 0 || !o.partial:
			ops, from = append(ops, connector.Update), append(from, o)
		default:
			ops = append(ops, connector.Before, connector.Update)
			from = append(from, &outcome{deleted: true, by: o.origin, row: o.origin, origin: -1}, o)
		}
	}
	if len(ops) == 0 {
		return nil, nil
	}
	columns := make([]arrow.Array, f.rows.Values.NumCols())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	var unsent [][]byte
	if f.rows.Unsent != nil {
		unsent = make([][]byte, len(columns))
	}
	for c := range columns {
		var err error
		if columns[c], err = take(ctx, alloc, f.rows.Values.Column(c), from, c); err != nil {
			return nil, fmt.Errorf("gather column %s: %w", f.rows.Table.Columns[c].Name, err)
		}
		if unsent != nil {
			unsent[c] = f.unsentOf(from, c)
		}
	}
	var deleted []time.Time
	if f.times != nil {
		deleted = make([]time.Time, len(from))
		for r, o := range from {
			deleted[r] = f.deletedAt(o)
		}
	}
	return &connector.Rows{
		Table: f.rows.Table, Ops: ops, Unsent: unsent, Distinct: true, Deleted: deleted,
		Values: array.NewRecordBatch(f.rows.Values.Schema(), columns, int64(len(ops))),
	}, nil
}

// unsentOf returns the bitmap of column c over the rows of the result, nil if all of it was sent.
func (f *folder) unsentOf(from []*outcome, c int) []byte {
	if f.rows.Unsent[c] == nil {
		return nil
	}
	var bits []byte
	for r, o := range from {
		if f.rows.IsUnsent(c, int(o.source(c))) {
			if bits == nil {
				bits = make([]byte, bitutil.BytesForBits(int64(len(from))))
			}
			bitutil.SetBit(bits, r)
		}
	}
	return bits
}

func take(ctx context.Context, alloc memory.Allocator, values arrow.Array, from []*outcome, c int) (arrow.Array, error) {
	b := array.NewInt32Builder(alloc)
	defer b.Release()
	b.Reserve(len(from))
	for _, o := range from {
		b.UnsafeAppend(o.source(c))
	}
	indices := b.NewArray()
	defer indices.Release()
	return compute.TakeArrayOpts(compute.WithAllocator(ctx, alloc), values, indices, compute.TakeOptions{BoundsCheck: false})
}
