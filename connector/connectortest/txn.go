package connectortest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Txn is a transaction of a [Database]. From its first write to a table on it holds a write lock on it, and a lock on each
// row it wrote, until it is visible or rolled back. Its methods are safe for concurrent use with everything else.
type Txn struct {
	db      *Database
	xid     uint64
	changes []change
	pending map[*memoryTable]*overlay
	logged  bool
}

// overlay is what a transaction made of a table.
type overlay struct {
	truncated bool
	rows      map[string]Row // nil: deleted
}

// Begin starts a transaction.
func (db *Database) Begin() *Txn {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.xid++
	tx := &Txn{db: db, xid: db.xid, pending: make(map[*memoryTable]*overlay)}
	db.running[tx] = true
	return tx
}

// Insert inserts a row.
func (tx *Txn) Insert(table schema.Name, row Row) error {
	return tx.write("insert into", table, func(mt *memoryTable, o *overlay) error {
		k, err := tx.claimNew(mt, o, row)
		if err != nil {
			return err
		}
		o.rows[k] = slices.Clone(row)
		tx.record(change{table: mt.current, op: connector.Insert, row: o.rows[k], new: o.rows[k]})
		return nil
	})
}

// Update gives the row under key new values; one that is [Unsent] stays as it is.
func (tx *Txn) Update(table schema.Name, key, row Row) error {
	return tx.write("update", table, func(mt *memoryTable, o *overlay) error {
		old, err := tx.claim(mt, o, key)
		if err != nil {
			return err
		}
		t := mt.current
		next := slices.Clone(row)
		for c := range next {
			if next[c] == Unsent {
				next[c] = old[c]
			}
		}
		k, moved := keyText(keyOf(t, old)), !slices.Equal(keyOf(t, old), keyOf(t, next))
		if moved {
			if _, err := tx.claimNew(mt, o, next); err != nil {
				return err
			}
			o.rows[k] = nil
		}
		o.rows[keyText(keyOf(t, next))] = next
		ch := change{table: t, op: connector.Update, row: mt.sent(old, next), old: old, new: next}
		if moved || mt.full {
			ch.before = mt.oldImage(old)
		}
		tx.record(ch)
		return nil
	})
}

// Delete deletes the row under key.
func (tx *Txn) Delete(table schema.Name, key Row) error {
	return tx.write("delete from", table, func(mt *memoryTable, o *overlay) error {
		old, err := tx.claim(mt, o, key)
		if err != nil {
			return err
		}
		o.rows[keyText(key)] = nil
		tx.record(change{table: mt.current, op: connector.Delete, row: mt.oldImage(old), old: old})
		return nil
	})
}

// Truncate deletes all rows. Like that of PostgreSQL it locks the table against everybody else.
func (tx *Txn) Truncate(table schema.Name) error {
	return tx.write("truncate", table, func(mt *memoryTable, o *overlay) error {
		if len(tx.db.holders(mt)) > 1 {
			return ErrLocked
		}
		o.truncated = true
		clear(o.rows)
		tx.record(change{table: mt.current, op: connector.Truncate})
		return nil
	})
}

// Log writes the commit record: the stream delivers the transaction from now on, snapshots do not see it yet. It
// panics if it is called twice.
func (tx *Txn) Log() {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.mustRun()
	if tx.logged {
		panic("connectortest: the transaction has its commit record already")
	}
	tx.logged = true
	tx.db.lsn++
	tx.db.log = append(tx.db.log, &logRecord{lsn: tx.db.lsn, xid: tx.xid, at: now(), changes: tx.changes})
	tx.db.announce()
}

// Show makes a logged transaction visible to snapshots and gives its locks back.
func (tx *Txn) Show() {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.mustRun()
	if !tx.logged {
		panic("connectortest: the transaction is not logged")
	}
	for mt, o := range tx.pending {
		mt.apply(o)
	}
	tx.end()
}

// Commit is Log and Show.
func (tx *Txn) Commit() {
	tx.Log()
	tx.Show()
}

// Rollback undoes a transaction that is not logged.
func (tx *Txn) Rollback() {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.mustRun()
	if tx.logged {
		panic("connectortest: a logged transaction cannot be rolled back")
	}
	tx.end()
}

// Logged reports whether the commit record is written.
func (tx *Txn) Logged() bool {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	return tx.logged
}

// ID returns the transaction's id, the Tag of its commits.
func (tx *Txn) ID() uint64 { return tx.xid }

func (tx *Txn) mustRun() {
	if !tx.db.running[tx] {
		panic("connectortest: the transaction has ended")
	}
}

