package apply

import (
	"encoding/binary"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// keyEncoder writes the key of a row as bytes that are equal exactly for equal stored values. Values that a server holds
// equal and stores differently (1.0 and 1.00) give two keys: every departure from a key is a delete of it, so the two
// never stand for one row at the end of a batch but where the server itself replaced one by the other.
type keyEncoder struct {
	columns []func(buf []byte, i int) []byte
	buf     []byte
}

func newKeyEncoder(values arrow.RecordBatch, key []int) keyEncoder {
	var e keyEncoder
	for _, c := range key {
		e.columns = append(e.columns, keyColumn(values.Column(c)))
	}
	return e
}

// encode returns the key of row i. The bytes are good until the next call.
func (e *keyEncoder) encode(i int) []byte {
	e.buf = e.buf[:0]
	for _, column := range e.columns {
		e.buf = column(e.buf, i)
	}
	return e.buf
}

// keyColumn is chosen once a column. Each value is of fixed width or behind its length, so that two keys cannot run
// together; a NULL, which no key holds, is told from every value.
func keyColumn(values arrow.Array) func(buf []byte, i int) []byte {
	write := keyValue(values)
	return func(buf []byte, i int) []byte {
		if values.IsNull(i) {
			return append(buf, 0)
		}
		return write(append(buf, 1), i)
	}
}

func keyValue(values arrow.Array) func(buf []byte, i int) []byte {
	text := func(buf []byte, s string) []byte {
		return append(binary.AppendUvarint(buf, uint64(len(s))), s...)
	}
	switch a := values.(type) {
	case *array.Int64:
		return func(buf []byte, i int) []byte { return binary.BigEndian.AppendUint64(buf, uint64(a.Value(i))) }
	case *array.Int32:
		return func(buf []byte, i int) []byte { return binary.BigEndian.AppendUint32(buf, uint32(a.Value(i))) }
	case *array.Int16:
		return func(buf []byte, i int) []byte { return binary.BigEndian.AppendUint16(buf, uint16(a.Value(i))) }
	case *array.Uint64:
		return func(buf []byte, i int) []byte { return binary.BigEndian.AppendUint64(buf, a.Value(i)) }
	case *array.Float64:
		return func(buf []byte, i int) []byte {
			return binary.BigEndian.AppendUint64(buf, math.Float64bits(a.Value(i)))
		}
	case *array.Float32:
		return func(buf []byte, i int) []byte {
			return binary.BigEndian.AppendUint32(buf, math.Float32bits(a.Value(i)))
		}
	case *array.String:
		return func(buf []byte, i int) []byte { return text(buf, a.Value(i)) }
	case *array.Binary:
		return func(buf []byte, i int) []byte { return text(buf, a.ValueString(i)) }
	case *array.FixedSizeBinary:
		return func(buf []byte, i int) []byte { return append(buf, a.Value(i)...) }
	default: // booleans, decimals, arrays
		return func(buf []byte, i int) []byte { return text(buf, values.ValueStr(i)) }
	}
}
