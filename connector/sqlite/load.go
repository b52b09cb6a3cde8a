package sqlite

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// layout is how the rows of a target are written.
type layout struct {
	target  *connector.Target
	copy    int    // as the target had it
	dest    string // quoted
	columns []writtenColumn
	key     []int  // indexes into columns; nil: none, or not stored whole
	deleted int    // index of the column DeletedAt, -1: deletes are hard
	live    string // condition that a stored row lives, behind AND; "" where every one does

	put, remove, load string // statements for one row
}

// writtenColumn is a column that we write: the source's, and DeletedAt.
type writtenColumn struct {
	source    int // index into Table.Columns, -1 for DeletedAt
	name, sql string
	typ       schema.Type
}

// layoutOf returns the layout of t, made when t is seen for the first time.
func (w *writer) layoutOf(t *connector.Target) *layout {
	if l := w.layouts[t.Name.Table]; l != nil && l.target == t && l.copy == t.Copy {
		return l
	}
	l := &layout{target: t, copy: t.Copy, dest: quoteIdent(t.Name.Table), deleted: -1}
	for i, c := range t.Columns {
		l.columns = append(l.columns, writtenColumn{source: c, name: t.SinkNames[i], sql: quoteIdent(t.SinkNames[i]), typ: t.Table.Columns[c].Type})
	}
	if t.SoftDelete {
		l.deleted = len(l.columns)
		l.columns = append(l.columns, writtenColumn{
			source: -1, name: connector.DeletedAt, sql: quoteIdent(connector.DeletedAt), typ: schema.Type{Kind: schema.TimestampTZ},
		})
		l.live = " AND " + l.columns[l.deleted].sql + " IS NULL"
	}
	for _, name := range sinkKey(t) {
		l.key = append(l.key, slices.IndexFunc(l.columns, func(c writtenColumn) bool { return c.name == name }))
	}
	values := make([]string, len(l.columns))
	for c := range l.columns {
		values[c] = param(c + 1)
	}
	insert := " (" + l.columnList() + ") VALUES (" + strings.Join(values, ", ") + ")"
	l.put = "INSERT INTO " + l.dest + insert + l.onConflict()
	l.remove = l.removal(len(l.key)+1) + l.match(1) + l.live
	l.load = "INSERT INTO " + quoteIdent(copyName(t)) + insert
	if t.History {
		l.load = "INSERT INTO " + quoteIdent(copyName(t)) + ` (` + l.columnList() + `, "_sluice_op") VALUES (` + strings.Join(values, ", ") + ", 'copy')"
	}
	w.layouts[t.Name.Table] = l
	return l
}

// removal is the beginning, up to the condition, of the statement by which rows go, or are marked as deleted at the time in
// parameter n.
func (l *layout) removal(n int) string {
	if l.deleted < 0 {
		return "DELETE FROM " + l.dest + " WHERE "
	}
	return "UPDATE " + l.dest + " SET " + l.columns[l.deleted].sql + " = " + param(n) + " WHERE "
}

// columnList joins the quoted names of the columns.
func (l *layout) columnList() string {
	names := make([]string, len(l.columns))
	for i := range l.columns {
		names[i] = l.columns[i].sql
	}
	return strings.Join(names, ", ")
}

// match is the condition that a stored row has the key in the parameters from the nth on.
func (l *layout) match(n int) string {
	parts := make([]string, len(l.key))
	for i, k := range l.key {
		parts[i] = l.columns[k].sql + " COLLATE BINARY = " + param(n+i)
	}
	return strings.Join(parts, " AND ")
}

// onConflict makes an INSERT replace the stored row of the same key.
func (l *layout) onConflict() string {
	var keys, sets []string
	for c := range l.columns {
		if !slices.Contains(l.key, c) {
			sets = append(sets, l.columns[c].sql+" = excluded."+l.columns[c].sql)
		}
	}
	for _, k := range l.key {
		keys = append(keys, l.columns[k].sql)
	}
	action := "NOTHING"
	if sets != nil {
		action = "UPDATE SET " + strings.Join(sets, ", ")
	}
	return " ON CONFLICT (" + strings.Join(keys, ", ") + ") DO " + action
}

