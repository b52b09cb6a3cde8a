package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// copyMessage is the size in bytes from which on a CopyData message is sent.
const copyMessage = 64 << 10

// sinkLayout is how the rows of a target are written.
type sinkLayout struct {
	target  *connector.Target
	dest    string // quoted
	columns []writtenColumn
	key     []int  // indexes into columns
	deleted int    // index of the column DeletedAt, -1: deletes are hard
	live    string // condition that a stored row d lives, behind AND; "" where every one does
	binary  bool   // every column has a binary form

	putRow, deleteRow string
}

// writtenColumn is a column that we write: all but generated ones and those of the history.
type writtenColumn struct {
	source int // index into Table.Columns, -1 for DeletedAt
	name   string
	sql    string // name, quoted
	typ    schema.Type
	sink   sinkType
	decl   string // type, as declared
	binary bool
}

// layoutOf returns the layout of t, from the catalog when t is seen for the first time. The catalog is read on the
// transaction's own connection: waiting for another while holding one could wait for ever.
func (x *tx) layoutOf(ctx context.Context, t *connector.Target) (*sinkLayout, error) {
	s := x.sink
	s.mu.Lock()
	l := s.layouts[t.Name]
	s.mu.Unlock()
	if l != nil && l.target == t {
		return l, nil
	}
	var texts []string
	for _, c := range tableColumns(t) {
		texts = append(texts, c.typ)
	}
	types, err := readTypes(ctx, x.query, texts) // anew: a type may have been made again
	if err != nil {
		return nil, wrapError(err, sinkSystem, "look up types", t.Name)
	}
	l = &sinkLayout{target: t, dest: quoteName(t.Name), deleted: -1, binary: true}
	for _, c := range tableColumns(t) {
		if c.generated != "" || c.source < 0 && !t.SoftDelete {
			continue
		}
		sink, ok := types[c.typ]
		if !ok {
			return nil, sinkFault(connector.TableFault, "write rows", t.Name, "`resync` the table", "type %s does not exist", c.typ)
		}
		w := writtenColumn{source: c.source, name: c.name, sql: quoteIdent(c.name), typ: schema.Type{Kind: schema.TimestampTZ}, sink: sink, decl: c.typ}
		if c.source >= 0 {
			w.typ = t.Table.Columns[c.source].Type
		} else {
			l.deleted, l.live = len(l.columns), " AND d."+w.sql+" IS NULL"
		}
		w.binary = hasBinary(w.typ, sink)
		l.binary = l.binary && w.binary
		l.columns = append(l.columns, w)
	}
	for _, name := range sinkKey(t) {
		k := slices.IndexFunc(l.columns, func(c writtenColumn) bool { return c.name == name })
		if k >= 0 { // a key of a history may be generated
			l.key = append(l.key, k)
		}
	}
	l.putRow, l.deleteRow = l.rowStatements()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layouts[t.Name] = l
	return l, nil
}

// boundColumn writes one column of a batch.
type boundColumn struct {
	arrow.Array
	value  appendValue
	binary bool
}

// bindColumns returns the writers of r's columns, each in its binary form if it is to be and has one, else as text.
func (l *sinkLayout) bindColumns(r *connector.Rows, inBinary bool) ([]boundColumn, error) {
	if int(r.Values.NumCols()) != len(l.target.Table.Columns) {
		return nil, &connector.Error{System: sinkSystem, Op: "write rows", Table: l.target.Name,
			Err: fmt.Errorf("%d columns of rows for %d of the table", r.Values.NumCols(), len(l.target.Table.Columns))}
	}
	bound := make([]boundColumn, len(l.columns))
	for i := range l.columns {
		c := &l.columns[i]
		a, err := l.valuesOf(r, i)
		b := boundColumn{Array: a, binary: inBinary && c.binary}
		if err != nil {
			return nil, &connector.Error{System: sinkSystem, Op: "write rows", Table: l.target.Name, Column: c.name, Err: err}
		}
		if b.binary {
			b.value, err = bindBinary(c.typ, c.sink, a)
		} else {
			b.value, err = bindText(c.typ, c.sink, a)
		}
		if err != nil {
			return nil, &connector.Error{System: sinkSystem, Op: "write rows", Table: l.target.Name, Column: c.name, Err: err}
		}
		bound[i] = b
	}
	return bound, nil
}

