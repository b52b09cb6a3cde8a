package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// rowDecoder makes Rows of pgoutput's row messages, protocol version 1 (documentation, "Logical Replication Message
// Formats"). It implements connector.Decoder.
type rowDecoder struct {
	rows     *rowBuilder
	isKey    []bool // by position in rows.sent
	old, new []cell // of the message at hand, by position in rows.sent

	ops    []connector.Op
	unsent [][]byte // by column
	mixed  bool     // not all of ops are Insert
}

// cell is a value of a TupleData. Kind is cellText, cellNull or cellUnsent.
type cell struct {
	kind byte
	text []byte
}

// The kinds of values in a TupleData. A binary value ('b') is never asked for.
const (
	cellText   = 't'
	cellNull   = 'n'
	cellUnsent = 'u' // an unchanged value stored out of line (TOAST)
)

// Decoder turns Frames written under t into Rows. Their Data is a sequence of pgoutput messages, each behind its length.
func (s *Source) Decoder(t *schema.Table) (connector.Decoder, error) {
	return newRowDecoder(t, s.env.Alloc), nil
}

func newRowDecoder(t *schema.Table, mem memory.Allocator) *rowDecoder {
	d := &rowDecoder{rows: newRowBuilder(t, nil, mem), unsent: make([][]byte, len(t.Columns))}
	n := len(d.rows.sent)
	d.isKey, d.old, d.new = make([]bool, n), make([]cell, n), make([]cell, n)
	for i, c := range d.rows.sent {
		for _, k := range t.Key {
			d.isKey[i] = d.isKey[i] || k == c.index
		}
	}
	return d
}

// Decode decodes all of f.
func (d *rowDecoder) Decode(f *connector.Frames) (*connector.Rows, error) {
	d.ops, d.mixed = make([]connector.Op, 0, countRows(f.Commits)), false
	clear(d.unsent)
	data := f.Data
	commits := make([]connector.Commit, len(f.Commits))
	for i, c := range f.Commits {
		before := len(d.ops)
		var err error
		for range c.Rows {
			var message []byte
			if message, data, err = cutMessage(data); err == nil {
				err = d.decodeMessage(message)
			}
			if err != nil {
				d.rows.clear()
				return nil, decodeError(d.rows.table, "decode changes", c.Position, err)
			}
		}
		commits[i] = c
		commits[i].Rows = len(d.ops) - before
	}
	if len(data) != 0 {
		d.rows.clear()
		return nil, decodeError(d.rows.table, "decode changes", "", errors.New("more row messages than the commits account for"))
	}
	r := &connector.Rows{Table: d.rows.table, Values: d.rows.take(len(d.ops)), Unsent: d.takeUnsent(), Commits: commits}
	if d.mixed {
		r.Ops = d.ops
	}
	d.ops = nil
	return r, nil
}

// Missing reads the Missing value of each column, which has the form of a value in the log.
func (d *rowDecoder) Missing() (*connector.Rows, error) {
	for i := range d.new {
		c := &d.rows.table.Columns[d.rows.sent[i].index]
		if d.new[i] = (cell{kind: cellNull}); c.Missing != nil {
			d.new[i] = cell{kind: cellText, text: []byte(*c.Missing)}
		}
	}
	if err := d.add(connector.Insert, d.new); err != nil {
		d.rows.clear()
		return nil, decodeError(d.rows.table, "read the missing values of columns", "", err)
	}
	d.ops = nil
	return &connector.Rows{Table: d.rows.table, Values: d.rows.take(1)}, nil
}

func countRows(commits []connector.Commit) int {
	const most = 1 << 16 // a first guess; damaged frames may claim any number
	n := 0
	for _, c := range commits {
		n += min(max(c.Rows, 0), most-n)
	}
	return n
}

// errShort says that a message ends too early.
var errShort = errors.New("a row message ends too early")

func cutMessage(data []byte) (message, rest []byte, err error) {
	if len(data) < 4 {
		return nil, nil, errShort
	}
	size := binary.BigEndian.Uint32(data)
	if data = data[4:]; uint64(size) > uint64(len(data)) || size == 0 {
		return nil, nil, errShort
	}
	return data[:size], data[size:], nil
}

func (d *rowDecoder) decodeMessage(m []byte) error {
	kind := m[0]
	if kind == 'T' {
		return d.addEmpty(connector.Truncate)
	}
	if len(m) < 6 { // kind, relation OID, kind of the first tuple
		return errShort
	}
	m = m[5:]
	switch kind {
	case 'I':
		return d.decodeInsert(m)
	case 'U':
		return d.decodeUpdate(m)
	case 'D':
		return d.decodeDelete(m)
	}
	return fmt.Errorf("a message of type %q is no row message", kind)
}

func (d *rowDecoder) decodeInsert(m []byte) error {
	if m[0] != 'N' {
		return fmt.Errorf("an insert carries a tuple of kind %q", m[0])
	}
	if err := d.readLast(m[1:], d.new); err != nil {
		return err
	}
	return d.add(connector.Insert, d.new)
}

