package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
)

// errMissing is the fault of an update that must keep values of a stored row that is not there.
var errMissing = errors.New("the stored row is missing: rows were deleted in the sink")

// Write applies changes; see connector.Tx. SQLite runs in this process, so a statement for each row costs no more than a
// set would.
func (x *tx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	if r.Len() == 0 {
		return nil
	}
	return x.do(ctx, "write rows", t.Name, func(w *writer) error {
		b, err := w.newBatch(t, r)
		if err != nil {
			return err
		}
		b.findUnsent()
		switch {
		case t.History:
			return b.writeHistory()
		case r.Distinct && !slices.Contains(r.Ops, connector.Truncate):
			return b.writeSet()
		}
		return b.writeRows()
	})
}

func (b *batch) findUnsent() {
	if b.rows.Unsent == nil {
		return
	}
	for c := range b.columns {
		for i := range b.rows.Len() {
			if isPut(b.rows.Op(i)) && b.isUnsent(c, i) {
				b.unsent = append(b.unsent, c)
				break
			}
		}
	}
}

func isPut(op connector.Op) bool { return op == connector.Insert || op == connector.Update }

func (b *batch) isUnsent(c, i int) bool {
	return c != b.deleted && b.rows.IsUnsent(b.layout.columns[c].source, i)
}

// unsentIn returns the columns of row i whose values were not sent.
func (b *batch) unsentIn(i int) []int {
	var columns []int
	for _, c := range b.unsent {
		if b.isUnsent(c, i) {
			columns = append(columns, c)
		}
	}
	return columns
}

// oldKey returns the row that holds the old key of row i: the Before in front of it where its key is another one, else i.
func (b *batch) oldKey(i int) (int, error) {
	if i == 0 || b.rows.Op(i) != connector.Update || b.rows.Op(i-1) != connector.Before {
		return i, nil
	}
	var err error
	if b.scratch, err = b.appendKey(b.scratch[:0], i-1); err != nil {
		return i, err
	}
	n := len(b.scratch)
	if b.scratch, err = b.appendKey(b.scratch, i); err != nil {
		return i, err
	}
	if bytes.Equal(b.scratch[:n], b.scratch[n:]) {
		return i, nil
	}
	return i - 1, nil
}

// appendKey appends the key of row i as a JSON object.
func (b *batch) appendKey(dst []byte, i int) (_ []byte, err error) {
	for n, k := range b.key {
		dst = append(dst, "{,"[min(n, 1)])
		dst = append(appendJSONString(dst, []byte(b.layout.columns[k].name)), ':')
		if c := &b.columns[k]; c.IsNull(i) {
			dst = append(dst, "null"...)
		} else if dst, err = c.json(dst, i); err != nil {
			return dst, b.rowError(err, k, i)
		}
	}
	return append(dst, '}'), nil
}

// writeSet applies a folded batch: values not sent are taken from the stored rows, then keys go, then rows are put. Where
// no row changes its key, a row with values not sent is not touched before it is put, and keeps them in place.
func (b *batch) writeSet() error {
	leaves := make([]bool, b.rows.Len()) // a Before whose row gets another key
	moves := false
	for i := 1; i < b.rows.Len(); i++ {
		old, err := b.oldKey(i)
		if err != nil {
			return err
		}
		if old != i {
			leaves[old], moves = true, true
		}
	}
	staged := moves && len(b.unsent) > 0
	if staged {
		if err := b.stage(leaves); err != nil {
			return err
		}
	}
	for i := range b.rows.Len() {
		if leaves[i] || b.rows.Op(i) == connector.Delete {
			if err := b.deleteRow(i); err != nil {
				return err
			}
		}
	}
	for i := range b.rows.Len() {
		if !isPut(b.rows.Op(i)) {
			continue
		}
		var err error
		switch unsent := b.unsentIn(i); {
		case unsent == nil:
			err = b.putRow(i)
		case staged:
			err = b.putStaged(i, unsent)
		default:
			err = b.updateRow(i, i, unsent)
		}
		if err != nil {
			return err
		}
	}
	if staged {
		return b.clearStage()
	}
	return nil
}

