package postgres

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/schema"
)

// columnDecoder appends one value, as it came over the wire, to the builder that it was made for. It keeps nothing of
// value. After an error the builder's contents are to be thrown away.
type columnDecoder func(value []byte) error

// errForm is the whole text of an error about a value: the value itself is never shown.
var errForm = errors.New("the value is not of the form that its type has")

// newColumnDecoder chooses, once for a column, how its values are read. Both ways of reading a type give equal results:
// binary and text differ in the form on the wire alone.
func newColumnDecoder(t schema.Type, wire wireForm, b array.Builder) columnDecoder {
	if t.Kind == schema.Array {
		return newArrayDecoder(t, wire, b.(*array.StructBuilder))
	}
	if wire == wireText {
		return newTextDecoder(t, b)
	}
	return newBinaryDecoder(t, wire, b)
}

// newTextDecoder reads what the type's output function writes under our session settings.
func newTextDecoder(t schema.Type, b array.Builder) columnDecoder {
	switch t.Kind {
	case schema.Bool:
		return decodeBoolText(b.(*array.BooleanBuilder))
	case schema.Int16:
		return decodeIntText(16, b.(*array.Int16Builder).Append)
	case schema.Int32:
		return decodeIntText(32, b.(*array.Int32Builder).Append)
	case schema.Int64:
		return decodeIntText(64, b.(*array.Int64Builder).Append)
	case schema.Float32:
		b := b.(*array.Float32Builder)
		return decodeFloatText(32, func(f float64) { b.Append(float32(f)) })
	case schema.Float64:
		return decodeFloatText(64, b.(*array.Float64Builder).Append)
	case schema.Numeric:
		return decodeNumericText(b.(*array.StringBuilder).BinaryBuilder)
	case schema.Bytes:
		return decodeHex(b.(*array.BinaryBuilder))
	case schema.Date:
		b := b.(*array.Int32Builder)
		return decodeWith(parseDate, b.Append)
	case schema.Time:
		return decodeWith(parseTime, b.(*array.Int64Builder).Append)
	case schema.Timestamp, schema.TimestampTZ:
		return decodeWith(parseTimestamp, b.(*array.Int64Builder).Append)
	case schema.Interval:
		b := b.(*array.FixedSizeBinaryBuilder)
		return decodeWith(parseInterval, func(v [16]byte) { b.Append(v[:]) })
	case schema.UUID:
		b := b.(*array.FixedSizeBinaryBuilder)
		return decodeWith(parseUUID, func(v [16]byte) { b.Append(v[:]) })
	case schema.Text, schema.JSON, schema.Enum:
		return decodeAsIs(b.(*array.StringBuilder).BinaryBuilder)
	default:
		panic(fmt.Sprintf("postgres: the type table has no kind %d", t.Kind))
	}
}

// newBinaryDecoder reads what the type's send function writes (src/backend/utils/adt, the *send functions).
func newBinaryDecoder(t schema.Type, wire wireForm, b array.Builder) columnDecoder {
	switch t.Kind {
	case schema.Bool:
		b := b.(*array.BooleanBuilder)
		return decodeFixed(1, func(v []byte) { b.Append(v[0] != 0) })
	case schema.Int16:
		b := b.(*array.Int16Builder)
		return decodeFixed(2, func(v []byte) { b.Append(int16(binary.BigEndian.Uint16(v))) })
	case schema.Int32, schema.Date:
		b := b.(*array.Int32Builder)
		return decodeFixed(4, func(v []byte) { b.Append(int32(binary.BigEndian.Uint32(v))) })
	case schema.Int64:
		return decodeInt64OrOID(b.(*array.Int64Builder))
	case schema.Time, schema.Timestamp, schema.TimestampTZ:
		b := b.(*array.Int64Builder)
		return decodeFixed(8, func(v []byte) { b.Append(int64(binary.BigEndian.Uint64(v))) })
	case schema.Float32:
		b := b.(*array.Float32Builder)
		return decodeFixed(4, func(v []byte) {
			f := math.Float32frombits(binary.BigEndian.Uint32(v))
			if f != f {
				f = float32(math.NaN()) // the text form has one NaN only
			}
			b.Append(f)
		})
	case schema.Float64:
		b := b.(*array.Float64Builder)
		return decodeFixed(8, func(v []byte) {
			f := math.Float64frombits(binary.BigEndian.Uint64(v))
			if f != f {
				f = math.NaN()
			}
			b.Append(f)
		})
	case schema.Numeric:
		return decodeNumeric(b.(*array.StringBuilder).BinaryBuilder)
	case schema.Bytes:
		return decodeAsIs(b.(*array.BinaryBuilder))
	case schema.Interval, schema.UUID:
		b := b.(*array.FixedSizeBinaryBuilder)
		return decodeFixed(16, func(v []byte) { b.Append(v) })
	case schema.JSON:
		if wire == wireJSONB {
			return decodeJSONB(b.(*array.StringBuilder).BinaryBuilder)
		}
		return decodeAsIs(b.(*array.StringBuilder).BinaryBuilder)
	case schema.Text, schema.Enum:
		return decodeAsIs(b.(*array.StringBuilder).BinaryBuilder)
	default:
		panic(fmt.Sprintf("postgres: the type table has no kind %d", t.Kind))
	}
}

func decodeAsIs(b *array.BinaryBuilder) columnDecoder {
	return func(v []byte) error { b.Append(v); return nil }
}

func decodeFixed(size int, put func([]byte)) columnDecoder {
	return func(v []byte) error {
		if len(v) != size {
			return errForm
		}
		put(v)
		return nil
	}
}

