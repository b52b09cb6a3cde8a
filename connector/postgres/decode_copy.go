package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// copySignature begins a COPY in binary format (documentation of COPY, section "Binary Format").
const copySignature = "PGCOPY\n\xff\r\n\x00"

// errCopyForm says that the rows of a COPY are not laid out as documented.
var errCopyForm = errors.New("the copied rows are not in COPY's binary format")

// copyDecoder makes Rows of a COPY in binary format. It is pure.
type copyDecoder struct {
	rows    *rowBuilder
	count   int // rows collected
	bytes   int // of the messages they came in
	started bool
	ended   bool
}

// newCopyDecoder takes how each column of t arrives.
func newCopyDecoder(t *schema.Table, wire []wireForm, mem memory.Allocator) *copyDecoder {
	return &copyDecoder{rows: newRowBuilder(t, wire, mem)}
}

// decode takes one CopyData message. It holds whole rows: the server sends one message for each, the header goes with the
// first (copyto.c, CopySendEndOfRow).
func (d *copyDecoder) decode(message []byte) error {
	d.bytes += len(message)
	if !d.started {
		var err error
		if message, err = cutCopyHeader(message); err != nil {
			return err
		}
		d.started = true
	}
	for len(message) > 0 {
		if d.ended || len(message) < 2 {
			return errCopyForm
		}
		fields := int(int16(binary.BigEndian.Uint16(message)))
		message = message[2:]
		if fields == -1 {
			d.ended = true
			continue
		}
		if fields != len(d.rows.sent) {
			return fmt.Errorf("a copied row has %d columns instead of %d", fields, len(d.rows.sent))
		}
		var err error
		if message, err = d.decodeRow(message); err != nil {
			return err
		}
	}
	return nil
}

func cutCopyHeader(message []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(message, []byte(copySignature))
	if !ok || len(rest) < 8 {
		return nil, errCopyForm
	}
	extension := binary.BigEndian.Uint32(rest[4:])
	if rest = rest[8:]; uint64(extension) > uint64(len(rest)) {
		return nil, errCopyForm
	}
	return rest[extension:], nil
}

func (d *copyDecoder) decodeRow(v []byte) ([]byte, error) {
	for i := range d.rows.sent {
		if len(v) < 4 {
			return nil, errCopyForm
		}
		size := int32(binary.BigEndian.Uint32(v))
		v = v[4:]
		column := &d.rows.sent[i]
		if size == -1 {
			column.builder.AppendNull()
			continue
		}
		if size < 0 || int(size) > len(v) {
			return nil, errCopyForm
		}
		if err := column.decode(v[:size]); err != nil {
			return nil, columnError{d.rows.table.Columns[column.index].Name, err}
		}
		v = v[size:]
	}
	d.count++
	return v, nil
}

// take returns the rows decoded since the last call.
func (d *copyDecoder) take() *connector.Rows {
	r := &connector.Rows{Table: d.rows.table, Values: d.rows.take(d.count)}
	d.count, d.bytes = 0, 0
	return r
}

// columnError is an error about a value of a column.
type columnError struct {
	column string
	error
}

func (e columnError) Unwrap() error { return e.error }

// decodeError makes the *Error of what a decoder found.
func decodeError(t *schema.Table, op string, at connector.Position, err error) error {
	e := &connector.Error{
		Kind: connector.TableFault, System: sourceSystem, Op: op, Table: t.Name, Position: at, Err: err,
		Hint: "if the table was not altered just now, this is a bug to report",
	}
	if c, ok := errors.AsType[columnError](err); ok {
		e.Column, e.Err = c.column, c.error
	}
	return e
}