// valuesOf returns the values of column i of the layout.
func (l *sinkLayout) valuesOf(r *connector.Rows, i int) (arrow.Array, error) {
	if i == l.deleted {
		return r.DeletionTimes(memory.DefaultAllocator) // which the garbage collector frees
	}
	return r.Values.Column(l.columns[i].source), nil
}

// rowError says that value i of a column cannot be written.
func (l *sinkLayout) rowError(err error, column, i int) error {
	return &connector.Error{Kind: connector.BadRow, System: sinkSystem, Op: "write rows", Table: l.target.Name,
		Column: l.columns[column].name, Row: i, Err: err}
}

// columnList joins the quoted names of the columns.
func (l *sinkLayout) columnList() string {
	names := make([]string, len(l.columns))
	for i := range l.columns {
		names[i] = l.columns[i].sql
	}
	return strings.Join(names, ", ")
}

// Load adds rows to the copy that is under way; see connector.Tx. The COPY stays open until something else is done, so
// a refusal of the server may be returned by that.
func (x *tx) Load(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	l, err := x.layoutOf(ctx, t)
	if err != nil {
		return err
	}
	columns, err := l.bindColumns(r, l.binary)
	if err != nil {
		return err
	}
	list, head := l.columnList(), []string(nil)
	if t.History {
		list, head = `"_sluice_op", `+list, []string{"copy"}
	}
	w, err := x.openCopy(ctx, t.Name, "COPY "+quoteName(copyName(t))+" ("+list+")", l.binary)
	if err != nil {
		return err
	}
	for i := range r.Len() {
		w.beginRow(len(head) + len(columns))
		for _, text := range head {
			w.text(text)
		}
		for c := range columns {
			if err := w.value(&columns[c], i); err != nil {
				return l.rowError(err, c, i)
			}
		}
		if err := w.endRow(ctx); err != nil {
			return wrapError(err, sinkSystem, "load rows", t.Name)
		}
	}
	return nil
}

// copyIn is an open COPY FROM STDIN. The server's answers are read at its end: they are few, and waiting for the one
// that lets us begin would cost a round trip. After a failed COPY the server skips the data that still comes (protocol,
// 55.2.6 "COPY Operations").
type copyIn struct {
	x       *tx
	sql     string
	table   schema.Name
	skip    int // results of the transaction's beginning and of statements before the COPY
	binary  bool
	rowFrom int    // where the row begun is in buf
	first   bool   // no field of the row was written yet
	buf     []byte // a CopyData message in the making
}

// copyHeader is the beginning of COPY's binary format, and copyTrailer its end (PostgreSQL: COPY, "Binary Format").
const (
	copyHeader  = copySignature + "\x00\x00\x00\x00\x00\x00\x00\x00" // no flags, no extension
	copyTrailer = "\xff\xff"
)

// openCopy returns the open COPY of this statement, after ending another one. before are statements that go first.
func (x *tx) openCopy(ctx context.Context, table schema.Name, sql string, inBinary bool, before ...string) (*copyIn, error) {
	if x.copy != nil && x.copy.sql == sql && len(before) == 0 {
		return x.copy, nil
	}
	if err := x.endCopy(ctx); err != nil {
		return nil, err
	}
	format := " FROM STDIN"
	if inBinary {
		format += " (FORMAT binary)"
	}
	full, skip := x.afterOpening(strings.Join(append(before, sql+format), "; "))
	w := &copyIn{x: x, sql: sql, table: table, skip: skip, binary: inBinary, buf: append(x.session.buffer[:0], "d\x00\x00\x00\x00"...)}
	if inBinary {
		w.buf = append(w.buf, copyHeader...)
	}
	x.copy = w
	err := x.guard(ctx, func() error {
		x.pg.Frontend().SendQuery(&pgproto3.Query{String: full})
		return x.pg.Frontend().Flush()
	})
	return w, wrapError(err, sinkSystem, "load rows", table)
}

