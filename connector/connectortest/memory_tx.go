package connectortest

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// memoryTx implements connector.Tx. What it writes is its own until Commit.
type memoryTx struct {
	sink   *MemorySink
	epoch  int
	done   bool
	failed bool // a call failed: as in PostgreSQL, only Rollback is left
	loads  []load
	live   map[schema.Name]*liveCopy
}

// load is rows for a copy.
type load struct {
	name schema.Name
	copy int
	rows []Row
}

// liveCopy is a destination as the transaction sees it.
type liveCopy struct {
	changes  int // of the storedTable when it was copied
	key      []int
	width    int // columns stored, those that are not written any more included
	rows     map[string]Row
	deleted  map[string]string // by key, when a row that stays was deleted
	appended []HistoryRow
	history  []HistoryRow // as stored
}

// Load adds rows to the copy under way.
func (tx *memoryTx) Load(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	return tx.call(ctx, CallLoad, func() error {
		stored := tx.sink.store.tables[t.Name]
		if stored == nil || stored.loading == nil || stored.loading.number != t.Copy {
			return sinkError(connector.TableFault, "load", t.Name, fmt.Errorf("copy %d is not under way", t.Copy))
		}
		l := load{name: t.Name, copy: t.Copy}
		for i := range r.Len() {
			row := storedRow(t, RowAt(r, i))
			if err := tx.sink.refuse(t, row, i, true); err != nil {
				return err
			}
			l.rows = append(l.rows, row)
		}
		tx.loads = append(tx.loads, l)
		return nil
	})
}

// Write applies changes to the copy that is ready.
func (tx *memoryTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	return tx.call(ctx, CallWrite, func() error {
		live, err := tx.open(t)
		if err != nil {
			return err
		}
		w := &writer{sink: tx.sink, target: t, rows: r, live: live}
		if t.SoftDelete {
			if w.deletions, err = r.DeletionTimes(memory.DefaultAllocator); err != nil {
				return sinkError(connector.Internal, "write", t.Name, err)
			}
			defer w.deletions.Release()
		}
		switch {
		case t.History:
			return w.appendHistory()
		case r.Distinct:
			return w.applySet()
		default:
			return w.applyRows()
		}
	})
}

// open returns the transaction's own state of a destination.
func (tx *memoryTx) open(t *connector.Target) (*liveCopy, error) {
	if live := tx.live[t.Name]; live != nil {
		return live, nil
	}
	stored := tx.sink.store.tables[t.Name]
	if stored == nil || stored.ready == 0 {
		return nil, sinkError(connector.TableFault, "write", t.Name, errors.New("the destination does not exist"))
	}
	if stored.ready != t.Copy {
		return nil, sinkError(connector.Internal, "write", t.Name, fmt.Errorf("into copy %d, but copy %d is the one that is ready", t.Copy, stored.ready))
	}
	live := &liveCopy{
		changes: stored.changes, key: stored.key, width: len(stored.columns), rows: maps.Clone(stored.rows), deleted: maps.Clone(stored.deleted), history: stored.history,
	}
	tx.live[t.Name] = live
	return live, nil
}

// Commit makes all of it visible, unless another process has claimed the mirror or an entry is not as it was left.
func (tx *memoryTx) Commit(ctx context.Context, entries map[string]string) error {
	err := tx.call(ctx, CallCommit, func() error {
		m, err := tx.sink.claimed("commit", tx.epoch)
		if err != nil {
			return err
		}
		if err := tx.sink.compareEntries("commit", m, entries); err != nil {
			return err
		}
		if err := tx.check(); err != nil {
			return err
		}
		tx.apply()
		setEntries(m, entries)
		tx.done = true
		return nil
	})
	tx.done = true
	if err == nil {
		tx.sink.learn(entries)
	}
	return err
}

// check finds what other transactions committed in the meantime.
func (tx *memoryTx) check() error {
	for _, l := range tx.loads {
		stored := tx.sink.store.tables[l.name]
		if stored == nil || stored.loading == nil || stored.loading.number != l.copy {
			return sinkError(connector.TableFault, "commit", l.name, fmt.Errorf("copy %d is not under way any more", l.copy))
		}
	}
	for name, live := range tx.live {
		if stored := tx.sink.store.tables[name]; stored == nil || stored.changes != live.changes {
			return sinkError(connector.Conflict, "commit", name, errors.New("another transaction wrote the table"))
		}
	}
	return nil
}

