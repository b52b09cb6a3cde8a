package connector

import (
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Release gives the memory of r back.
func (r *Rows) Release() { r.Values.Release() }

// Len returns the number of rows.
func (r *Rows) Len() int { return int(r.Values.NumRows()) }

// Op returns what row i does.
func (r *Rows) Op(i int) Op {
	if r.Ops == nil {
		return Insert
	}
	return r.Ops[i]
}

// IsUnsent reports whether the source left out the value of column c in row i.
func (r *Rows) IsUnsent(c, i int) bool { return bitSet(r.Unsent, c, i) }

// IsAbsent reports whether row i has no attribute c.
func (r *Rows) IsAbsent(c, i int) bool { return bitSet(r.Absent, c, i) }

func bitSet(maps [][]byte, c, i int) bool {
	return maps != nil && maps[c] != nil && bitutil.BitIsSet(maps[c], i)
}

// CommitTimes returns the commit times of the rows that Commits cover, from the first row on.
func (r *Rows) CommitTimes() []time.Time {
	times := make([]time.Time, 0, r.Len())
	for _, c := range r.Commits {
		for range c.Rows {
			times = append(times, c.Time)
		}
	}
	return times
}

// year2000 is where schema.TimestampTZ is counted from, in microseconds of Unix time.
const year2000 = 946_684_800_000_000

// DeletionTimes returns the values of the column DeletedAt by row, in the storage of a schema.TimestampTZ: Deleted, or else
// the commit times of Delete, Before and Truncate rows; NULL for a row that lives. The caller releases it.
func (r *Rows) DeletionTimes(alloc memory.Allocator) (*array.Int64, error) {
	b := array.NewInt64Builder(alloc)
	defer b.Release()
	b.Reserve(r.Len())
	times := r.Deleted
	if times == nil {
		times = r.CommitTimes()
	}
	for i := range r.Len() {
		put := r.Op(i) == Insert || r.Op(i) == Update
		known := i < len(times) && !times[i].IsZero()
		switch {
		case put && (r.Deleted == nil || !known):
			b.AppendNull()
		case !known:
			return nil, fmt.Errorf("row %d is deleted at a time that is not known", i)
		default:
			b.Append(times[i].UnixMicro() - year2000)
		}
	}
	return b.NewInt64Array(), nil
}

func (*Frames) event()       {}
func (*SchemaChange) event() {}
func (*Unselected) event()   {}
func (*Progress) event()     {}
