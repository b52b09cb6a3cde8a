package connectortest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// A row message of the memory log, behind its length as the contract asks: a byte for the op, for an update a byte that
// says whether an old image comes first, then the images. An image is a byte per value that says what it is, followed
// by length and text where there is one. Numbers are uint32, big endian.
const (
	valueNull   byte = 'n'
	valueUnsent byte = 'u'
	valueSent   byte = 't'
)

var errShort = errors.New("the message ends too early")

// appendMessage appends one row message.
func appendMessage(data []byte, c change) []byte {
	start := len(data)
	data = append(data, 0, 0, 0, 0, byte(c.op))
	if c.op == connector.Update {
		if c.before == nil {
			data = append(data, 0)
		} else {
			data = appendImage(append(data, 1), c.before)
		}
	}
	if c.row != nil {
		data = appendImage(data, c.row)
	}
	binary.BigEndian.PutUint32(data[start:], uint32(len(data)-start-4))
	return data
}

func appendImage(data []byte, row Row) []byte {
	for _, v := range row {
		switch v {
		case Null:
			data = append(data, valueNull)
		case Unsent:
			data = append(data, valueUnsent)
		default:
			data = binary.BigEndian.AppendUint32(append(data, valueSent), uint32(len(v)))
			data = append(data, v...)
		}
	}
	return data
}

// memoryDecoder implements connector.Decoder for one version of a table.
type memoryDecoder struct {
	table *schema.Table
	alloc memory.Allocator
}

// Decode turns row messages into rows; an update with an old image becomes two.
func (d *memoryDecoder) Decode(f *connector.Frames) (*connector.Rows, error) {
	b := NewRowsBuilder(d.alloc, d.table)
	commits, err := d.decode(b, f)
	if err != nil {
		b.Release()
		return nil, sourceError(connector.TableFault, "decode", d.table.Name, err)
	}
	r := b.Rows()
	r.Commits = commits
	return r, nil
}

// Missing returns the row of missing values.
func (d *memoryDecoder) Missing() (*connector.Rows, error) {
	b := NewRowsBuilder(d.alloc, d.table)
	if err := b.Append(connector.Insert, missingOf(d.table)); err != nil {
		b.Release()
		return nil, sourceError(connector.TableFault, "read missing values", d.table.Name, err)
	}
	return b.Rows(), nil
}

func missingOf(t *schema.Table) Row {
	row := make(Row, len(t.Columns))
	for i, c := range t.Columns {
		if row[i] = Null; c.Missing != nil {
			row[i] = *c.Missing
		}
	}
	return row
}

func (d *memoryDecoder) decode(b *RowsBuilder, f *connector.Frames) ([]connector.Commit, error) {
	data := f.Data
	commits := make([]connector.Commit, len(f.Commits))
	for i, c := range f.Commits {
		before := b.Len()
		for range c.Rows {
			message, rest, err := cutText(data)
			if err != nil {
				return nil, err
			}
			if err := d.message(b, message); err != nil {
				return nil, err
			}
			data = rest
		}
		commits[i] = c
		commits[i].Rows = b.Len() - before
	}
	if len(data) > 0 {
		return nil, fmt.Errorf("%d bytes behind the last message", len(data))
	}
	return commits, nil
}

func (d *memoryDecoder) message(b *RowsBuilder, m []byte) error {
	if len(m) == 0 {
		return errShort
	}
	op, m := connector.Op(m[0]), m[1:]
	switch op {
	case connector.Truncate:
		if len(m) > 0 {
			return errors.New("bytes behind a truncate")
		}
		return b.Append(op, nil)
	case connector.Insert, connector.Delete:
	case connector.Update:
		if len(m) == 0 {
			return errShort
		}
		hasOld := m[0] == 1
		m = m[1:]
		if hasOld {
			rest, err := d.image(b, connector.Before, m)
			if err != nil {
				return err
			}
			m = rest
		}
	default:
		return fmt.Errorf("op %d does not exist", op)
	}
	rest, err := d.image(b, op, m)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes behind a row", len(rest))
	}
	return err
}

// image appends one image as a row and returns what follows it.
func (d *memoryDecoder) image(b *RowsBuilder, op connector.Op, m []byte) ([]byte, error) {
	row := make(Row, len(d.table.Columns))
	for c := range row {
		if len(m) == 0 {
			return nil, errShort
		}
		tag := m[0]
		m = m[1:]
		switch tag {
		case valueNull:
			row[c] = Null
		case valueUnsent:
			row[c] = Unsent
		case valueSent:
			text, rest, err := cutText(m)
			if err != nil {
				return nil, err
			}
			row[c], m = string(text), rest
		default:
			return nil, fmt.Errorf("a value of kind %d", tag)
		}
	}
	return m, b.Append(op, row)
}

// cutText takes a length and as many bytes off the front of data.
func cutText(data []byte) (text, rest []byte, err error) {
	if len(data) < 4 {
		return nil, nil, errShort
	}
	n := binary.BigEndian.Uint32(data)
	if uint64(n) > uint64(len(data)-4) {
		return nil, nil, errShort
	}
	return data[4 : 4+n], data[4+n:], nil
}