func (tx *memoryTx) apply() {
	for _, l := range tx.loads {
		loading := tx.sink.store.tables[l.name].loading
		loading.rows = append(loading.rows, l.rows...)
	}
	for name, live := range tx.live {
		stored := tx.sink.store.tables[name]
		stored.rows, stored.deleted = live.rows, live.deleted
		stored.history = append(stored.history, live.appended...)
		stored.changes++
	}
}

// Rollback forgets the transaction.
func (tx *memoryTx) Rollback() error {
	tx.done = true
	return nil
}

// call runs one method under faults and the store's lock.
func (tx *memoryTx) call(ctx context.Context, call Call, do func() error) error {
	_, err := guard(ctx, tx.sink.faults, memorySink, call, func() (struct{}, error) {
		tx.sink.store.mu.Lock()
		defer tx.sink.store.mu.Unlock()
		if tx.done || tx.failed {
			return struct{}{}, sinkError(connector.Internal, string(call), schema.Name{}, errors.New("the transaction has ended or a call in it failed"))
		}
		if err := tx.sink.alive(string(call)); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, do()
	})
	tx.failed = tx.failed || err != nil
	return err
}

// storedRow returns the columns of a row that are stored.
func storedRow(t *connector.Target, row Row) Row {
	out := make(Row, len(t.Columns))
	for i, c := range t.Columns {
		out[i] = row[c]
	}
	return out
}

// refuse reports a row that RefuseRow does not want: the whole set where rows were given as one, else the row.
func (s *MemorySink) refuse(t *connector.Target, row Row, i int, single bool) error {
	if s.RefuseRow == nil || !s.RefuseRow(t.Name, row) {
		return nil
	}
	if !single {
		return sinkError(connector.Constraint, "write", t.Name, errors.New("a row is refused"))
	}
	e := sinkError(connector.BadRow, "write", t.Name, errors.New("the row is refused"))
	e.Row = i
	return e
}

// writer is one call of Write.
type writer struct {
	sink   *MemorySink
	target *connector.Target
	rows   *connector.Rows
	live   *liveCopy

	deletions *array.Int64 // of a SoftDelete target
}

// remove deletes the row of a key, as row i says.
func (w *writer) remove(k string, i int) {
	if w.deletions == nil {
		delete(w.live.rows, k)
	} else if w.live.rows[k] != nil && w.live.deleted[k] == "" {
		w.live.deleted[k] = string(schema.AppendTimestampTZ(nil, w.deletions.Value(i)))
	}
}

// put stores the row of a key, as row i of the batch leaves it.
func (w *writer) put(k string, row Row, i int) {
	w.live.rows[k] = row
	delete(w.live.deleted, k)
	if w.deletions != nil && w.deletions.IsValid(i) {
		w.remove(k, i)
	}
}

// key returns the key text of row i.
func (w *writer) key(row Row) string { return storedKey(w.live.key, row) }

func (w *writer) row(i int) Row { return storedRow(w.target, RowAt(w.rows, i)) }

// complete takes the unsent values of update i from the row stored under the key of the Before in front of it, else
// under its own.
func (w *writer) complete(i int) (Row, error) {
	row := w.row(i)
	under := w.key(row)
	if i > 0 && w.rows.Op(i-1) == connector.Before {
		under = w.key(w.row(i - 1))
	}
	stored := w.live.rows[under]
	if w.live.deleted[under] != "" {
		stored = nil // its values are those of an earlier row
	}
	for c, v := range row {
		if v != Unsent {
			continue
		}
		if stored == nil {
			e := sinkError(connector.BadRow, "write", w.target.Name, errors.New("values are unsent and no row is stored"))
			e.Row = i
			return nil, e
		}
		row[c] = stored[c]
	}
	return row, nil
}

// widen adds to row i the columns that are not written any more, as the row that it replaces has them.
func (w *writer) widen(row Row, i int) Row {
	under := w.key(row)
	if i > 0 && w.rows.Op(i-1) == connector.Before {
		under = w.key(w.row(i - 1))
	}
	stored := w.live.rows[under]
	for c := len(row); c < w.live.width; c++ {
		if stored == nil {
			row = append(row, Null)
		} else {
			row = append(row, stored[c])
		}
	}
	return row
}