// end gives the locks back. The caller holds mu.
func (tx *Txn) end() {
	delete(tx.db.running, tx)
	for _, mt := range tx.db.tables {
		delete(mt.awaited, tx)
		maps.DeleteFunc(mt.locked, func(_ string, by *Txn) bool { return by == tx })
	}
	tx.db.announce()
}

// write runs one statement, which takes the table's write lock if it succeeds.
func (tx *Txn) write(verb string, table schema.Name, do func(*memoryTable, *overlay) error) error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.mustRun()
	if tx.logged {
		panic("connectortest: a logged transaction cannot write")
	}
	mt, err := tx.db.find(table)
	if err != nil {
		return err
	}
	for _, other := range tx.db.holders(mt) {
		if other != tx && other.pending[mt].truncated {
			return fmt.Errorf("%s %s: %w", verb, table, ErrLocked)
		}
	}
	o := tx.pending[mt]
	if o == nil {
		o = &overlay{rows: make(map[string]Row)}
	}
	tx.pending[mt] = o // before do, which counts the table's holders
	if err := do(mt, o); err != nil {
		if !o.truncated && len(o.rows) == 0 {
			delete(tx.pending, mt)
		}
		return fmt.Errorf("%s %s: %w", verb, table, err)
	}
	tx.db.announce()
	return nil
}

// record appends to what the log will have of the transaction.
func (tx *Txn) record(c change) {
	tx.db.lsn++
	c.lsn = tx.db.lsn
	tx.changes = append(tx.changes, c)
}

// claim locks the row under key and returns it as the transaction sees it.
func (tx *Txn) claim(mt *memoryTable, o *overlay, key Row) (Row, error) {
	if len(mt.current.Key) == 0 {
		return nil, ErrNoRow
	}
	k := keyText(key)
	if by := mt.locked[k]; by != nil && by != tx {
		return nil, ErrLocked
	}
	row := mt.look(o, k)
	if row == nil {
		return nil, ErrNoRow
	}
	mt.locked[k] = tx
	return row, nil
}

// claimNew locks the key of a new row and returns its text.
func (tx *Txn) claimNew(mt *memoryTable, o *overlay, row Row) (string, error) {
	if len(row) != len(mt.current.Columns) {
		return "", fmt.Errorf("a row of %d values for %d columns", len(row), len(mt.current.Columns))
	}
	if len(mt.current.Key) == 0 {
		mt.nextRow++
		return fmt.Sprintf("%09d", mt.nextRow), nil
	}
	k := keyText(keyOf(mt.current, row))
	if by := mt.locked[k]; by != nil && by != tx {
		return "", ErrLocked
	}
	if mt.look(o, k) != nil {
		return "", ErrDuplicate
	}
	mt.locked[k] = tx
	return k, nil
}

// look returns the row under k through an overlay, nil if there is none.
func (mt *memoryTable) look(o *overlay, k string) Row {
	if row, ok := o.rows[k]; ok {
		return row
	}
	if o.truncated {
		return nil
	}
	return mt.rows[k]
}

// apply makes an overlay visible.
func (mt *memoryTable) apply(o *overlay) {
	if o.truncated {
		clear(mt.rows)
		mt.file++
	}
	for k, row := range o.rows {
		if row == nil {
			delete(mt.rows, k)
		} else {
			mt.rows[k] = row
		}
	}
}

// sent returns what the log has of a new row: toasted columns that did not change are left out.
func (mt *memoryTable) sent(old, next Row) Row {
	row := slices.Clone(next)
	for _, name := range mt.toasted {
		if c := mt.current.Column(name); old[c] == next[c] && next[c] != Null {
			row[c] = Unsent
		}
	}
	return row
}

// oldImage returns what the log has of an old row: its key, or all of it.
func (mt *memoryTable) oldImage(old Row) Row {
	if mt.full {
		return slices.Clone(old)
	}
	row := make(Row, len(old))
	for c := range row {
		row[c] = Unsent
	}
	for _, c := range mt.current.Key {
		row[c] = old[c]
	}
	return row
}

// compareKeys orders keys: numbers by value, text by bytes.
func compareKeys(t *schema.Table, a, b Row) int {
	for i, c := range t.Key {
		order := cmp.Compare(a[i], b[i])
		if t.Columns[c].Type.Kind == schema.Int64 {
			x, _ := strconv.ParseInt(a[i], 10, 64) // keys that are no numbers are equal to 0; NewRowsBuilder refuses them
			y, _ := strconv.ParseInt(b[i], 10, 64)
			order = cmp.Compare(x, y)
		}
		if order != 0 {
			return order
		}
	}
	return 0
}
