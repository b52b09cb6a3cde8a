package connector

import "github.com/apache/arrow-go/v18/arrow/bitutil"

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

func (*Frames) event()       {}
func (*SchemaChange) event() {}
func (*Unselected) event()   {}
func (*Progress) event()     {}