func decodeWith[T any](parse func([]byte) (T, bool), put func(T)) columnDecoder {
	return func(v []byte) error {
		x, ok := parse(v)
		if !ok {
			return errForm
		}
		put(x)
		return nil
	}
}

// decodeInt64OrOID reads int8send and oidsend; an oid has 4 bytes and no sign.
func decodeInt64OrOID(b *array.Int64Builder) columnDecoder {
	return func(v []byte) error {
		switch len(v) {
		case 8:
			b.Append(int64(binary.BigEndian.Uint64(v)))
		case 4:
			b.Append(int64(binary.BigEndian.Uint32(v)))
		default:
			return errForm
		}
		return nil
	}
}

// decodeJSONB reads jsonb_send: version 1 and the text.
func decodeJSONB(b *array.BinaryBuilder) columnDecoder {
	return func(v []byte) error {
		if len(v) == 0 || v[0] != 1 {
			return errForm
		}
		b.Append(v[1:])
		return nil
	}
}

func decodeBoolText(b *array.BooleanBuilder) columnDecoder {
	return func(v []byte) error {
		if len(v) != 1 || v[0] != 't' && v[0] != 'f' {
			return errForm
		}
		b.Append(v[0] == 't')
		return nil
	}
}

func decodeIntText[T int16 | int32 | int64](bits int, put func(T)) columnDecoder {
	lowest, highest := int64(-1)<<(bits-1), int64(1)<<(bits-1)-1
	return func(v []byte) error {
		n, ok := parseInt(v)
		if !ok || n < lowest || n > highest {
			return errForm
		}
		put(T(n))
		return nil
	}
}

// parseInt reads an optional minus sign and digits, and nothing else.
func parseInt(v []byte) (int64, bool) {
	negative := len(v) > 0 && v[0] == '-'
	if negative {
		v = v[1:]
	}
	if len(v) == 0 || len(v) > 19 {
		return 0, false
	}
	var n uint64 // 19 digits fit
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	if negative {
		return -int64(n), n <= 1<<63
	}
	return int64(n), n < 1<<63
}

func decodeFloatText(bits int, put func(float64)) columnDecoder {
	return func(v []byte) error {
		f, err := strconv.ParseFloat(string(v), bits)
		if err != nil {
			return errForm
		}
		if f != f {
			f = math.NaN()
		}
		put(f)
		return nil
	}
}

// decodeHex reads bytea_output=hex.
func decodeHex(b *array.BinaryBuilder) columnDecoder {
	var scratch []byte
	return func(v []byte) error {
		if len(v) < 2 || v[0] != '\\' || v[1] != 'x' {
			return errForm
		}
		var err error
		if scratch, err = hex.AppendDecode(scratch[:0], v[2:]); err != nil {
			return errForm
		}
		b.Append(scratch)
		return nil
	}
}

func parseUUID(v []byte) (id [16]byte, ok bool) {
	if len(v) != 36 || v[8] != '-' || v[13] != '-' || v[18] != '-' || v[23] != '-' {
		return id, false
	}
	at := 0
	for _, part := range [...][]byte{v[:8], v[9:13], v[14:18], v[19:23], v[24:]} {
		n, err := hex.Decode(id[at:], part)
		if err != nil {
			return id, false
		}
		at += n
	}
	return id, true
}

// rowBuilder collects rows of one version of a table.
type rowBuilder struct {
	table    *schema.Table
	arrow    *arrow.Schema
	builders []array.Builder
	sent     []sentColumn
	missing  []array.Builder // of columns that do not come over the wire
}

// sentColumn is a column whose values come over the wire; those that the server generates do not.
type sentColumn struct {
	index   int // in Table.Columns
	builder array.Builder
	decode  columnDecoder // nil: nobody wants the value
}

// newRowBuilder takes the wire form of each column; nil: all are text.
func newRowBuilder(t *schema.Table, wire []wireForm, mem memory.Allocator) *rowBuilder {
	if mem == nil {
		mem = memory.DefaultAllocator
	}
	rb := &rowBuilder{table: t, arrow: t.Arrow(), builders: make([]array.Builder, len(t.Columns))}
	for i, c := range t.Columns {
		b := array.NewBuilder(mem, c.Type.Arrow())
		rb.builders[i] = b
		if c.Generated != "" || c.Unread && wire != nil { // a copy selects only what is read
			rb.missing = append(rb.missing, b)
			continue
		}
		form := wireText
		if wire != nil {
			form = wire[i]
		}
		column := sentColumn{index: i, builder: b}
		if !c.Unread {
			column.decode = newColumnDecoder(c.Type, form, b)
		}
		rb.sent = append(rb.sent, column)
	}
	return rb
}

// reserve makes room for so many rows.
func (rb *rowBuilder) reserve(rows int) {
	for _, b := range rb.builders {
		b.Reserve(rows)
	}
}

// take returns the rows collected, whose number the caller has counted, and is empty again.
func (rb *rowBuilder) take(rows int) arrow.RecordBatch {
	arrays := make([]arrow.Array, len(rb.builders))
	for _, b := range rb.missing {
		b.AppendNulls(rows)
	}
	for i, b := range rb.builders {
		arrays[i] = b.NewArray()
	}
	batch := array.NewRecordBatch(rb.arrow, arrays, int64(rows))
	for _, a := range arrays {
		a.Release()
	}
	return batch
}

// clear throws away what was collected, also a row that was begun.
func (rb *rowBuilder) clear() {
	for _, b := range rb.builders {
		b.NewArray().Release()
	}
}