func (d *rowDecoder) decodeUpdate(m []byte) error {
	kind := m[0]
	if kind == 'N' {
		if err := d.readLast(m[1:], d.new); err != nil {
			return err
		}
		return d.add(connector.Update, d.new)
	}
	m, err := d.readOld(m)
	if err != nil {
		return err
	}
	if len(m) == 0 || m[0] != 'N' {
		return errors.New("an update carries no new tuple")
	}
	if err := d.readLast(m[1:], d.new); err != nil {
		return err
	}
	keyChanged := len(d.rows.table.Key) == 0
	for i := range d.new {
		if d.new[i].kind == cellUnsent {
			// Unchanged, and the old tuple has it in full as far as it was sent. NULL is never stored out of line: there the
			// old tuple is one of a new partition that has another identity than the table, and sends NULL for what it lacks.
			if d.old[i].kind != cellText {
				d.old[i] = cell{kind: cellUnsent}
			}
			d.new[i] = d.old[i]
		}
		if d.isKey[i] && !equalCells(d.old[i], d.new[i]) {
			keyChanged = true
		}
	}
	if keyChanged {
		if err := d.add(connector.Before, d.old); err != nil {
			return err
		}
	}
	return d.add(connector.Update, d.new)
}

func (d *rowDecoder) decodeDelete(m []byte) error {
	m, err := d.readOld(m)
	if err != nil {
		return err
	}
	if len(m) != 0 {
		return errors.New("bytes behind the tuple of a delete")
	}
	return d.add(connector.Delete, d.old)
}

// readOld reads an old tuple into d.old. Of kind K it has NULL in all columns outside the replica identity: these count
// as not sent. A tuple without its key would hit the wrong row, or none: a partition that was made later may have another
// identity than the table.
func (d *rowDecoder) readOld(m []byte) (rest []byte, err error) {
	kind := m[0]
	if kind != 'K' && kind != 'O' {
		return nil, fmt.Errorf("an old tuple of kind %q", kind)
	}
	if rest, err = d.readTuple(m[1:], d.old); err != nil {
		return rest, err
	}
	if kind == 'K' && len(d.rows.table.Key) == 0 {
		return nil, errors.New("an old key for a table without a key; its replica identity was changed")
	}
	for i := range d.old {
		if !d.isKey[i] && kind == 'K' {
			d.old[i] = cell{kind: cellUnsent}
		} else if d.isKey[i] && d.old[i].kind != cellText {
			name := d.rows.table.Columns[d.rows.sent[i].index].Name
			return nil, columnError{name, errors.New("an old key lacks this column; the replica identity does not send it")}
		}
	}
	return rest, nil
}

// readLast reads a tuple that ends its message.
func (d *rowDecoder) readLast(m []byte, cells []cell) error {
	rest, err := d.readTuple(m, cells)
	if err == nil && len(rest) != 0 {
		err = errors.New("bytes behind the last tuple of a message")
	}
	return err
}

// readTuple reads a TupleData into cells, which point into m.
func (d *rowDecoder) readTuple(m []byte, cells []cell) (rest []byte, err error) {
	if len(m) < 2 {
		return nil, errShort
	}
	if n := int(binary.BigEndian.Uint16(m)); n != len(cells) {
		return nil, fmt.Errorf("a row has %d columns instead of %d", n, len(cells))
	}
	m = m[2:]
	for i := range cells {
		if len(m) == 0 {
			return nil, errShort
		}
		c := cell{kind: m[0]}
		m = m[1:]
		switch c.kind {
		case cellNull, cellUnsent:
		case cellText:
			if len(m) < 4 {
				return nil, errShort
			}
			size := binary.BigEndian.Uint32(m)
			if m = m[4:]; uint64(size) > uint64(len(m)) {
				return nil, errShort
			}
			c.text, m = m[:size], m[size:]
		default:
			return nil, fmt.Errorf("a value of kind %q", c.kind)
		}
		cells[i] = c
	}
	return m, nil
}

func equalCells(a, b cell) bool { return a.kind == b.kind && bytes.Equal(a.text, b.text) }

func (d *rowDecoder) add(op connector.Op, cells []cell) error {
	for i := range cells {
		column := &d.rows.sent[i]
		if column.decode == nil {
			column.builder.AppendNull()
			continue
		}
		switch cells[i].kind {
		case cellText:
			if err := column.decode(cells[i].text); err != nil {
				return columnError{d.rows.table.Columns[column.index].Name, err}
			}
		case cellUnsent:
			d.markUnsent(column.index)
			column.builder.AppendNull()
		default:
			column.builder.AppendNull()
		}
	}
	d.count(op)
	return nil
}

func (d *rowDecoder) addEmpty(op connector.Op) error {
	for _, c := range d.rows.sent {
		c.builder.AppendNull()
	}
	d.count(op)
	return nil
}

func (d *rowDecoder) count(op connector.Op) {
	d.ops = append(d.ops, op)
	d.mixed = d.mixed || op != connector.Insert
}

// markUnsent sets the bit of the row that is being added.
func (d *rowDecoder) markUnsent(column int) {
	row := len(d.ops)
	for len(d.unsent[column]) <= row/8 {
		d.unsent[column] = append(d.unsent[column], 0)
	}
	bitutil.SetBit(d.unsent[column], row)
}

// takeUnsent returns the bitmaps at their full length, nil if all values were sent.
func (d *rowDecoder) takeUnsent() [][]byte {
	var out [][]byte
	for i, m := range d.unsent {
		if m == nil {
			continue
		}
		if out == nil {
			out = make([][]byte, len(d.unsent))
		}
		out[i] = append(m, make([]byte, (len(d.ops)+7)/8-len(m))...)
		d.unsent[i] = nil
	}
	return out
}
