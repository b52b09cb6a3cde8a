package apply

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/filter"
)

// A filtered table holds the rows for which its filter is true. The log says what a row is now and seldom what it was, so
// whether a row was in is not known:
//
//   - a row that is out is deleted by its key, which is harmless where it never was in; one that was inserted so is left
//     out, as long as the table is exact;
//   - a row that is in is put. Where values were not sent and no row is stored, it had been out: it is read from the source;
//   - where a value that was not sent decides, the row is read from the source too.
//
// What is read from the source is of a later moment, so the table converges for a while then (see Overlap). With a replica
// identity that sends whole old rows nothing is ever unsent, and the table stays exact.
//
// A history cannot take values of a later moment. Its rows that are in are appended, one that is out as Leave with the key
// alone, and so is, without its values, each Delete.

// Keep returns the rows of a copy that the filter takes; nil, if it takes none. The caller releases them beside rows.
func Keep(ctx context.Context, alloc memory.Allocator, keep *filter.Filter, rows *connector.Rows) (*connector.Rows, error) {
	var in []int32
	for i, v := range keep.Judge(rows) {
		if v == filter.In {
			in = append(in, int32(i))
		}
	}
	switch len(in) {
	case 0:
		return nil, nil
	case rows.Len():
		rows.Values.Retain()
		return rows, nil
	}
	return pick(ctx, alloc, rows, in)
}

// judge applies the filter to what a batch comes to.
func (b *Batch) judge(ctx context.Context) error {
	if b.set.rows == nil {
		return nil
	}
	verdicts := b.verdicts()
	var undecided []int32
	for i, v := range verdicts {
		if v == filter.Undecided {
			undecided = append(undecided, int32(i))
		}
	}
	if undecided != nil {
		c := completion{rows: b.set.rows, keys: newKeyEncoder(b.set.rows.Values, b.table.target.Table.Key)}
		if err := b.readWhole(ctx, &c, undecided); err != nil {
			return err
		}
		verdicts = b.verdicts()
	}
	return b.leaveOut(ctx, verdicts)
}

// verdicts judges the rows that are put; all others are In, for they stay.
func (b *Batch) verdicts() []filter.Verdict {
	verdicts := b.table.keep.Judge(b.set.rows)
	for i := range verdicts {
		if op := b.set.rows.Op(i); op != connector.Insert && op != connector.Update {
			verdicts[i] = filter.In
		}
	}
	return verdicts
}

// leaveOut makes deletes of the rows that are out, or drops those under whose keys nothing is stored.
func (b *Batch) leaveOut(ctx context.Context, verdicts []filter.Verdict) error {
	rows := b.set.rows
	ops := make([]connector.Op, rows.Len())
	var left []int32
	for i, v := range verdicts {
		ops[i] = rows.Op(i)
		switch {
		case v == filter.Undecided:
			return b.table.fault("filter changes", b.rows.Commits, errUndecided)
		case v == filter.Out && ops[i] == connector.Insert && !b.converges:
			continue
		case v == filter.Out:
			ops[i] = connector.Delete
		}
		left = append(left, int32(i))
	}
	judged := *rows
	judged.Ops = ops
	if len(left) == rows.Len() {
		b.set.rows = &judged // with the values of rows, which go with it
		return nil
	}
	defer rows.Release()
	b.set.rows = nil
	if len(left) == 0 {
		return nil
	}
	var err error
	b.set.rows, err = pick(ctx, b.table.alloc, &judged, left)
	return err
}

// errUndecided is the fault of a change that cannot be judged.
var errUndecided = errors.New("the filter depends on a value that the log leaves out, because it did not change")

// judgeHistory applies the filter to the rows of a history.
func (b *Batch) judgeHistory(ctx context.Context) error {
	judged, err := b.table.judgeRows(ctx, b.rows)
	if err != nil {
		return b.table.fault("filter changes", b.rows.Commits, err)
	}
	b.rows.Release()
	b.rows = judged
	return nil
}

// judgeRows returns the changes of a history as the filter has them; rows is the caller's still.
func (t *Table) judgeRows(ctx context.Context, rows *connector.Rows) (*connector.Rows, error) {
	j := historyJudge{rows: rows, verdicts: t.keep.Judge(rows), keyed: len(t.target.Table.Key) > 0}
	for i := range rows.Len() {
		if err := j.add(i); err != nil {
			return nil, err
		}
	}
	out, err := pick(ctx, t.alloc, rows, j.from)
	if err != nil {
		return nil, err
	}
	out.Ops, out.Commits = j.ops, j.commits()
	for c := range rows.Table.Columns {
		j.markUnsent(out, c, t.isKey(c))
	}
	return out, nil
}

func (t *Table) isKey(c int) bool {
	for _, k := range t.target.Table.Key {
		if k == c {
			return true
		}
	}
	return false
}