// stageName is a temporary table for values taken from stored rows: n is the number of the row that they belong to. Its
// columns have no types, so that values stay as they are.
func (b *batch) stageName() string { return fmt.Sprintf("temp.sluice_stage_%d", len(b.columns)) }

// makeStage makes the stage, which is empty between two uses.
func (b *batch) makeStage() error {
	columns := []string{"n INTEGER PRIMARY KEY"}
	for c := range b.columns {
		columns = append(columns, fmt.Sprintf("c%d", c))
	}
	return b.w.exec("CREATE TABLE IF NOT EXISTS " + b.stageName() + " (" + strings.Join(columns, ", ") + ")")
}

func (b *batch) clearStage() error { return b.w.exec("DELETE FROM " + b.stageName()) }

func (b *batch) stage(leaves []bool) error {
	if err := b.makeStage(); err != nil {
		return err
	}
	for i := range b.rows.Len() {
		if !isPut(b.rows.Op(i)) {
			continue
		}
		unsent := b.unsentIn(i)
		if unsent == nil {
			continue
		}
		old := i
		if i > 0 && leaves[i-1] {
			old = i - 1
		}
		if err := b.stageRow(i, old, unsent); err != nil {
			return err
		}
	}
	return nil
}

// stageRow keeps the values of the stored row with the key of row old that row i leaves out.
func (b *batch) stageRow(i, old int, unsent []int) error {
	into, from := []string{"n"}, []string{param(1)}
	for _, c := range unsent {
		into, from = append(into, fmt.Sprintf("c%d", c)), append(from, b.layout.columns[c].sql)
	}
	s, err := b.w.prepare("INSERT INTO " + b.stageName() + " (" + strings.Join(into, ", ") + ") SELECT " + strings.Join(from, ", ") +
		" FROM " + b.dest + " WHERE " + b.match(2) + b.live)
	if err != nil {
		return err
	}
	s.BindInt64(1, int64(i))
	if err := b.bindKey(s, 2, old); err != nil {
		return err
	}
	return b.mustChange(s, i)
}

// mustChange runs a statement that writes one row; another count means that the stored row is missing.
func (b *batch) mustChange(s *sqlite.Stmt, row int) error {
	if err := run(s); err != nil {
		return b.refused(err, row)
	}
	if b.w.conn.Changes() != 1 {
		return &connector.Error{Kind: connector.BadRow, System: sinkSystem, Op: "write rows", Table: b.target.Name, Row: row,
			Err: errMissing, Hint: "`resync` the table"}
	}
	return nil
}

// refused names the row that SQLite did not take, where rows are written in order.
func (b *batch) refused(err error, row int) error {
	err = wrapError(err, "write rows", b.target.Name)
	if e, ok := errors.AsType[*connector.Error](err); ok && e.Kind == connector.Constraint && !b.rows.Distinct {
		e.Kind, e.Row = connector.BadRow, row
	}
	return err
}

// putStaged writes row i with the values that stage kept for it.
func (b *batch) putStaged(i int, unsent []int) error {
	from := make([]string, len(b.columns))
	for c := range b.columns {
		from[c] = param(c + 1)
		if slices.Contains(unsent, c) {
			from[c] = fmt.Sprintf("c%d", c)
		}
	}
	s, err := b.w.prepare("INSERT INTO " + b.dest + " (" + b.columnList() + ") SELECT " + strings.Join(from, ", ") +
		" FROM " + b.stageName() + " WHERE n = " + param(len(b.columns)+1) + b.onConflict())
	if err != nil {
		return err
	}
	for c := range b.columns {
		if slices.Contains(unsent, c) {
			continue
		}
		if err := b.bind(s, c+1, c, i); err != nil {
			return err
		}
	}
	s.BindInt64(len(b.columns)+1, int64(i))
	return b.mustChange(s, i)
}

// putRow writes row i in place of the stored row with its key.
func (b *batch) putRow(i int) error {
	s, err := b.w.prepare(b.put)
	if err != nil {
		return err
	}
	if err := b.bindRow(s, i); err != nil {
		return err
	}
	if err := run(s); err != nil {
		return b.refused(err, i)
	}
	return nil
}