// guard runs a write to the connection that the end of ctx interrupts.
func (x *tx) guard(ctx context.Context, write func() error) error {
	if err := ctx.Err(); err != nil {
		x.broken = true
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = x.pg.Conn().SetWriteDeadline(time.Unix(1, 0)) }) // the past: give up at once
	err := write()
	if !stop() {
		x.broken = true
		return ctx.Err()
	}
	if err != nil {
		x.broken = true
	}
	return err
}

func (w *copyIn) beginRow(fields int) {
	w.rowFrom, w.first = len(w.buf), true
	if w.binary {
		w.buf = binary.BigEndian.AppendUint16(w.buf, uint16(fields))
	}
}

// value writes a column's value of row i.
func (w *copyIn) value(c *boundColumn, i int) (err error) {
	if c.IsNull(i) {
		w.null()
		return nil
	}
	start := w.beginField()
	if w.buf, err = c.value(w.buf, i); err != nil {
		w.buf = w.buf[:w.rowFrom]
		return err
	}
	w.endField(start)
	return nil
}

// text writes a string.
func (w *copyIn) text(s string) {
	start := w.beginField()
	w.buf = append(w.buf, s...)
	w.endField(start)
}

func (w *copyIn) null() {
	start := w.beginField()
	if w.binary {
		binary.BigEndian.PutUint32(w.buf[start-4:], ^uint32(0))
		return
	}
	w.buf = append(w.buf, '\\', 'N')
}

// beginField makes room for a length, or ends the field before, and returns where the value begins.
func (w *copyIn) beginField() int {
	switch {
	case w.binary:
		w.buf = append(w.buf, 0, 0, 0, 0)
	case !w.first:
		w.buf = append(w.buf, '\t')
	}
	w.first = false
	return len(w.buf)
}

func (w *copyIn) endField(start int) {
	if w.binary {
		binary.BigEndian.PutUint32(w.buf[start-4:], uint32(len(w.buf)-start))
		return
	}
	w.buf = escapeInPlace(w.buf, start, copyEscape)
}

func (w *copyIn) endRow(ctx context.Context) error {
	if !w.binary {
		w.buf = append(w.buf, '\n')
	}
	if len(w.buf) < copyMessage {
		return nil
	}
	return w.send(ctx)
}

func (w *copyIn) send(ctx context.Context) error {
	binary.BigEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-1))
	err := w.x.guard(ctx, func() error { return w.x.pg.Frontend().SendUnbufferedEncodedCopyData(w.buf) })
	w.buf = w.buf[:5]
	return err
}

// endCopy ends the open COPY, if there is one, and returns what the server says to it.
func (x *tx) endCopy(ctx context.Context) error {
	w := x.copy
	if w == nil {
		return nil
	}
	if x.broken {
		return &connector.Error{System: sinkSystem, Op: "load rows", Table: w.table, Err: errors.New("the COPY has failed before")}
	}
	if w.binary {
		w.buf = append(w.buf, copyTrailer...)
	}
	err := w.send(ctx)
	if err == nil {
		err = x.guard(ctx, func() error {
			x.pg.Frontend().Send(&pgproto3.CopyDone{})
			return x.pg.Frontend().Flush()
		})
	}
	if err == nil {
		err = w.readAnswers(ctx)
	}
	x.session.buffer = nil
	if cap(w.buf) <= 16*copyMessage { // what a large row needed is not kept
		x.session.buffer = w.buf
	}
	if !x.broken {
		x.copy = nil
	}
	return wrapError(err, sinkSystem, "load rows", w.table)
}

// readAnswers reads up to the server being ready again.
func (w *copyIn) readAnswers(ctx context.Context) error {
	var fault error
	for done := 0; ; {
		m, err := w.x.pg.ReceiveMessage(ctx)
		if err != nil {
			w.x.broken = true
			return err
		}
		switch m := m.(type) {
		case *pgproto3.CommandComplete:
			done++
		case *pgproto3.ErrorResponse:
			fault = pgconn.ErrorResponseToPgError(m)
			if done < w.skip {
				fault = fenced(fault)
			}
		case *pgproto3.ReadyForQuery:
			return fault
		}
	}
}