// historyJudge decides row by row what is appended.
type historyJudge struct {
	rows     *connector.Rows
	verdicts []filter.Verdict
	keyed    bool
	from     []int32 // by row of the result, the row of the batch
	ops      []connector.Op
}

func (j *historyJudge) keep(i int, op connector.Op) {
	j.from, j.ops = append(j.from, int32(i)), append(j.ops, op)
}

func (j *historyJudge) add(i int) error {
	op, v := j.rows.Op(i), j.verdicts[i]
	old := i > 0 && j.rows.Op(i-1) == connector.Before
	whole := !j.keyed // old rows are sent as a whole, or not at all
	if v == filter.Undecided && (op == connector.Insert || op == connector.Update || whole && op != connector.Truncate) {
		return errUndecided
	}
	switch op {
	case connector.Truncate:
		j.keep(i, op)
	case connector.Insert:
		if v == filter.In {
			j.keep(i, op)
		}
	case connector.Delete:
		if !whole || v == filter.In {
			j.keep(i, op)
		}
	case connector.Update:
		j.update(i, v == filter.In, old, !whole || old && j.verdicts[i-1] == filter.In)
	}
	return nil
}

// update adds an update. Whether the row was in is known only where its old image is whole; else it is taken for in.
func (j *historyJudge) update(i int, isIn, old, wasIn bool) {
	switch {
	case isIn && old && wasIn:
		j.keep(i-1, connector.Before)
		j.keep(i, connector.Update)
	case isIn && !j.keyed:
		j.keep(i, connector.Insert)
	case isIn:
		j.keep(i, connector.Update)
	case wasIn && old:
		j.keep(i-1, connector.Leave)
	case wasIn:
		j.keep(i, connector.Leave)
	}
}

// markUnsent leaves out of rows that went all values but those of the key: they need not be in the filter. Of a table
// without a key they tell which row went, and were in.
func (j *historyJudge) markUnsent(out *connector.Rows, c int, isKey bool) {
	if isKey || !j.keyed {
		return
	}
	for r, op := range out.Ops {
		if op != connector.Leave && op != connector.Delete {
			continue
		}
		if out.Unsent == nil {
			out.Unsent = make([][]byte, len(out.Table.Columns))
		}
		if out.Unsent[c] == nil {
			out.Unsent[c] = make([]byte, bitutil.BytesForBits(int64(len(out.Ops))))
		}
		bitutil.SetBit(out.Unsent[c], r)
	}
}

// commits are those of the rows that are left: each row keeps the number of its message, so a run ends where messages are
// left out.
func (j *historyJudge) commits() []connector.Commit {
	messages := make([]connector.Commit, 0, j.rows.Len()) // by row, a run of its own
	i := 0
	for _, c := range j.rows.Commits {
		n := c.First
		for range c.Rows {
			one := c
			one.First, one.Rows = n, 1
			messages = append(messages, one)
			if j.rows.Op(i) != connector.Before {
				n++
			}
			i++
		}
	}
	var runs []connector.Commit
	next := int64(-1) // the number that goes on with the last run
	for r, from := range j.from {
		m := messages[from]
		if len(runs) > 0 && m.First == next && m.Position == runs[len(runs)-1].Position {
			runs[len(runs)-1].Rows++
		} else {
			runs = append(runs, m)
		}
		next = m.First
		if j.ops[r] != connector.Before {
			next++
		}
	}
	return runs
}

// pick returns these rows of a batch, without its commits.
func pick(ctx context.Context, alloc memory.Allocator, rows *connector.Rows, which []int32) (*connector.Rows, error) {
	columns := make([]arrow.Array, rows.Values.NumCols())
	defer func() {
		for _, c := range columns {
			if c != nil {
				c.Release()
			}
		}
	}()
	out := &connector.Rows{Table: rows.Table, Distinct: rows.Distinct, Unsent: pickBits(rows.Unsent, which), Absent: pickBits(rows.Absent, which)}
	for c := range columns {
		var err error
		if columns[c], err = takeRows(ctx, alloc, rows.Values.Column(c), which); err != nil {
			return nil, fmt.Errorf("pick column %s: %w", rows.Table.Columns[c].Name, err)
		}
	}
	if rows.Ops != nil {
		out.Ops = make([]connector.Op, len(which))
		for r, i := range which {
			out.Ops[r] = rows.Ops[i]
		}
	}
	out.Values = array.NewRecordBatch(rows.Values.Schema(), columns, int64(len(which)))
	return out, nil
}

func pickBits(maps [][]byte, which []int32) [][]byte {
	if maps == nil {
		return nil
	}
	out := make([][]byte, len(maps))
	for c, bits := range maps {
		if bits == nil {
			continue
		}
		out[c] = make([]byte, bitutil.BytesForBits(int64(len(which))))
		for r, i := range which {
			if bitutil.BitIsSet(bits, int(i)) {
				bitutil.SetBit(out[c], r)
			}
		}
	}
	return out
}