func (b *batch) deleteRow(i int) error {
	s, err := b.w.prepare(b.remove)
	if err != nil {
		return err
	}
	if err := b.bindKey(s, 1, i); err != nil {
		return err
	}
	if err := b.bindDeletion(s, len(b.key)+1, i); err != nil {
		return err
	}
	if err := run(s); err != nil {
		return b.refused(err, i)
	}
	return nil
}

// bindDeletion binds when row i goes to parameter n, where that is kept.
func (b *batch) bindDeletion(s *sqlite.Stmt, n, i int) error {
	if b.deleted < 0 {
		return nil
	}
	return b.bind(s, n, b.deleted, i)
}

func (b *batch) truncate(i int) error {
	if b.target.Existing == connector.MergeExisting {
		return fault(connector.TableFault, "write rows", b.target.Name, "delete the source's rows from the table, then `resync` it",
			"the source has truncated the table, and which rows of the destination are its own is not known (`existing: merge`)")
	}
	if b.deleted < 0 {
		return b.w.exec("DELETE FROM " + b.dest) // which SQLite does at once, as nothing is asked of the rows
	}
	s, err := b.w.prepare(b.removal(1) + "true" + b.live)
	if err != nil {
		return err
	}
	if err := b.bindDeletion(s, 1, i); err != nil {
		return err
	}
	return run(s)
}

// updateRow changes the values of row i that were sent in the stored row with the key of row old.
func (b *batch) updateRow(i, old int, unsent []int) error {
	var sets []string
	for c := range b.columns {
		if !slices.Contains(unsent, c) {
			sets = append(sets, b.layout.columns[c].sql+" = "+param(c+1))
		}
	}
	s, err := b.w.prepare("UPDATE " + b.dest + " SET " + strings.Join(sets, ", ") + " WHERE " + b.match(len(b.columns)+1) + b.live)
	if err != nil {
		return err
	}
	for c := range b.columns {
		if slices.Contains(unsent, c) {
			continue
		}
		if err := b.bind(s, c+1, c, i); err != nil {
			return err
		}
	}
	if err := b.bindKey(s, len(b.columns)+1, old); err != nil {
		return err
	}
	return b.mustChange(s, i)
}

// writeRows applies changes one by one in order.
func (b *batch) writeRows() error {
	for i := range b.rows.Len() {
		var err error
		switch b.rows.Op(i) {
		case connector.Insert, connector.Update:
			err = b.writeRow(i)
		case connector.Delete:
			err = b.deleteRow(i)
		case connector.Truncate:
			err = b.truncate(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// writeRow writes row i in place of the stored rows with its old and its new key.
func (b *batch) writeRow(i int) error {
	old, err := b.oldKey(i)
	if err != nil {
		return err
	}
	unsent := b.unsentIn(i)
	switch {
	case unsent == nil && old == i:
		return b.putRow(i)
	case unsent == nil:
		if err := b.deleteRow(old); err != nil {
			return err
		}
		return b.putRow(i)
	case old != i && b.deleted >= 0:
		return b.moveOn(i, old, unsent)
	case old != i:
		if err := b.makeRoom(i, old); err != nil {
			return err
		}
	}
	return b.updateRow(i, old, unsent)
}

// moveOn puts row i, with the values that were not sent from the stored row with the key of row old, which stays as a deleted
// one, unless SQLite takes the old and the new key for equal.
func (b *batch) moveOn(i, old int, unsent []int) error {
	if err := b.makeStage(); err != nil {
		return err
	}
	if err := b.stageRow(i, old, unsent); err != nil {
		return err
	}
	if err := b.deleteRow(old); err != nil {
		return err
	}
	if err := b.putStaged(i, unsent); err != nil {
		return err
	}
	return b.clearStage()
}

// makeRoom deletes the stored row under the new key of a row that moves there, unless SQLite takes the old and the new key
// for equal: then it is the row itself.
func (b *batch) makeRoom(i, old int) error {
	s, err := b.w.prepare("DELETE FROM " + b.dest + " WHERE " + b.match(1) + " AND NOT (" + b.match(len(b.key)+1) + ")")
	if err != nil {
		return err
	}
	if err := b.bindKey(s, 1, i); err != nil {
		return err
	}
	if err := b.bindKey(s, len(b.key)+1, old); err != nil {
		return err
	}
	return run(s)
}
