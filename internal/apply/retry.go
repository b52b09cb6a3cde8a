package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/connector"
)

// Retry reads rows in quarantine from the source, those with these ids or all if ids is nil, and writes them as they are
// there now; a row that is gone there is deleted. It returns how many were in quarantine and how many the sink still
// refuses. What is read is newer than the changes that wait, which are then replayed over it: the table converges for a
// while. Of a table being prepared or written it is not to be called.
func (t *Table) Retry(ctx context.Context, ids []string) (tried, refused int, err error) {
	_, rows := t.quarantine.find(ids)
	for len(rows) > 0 {
		n := min(len(rows), findKeys)
		still, err := t.retry(ctx, rows[:n])
		if err != nil {
			return tried, refused, err
		}
		tried, refused = tried+n, refused+still
		rows = rows[n:]
	}
	return tried, refused, nil
}

func (t *Table) retry(ctx context.Context, rows []held) (refused int, err error) {
	if t.source == nil {
		return 0, t.fault("read rows in quarantine", nil, errNoFinder)
	}
	b := &Batch{table: t, converges: true, again: true, next: t.at, held: t.quarantine.snapshot()}
	if b.set.rows, err = t.readHeld(ctx, rows); err != nil {
		return 0, t.fault("read rows in quarantine", nil, err)
	}
	none := b.set.rows.Values.NewSlice(0, 0)
	b.rows = &connector.Rows{Table: b.set.rows.Table, Values: none}
	defer b.Release()
	t.reread += int64(len(rows))
	// After the reading: whatever it saw was in the log by now.
	head, err := t.source.Head(ctx, t.target.Table.Log)
	if err != nil {
		return 0, err
	}
	if b.next.Overlap, err = t.later(b.next.Overlap, head[t.at.Part]); err != nil {
		return 0, err
	}
	if t.keep != nil {
		if err := b.judge(ctx); err != nil {
			return 0, err
		}
	}
	if err := b.siftSet(ctx); err != nil { // those that are taken leave the quarantine
		return 0, err
	}
	if err := b.Apply(ctx); err != nil {
		return 0, err
	}
	return len(b.inSet.bad), nil
}

// readHeld returns what the source has under these keys, as rows to be put, and a delete of each that is gone.
func (t *Table) readHeld(ctx context.Context, rows []held) (*connector.Rows, error) {
	table := t.target.Table
	wanted, err := keyRecord(t.alloc, table, rows)
	if err != nil {
		return nil, err
	}
	defer wanted.Release()
	columns, fields := make([]arrow.Array, len(table.Key)), make([]arrow.Field, len(table.Key))
	for i, c := range table.Key {
		columns[i], fields[i] = wanted.Column(c), wanted.Schema().Field(c)
	}
	keys := array.NewRecordBatch(arrow.NewSchema(fields, nil), columns, wanted.NumRows())
	defer keys.Release()
	found, err := t.source.Find(ctx, table, keys)
	if err != nil {
		return nil, err
	}
	defer found.Release()
	out := &connector.Rows{Table: table, Distinct: true}
	there := map[string]bool{}
	encoder := newKeyEncoder(found.Values, table.Key)
	var from []int32
	for i := range found.Len() {
		there[string(encoder.encode(i))] = true
		from, out.Ops = append(from, int32(i)), append(out.Ops, connector.Insert)
	}
	encoder = newKeyEncoder(wanted, table.Key)
	for i := range len(rows) {
		if !there[string(encoder.encode(i))] {
			from, out.Ops = append(from, int32(found.Len()+i)), append(out.Ops, connector.Delete)
		}
	}
	if t.target.SoftDelete {
		out.Deleted = make([]time.Time, len(from))
		for r, op := range out.Ops {
			if op == connector.Delete {
				out.Deleted[r] = time.Now() // when it was is not known
			}
		}
	}
	values := make([]arrow.Array, len(table.Columns))
	defer func() {
		for _, v := range values {
			if v != nil {
				v.Release()
			}
		}
	}()
	for c := range values {
		both, err := array.Concatenate([]arrow.Array{found.Values.Column(c), wanted.Column(c)}, t.alloc)
		if err != nil {
			return nil, fmt.Errorf("join column %s: %w", table.Columns[c].Name, err)
		}
		values[c], err = takeRows(ctx, t.alloc, both, from)
		both.Release()
		if err != nil {
			return nil, fmt.Errorf("pick column %s: %w", table.Columns[c].Name, err)
		}
	}
	out.Values = array.NewRecordBatch(found.Values.Schema(), values, int64(len(from)))
	return out, nil
}

// Drop takes rows out of the quarantine, those with these ids or all if ids is nil, and leaves the destination as it is. It
// returns how many there were. Of a table being prepared or written it is not to be called.
func (t *Table) Drop(ctx context.Context, ids []string) (int, error) {
	found, _ := t.quarantine.find(ids)
	if len(found) == 0 {
		return 0, nil
	}
	entries, gone := map[string]string{}, moves{}
	for _, id := range found {
		entries[quarantineKey(t.id, id)], gone[id] = "", nil
	}
	tx, err := t.sink.Begin(ctx)
	if err != nil {
		return 0, err
	}
	if err := tx.Commit(ctx, entries); err != nil {
		return 0, errors.Join(err, tx.Rollback())
	}
	t.quarantine.move(gone)
	return len(found), nil
}