// applySet applies Distinct rows: unsent values first, then deletes, then the new rows.
func (w *writer) applySet() error {
	seen := make(map[string]bool)
	var removed, stored []func()
	for i := range w.rows.Len() {
		op := w.rows.Op(i)
		row := w.row(i)
		if op == connector.Update {
			var err error
			if row, err = w.complete(i); err != nil {
				return err
			}
		}
		k := w.key(row)
		if op == connector.Truncate {
			return sinkError(connector.Internal, "write", w.target.Name, errors.New("a truncate among distinct rows"))
		}
		if op != connector.Before && seen[k] {
			return sinkError(connector.Internal, "write", w.target.Name, errors.New("two distinct rows have one key"))
		}
		switch op {
		case connector.Before:
			removed = append(removed, func() { w.remove(k, i) })
		case connector.Delete:
			seen[k] = true
			removed = append(removed, func() { w.remove(k, i) })
		default:
			if err := w.sink.refuse(w.target, row, i, false); err != nil {
				return err
			}
			seen[k] = true
			row = w.widen(row, i)
			stored = append(stored, func() { w.put(k, row, i) })
		}
	}
	for _, do := range append(removed, stored...) {
		do()
	}
	return nil
}

// applyRows applies rows one by one.
func (w *writer) applyRows() error {
	for i := range w.rows.Len() {
		switch op := w.rows.Op(i); op {
		case connector.Truncate:
			for k := range w.live.rows {
				w.remove(k, i)
			}
		case connector.Delete:
			w.remove(w.key(w.row(i)), i)
		case connector.Before: // its row goes with the update behind it, which may need it first
		default:
			row, err := w.complete(i)
			if err != nil {
				return err
			}
			if err := w.sink.refuse(w.target, row, i, true); err != nil {
				return err
			}
			row = w.widen(row, i)
			if i > 0 && w.rows.Op(i-1) == connector.Before {
				w.remove(w.key(w.row(i-1)), i-1)
			}
			w.put(w.key(row), row, i)
		}
	}
	return nil
}

var historyOps = map[connector.Op]string{
	connector.Insert: "insert", connector.Update: "update", connector.Delete: "delete", connector.Truncate: "truncate",
	connector.Leave: "leave",
}

// appendHistory appends every row as Commits describe them; a Before makes the old key of its update.
func (w *writer) appendHistory() error {
	i := 0
	for _, c := range w.rows.Commits {
		seq := c.First
		for range c.Rows {
			if i == w.rows.Len() {
				break
			}
			if op := w.rows.Op(i); op != connector.Before {
				h := HistoryRow{Op: historyOps[op], Position: c.Position, Seq: seq, Time: c.Time}
				if op != connector.Truncate {
					h.Row = w.row(i)
				}
				if op == connector.Update && len(w.live.key) > 0 {
					w.completeHistory(&h, i)
				}
				for h.Row != nil && len(h.Row) < w.live.width {
					h.Row = append(h.Row, Null)
				}
				w.live.appended = append(w.live.appended, h)
				seq++
			}
			i++
		}
	}
	if i != w.rows.Len() {
		return sinkError(connector.Internal, "write", w.target.Name, fmt.Errorf("commits cover %d of %d rows", i, w.rows.Len()))
	}
	return nil
}

// completeHistory sets the old key of an update and takes unsent values from the last row of that key; where there is
// none they stay unsent.
func (w *writer) completeHistory(h *HistoryRow, i int) {
	under := w.key(h.Row)
	if i > 0 && w.rows.Op(i-1) == connector.Before {
		before := w.row(i - 1)
		if k := w.key(before); k != under {
			under = k
			for _, c := range w.live.key {
				h.OldKey = append(h.OldKey, before[c])
			}
		}
	}
	last := w.lastOf(under)
	for c, v := range h.Row {
		if v == Unsent && last != nil {
			h.Row[c] = last[c]
		}
	}
}

// lastOf returns the last row that history has of a key.
func (w *writer) lastOf(k string) Row {
	for _, rows := range [][]HistoryRow{w.live.appended, w.live.history} {
		for n := len(rows) - 1; n >= 0; n-- {
			if h := rows[n]; h.Row != nil && h.Op != "delete" && w.key(h.Row) == k {
				return h.Row
			}
		}
	}
	return nil
}