// batch is rows that are being written.
type batch struct {
	*layout
	w       *writer
	rows    *connector.Rows
	columns []boundColumn
	unsent  []int // indexes into columns of those with values not sent
	scratch []byte
}

// boundColumn writes one column of a batch.
type boundColumn struct {
	arrow.Array
	bind bindValue
	json appendValue // of key columns: tells two values apart
}

func (w *writer) newBatch(t *connector.Target, r *connector.Rows) (*batch, error) {
	b := &batch{layout: w.layoutOf(t), w: w, rows: r}
	if int(r.Values.NumCols()) != len(t.Table.Columns) {
		return nil, fault(connector.Internal, "write rows", t.Name, "", "%d columns of rows for %d of the table", r.Values.NumCols(), len(t.Table.Columns))
	}
	b.columns = make([]boundColumn, len(b.layout.columns))
	for i := range b.layout.columns {
		c := &b.layout.columns[i]
		a, err := b.valuesOf(i)
		if err != nil {
			return nil, &connector.Error{System: sinkSystem, Op: "write rows", Table: t.Name, Column: c.name, Err: err}
		}
		bound := boundColumn{Array: a}
		if bound.bind, err = bindColumn(c.typ, a); err == nil && slices.Contains(b.key, i) {
			bound.json, err = jsonColumn(c.typ, a)
		}
		if err != nil {
			return nil, &connector.Error{System: sinkSystem, Op: "write rows", Table: t.Name, Column: c.name, Err: err}
		}
		b.columns[i] = bound
	}
	return b, nil
}

// valuesOf returns the values of column i of the layout.
func (b *batch) valuesOf(i int) (arrow.Array, error) {
	if i == b.deleted {
		return b.rows.DeletionTimes(memory.DefaultAllocator) // which the garbage collector frees
	}
	return b.rows.Values.Column(b.layout.columns[i].source), nil
}

// bind binds the value of a column in row i to a parameter.
func (b *batch) bind(s *sqlite.Stmt, param, column, i int) error {
	c := &b.columns[column]
	if c.IsNull(i) {
		s.BindNull(param)
		return nil
	}
	if err := c.bind(s, param, i); err != nil {
		return b.rowError(err, column, i)
	}
	return nil
}

// bindRow binds all columns of row i, from parameter 1 on.
func (b *batch) bindRow(s *sqlite.Stmt, i int) error {
	for _, k := range b.key {
		// SQLite would make up a number for the NULL in a key of one INTEGER column.
		if b.columns[k].IsNull(i) && !b.target.History {
			return b.rowError(errors.New("a column of the key is NULL"), k, i)
		}
	}
	for c := range b.columns {
		if err := b.bind(s, c+1, c, i); err != nil {
			return err
		}
	}
	return nil
}

// bindKey binds the key of row i, from parameter n on.
func (b *batch) bindKey(s *sqlite.Stmt, n, i int) error {
	for j, k := range b.key {
		if err := b.bind(s, n+j, k, i); err != nil {
			return err
		}
	}
	return nil
}

// rowError says that value i of a column cannot be written.
func (b *batch) rowError(err error, column, i int) error {
	return &connector.Error{Kind: connector.BadRow, System: sinkSystem, Op: "write rows", Table: b.target.Name,
		Column: b.layout.columns[column].name, Row: i, Err: err}
}

// Load adds rows to the copy that is under way; see connector.Tx.
func (x *tx) Load(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	return x.do(ctx, "load rows", t.Name, func(w *writer) error {
		b, err := w.newBatch(t, r)
		if err != nil {
			return err
		}
		s, err := w.prepare(b.load)
		if err != nil {
			return err
		}
		for i := range r.Len() {
			if err := b.bindRow(s, i); err != nil {
				return err
			}
			if err := run(s); err != nil {
				return loadFault(err, t)
			}
		}
		return nil
	})
}

func loadFault(err error, t *connector.Target) error {
	if code := sqlite.ErrCode(err); code == sqlite.ResultConstraintPrimaryKey || code == sqlite.ResultConstraintUnique {
		return fault(connector.TableFault, "load rows", t.Name, "`resync` the table", "the copy holds a key twice: %w", err)
	}
	return err
}
