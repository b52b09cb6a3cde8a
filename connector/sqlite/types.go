package sqlite

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/schema"
)

// Why a float is refused: SQLite would store another value without a word.
var (
	errNaN          = errors.New("NaN cannot be stored, SQLite turns it into NULL")
	errNegativeZero = errors.New("-0 cannot be stored, SQLite turns it into 0")
)

// sinkType returns the type of the column that stores a logical type, and which values do not fit.
//
// What is exact at the source stays exact: numbers beyond 64 bits or with a scale are TEXT, for SQLite computes with
// floating point (1.50 would become 1.5). STRICT tables refuse a value of another type.
func sinkType(t schema.Type) (declared, misfit string) {
	switch t.Kind {
	case schema.Bool, schema.Int8, schema.Int16, schema.Int32, schema.Int64:
		return "INTEGER", ""
	case schema.Float32, schema.Float64:
		return "REAL", "NaN and -0 are refused"
	case schema.Bytes:
		return "BLOB", ""
	}
	return "TEXT", ""
}

type (
	// bindValue binds the value of row i, which is not null, to a parameter.
	bindValue func(s *sqlite.Stmt, param, i int) error
	// appendValue appends the text of the value of row i, which is not null.
	appendValue func(dst []byte, i int) ([]byte, error)
)

// bindColumn returns the writer of a column's values.
func bindColumn(t schema.Type, a arrow.Array) (bindValue, error) {
	switch a := a.(type) {
	case *array.Boolean:
		return func(s *sqlite.Stmt, p, i int) error { s.BindBool(p, a.Value(i)); return nil }, matches(t, a, schema.Bool)
	case *array.Int8:
		return func(s *sqlite.Stmt, p, i int) error { s.BindInt64(p, int64(a.Value(i))); return nil }, matches(t, a, schema.Int8)
	case *array.Int16:
		return func(s *sqlite.Stmt, p, i int) error { s.BindInt64(p, int64(a.Value(i))); return nil }, matches(t, a, schema.Int16)
	case *array.Float32:
		return func(s *sqlite.Stmt, p, i int) error { return bindFloat(s, p, float64(a.Value(i))) }, matches(t, a, schema.Float32)
	case *array.Float64:
		return func(s *sqlite.Stmt, p, i int) error { return bindFloat(s, p, a.Value(i)) }, matches(t, a, schema.Float64)
	case *array.Binary:
		return func(s *sqlite.Stmt, p, i int) error { s.BindBytes(p, a.Value(i)); return nil }, matches(t, a, schema.Bytes)
	case *array.String:
		return func(s *sqlite.Stmt, p, i int) error { s.BindText(p, a.Value(i)); return nil }, matches(t, a, stringKinds...)
	case *array.Int32:
		if t.Kind == schema.Int32 {
			return func(s *sqlite.Stmt, p, i int) error { s.BindInt64(p, int64(a.Value(i))); return nil }, nil
		}
	case *array.Int64:
		if t.Kind == schema.Int64 {
			return func(s *sqlite.Stmt, p, i int) error { s.BindInt64(p, a.Value(i)); return nil }, nil
		}
	}
	text, err := textColumn(t, a)
	if err != nil {
		return nil, err
	}
	var scratch []byte
	return func(s *sqlite.Stmt, p, i int) (err error) {
		if scratch, err = text(scratch[:0], i); err == nil {
			s.BindText(p, string(scratch))
		}
		return err
	}, nil
}

// stringKinds are the logical types whose storage is the text itself.
var stringKinds = []schema.Kind{schema.Numeric, schema.Text, schema.JSON, schema.Enum, schema.Document}

// matches returns an error if the type is none of these kinds, whose storage a is.
func matches(t schema.Type, a arrow.Array, kinds ...schema.Kind) error {
	for _, k := range kinds {
		if t.Kind == k {
			return nil
		}
	}
	return wrongStorage(t, a)
}

func wrongStorage(t schema.Type, a arrow.Array) error {
	return fmt.Errorf("storage %s is not that of kind %d", a.DataType(), t.Kind)
}

func bindFloat(s *sqlite.Stmt, param int, v float64) error {
	switch {
	case math.IsNaN(v):
		return errNaN
	case v == 0 && math.Signbit(v):
		return errNegativeZero
	}
	s.BindFloat(param, v)
	return nil
}

// textColumn returns the writer of the text that a column of type TEXT holds.
func textColumn(t schema.Type, a arrow.Array) (appendValue, error) {
	switch a := a.(type) {
	case *array.String:
		return func(dst []byte, i int) ([]byte, error) { return append(dst, a.Value(i)...), nil }, matches(t, a, stringKinds...)
	case *array.Uint64:
		return func(dst []byte, i int) ([]byte, error) { return strconv.AppendUint(dst, a.Value(i), 10), nil }, matches(t, a, schema.Uint64)
	case *array.Decimal128:
		return func(dst []byte, i int) ([]byte, error) { return appendDecimal(dst, a.Value(i).BigInt(), t.Scale), nil }, matches(t, a, schema.Decimal)
	case *array.Decimal256:
		return func(dst []byte, i int) ([]byte, error) { return appendDecimal(dst, a.Value(i).BigInt(), t.Scale), nil }, matches(t, a, schema.Decimal)
	case *array.Int32:
		return func(dst []byte, i int) ([]byte, error) { return schema.AppendDate(dst, a.Value(i)), nil }, matches(t, a, schema.Date)
	case *array.FixedSizeBinary:
		switch t.Kind {
		case schema.Interval:
			return func(dst []byte, i int) ([]byte, error) { return schema.AppendInterval(dst, a.Value(i)) }, nil
		case schema.UUID:
			return func(dst []byte, i int) ([]byte, error) { return schema.AppendUUID(dst, a.Value(i)) }, nil
		}
	case *array.Int64:
		switch t.Kind {
		case schema.Time:
			return func(dst []byte, i int) ([]byte, error) { return schema.AppendTime(dst, a.Value(i)), nil }, nil
		case schema.Timestamp:
			return func(dst []byte, i int) ([]byte, error) { return schema.AppendTimestamp(dst, a.Value(i)), nil }, nil
		case schema.TimestampTZ:
			return func(dst []byte, i int) ([]byte, error) { return schema.AppendTimestampTZ(dst, a.Value(i)), nil }, nil
		}
	case *array.Struct:
		if t.Kind == schema.Array {
			w, err := bindArray(t, a)
			if err != nil {
				return nil, err
			}
			return w.append, nil
		}
	}
	return nil, wrongStorage(t, a)
}

// appendDecimal writes a number with as many digits after the point as its scale.
func appendDecimal(dst []byte, unscaled *big.Int, scale int32) []byte {
	digits := unscaled.String()
	if strings.HasPrefix(digits, "-") {
		dst, digits = append(dst, '-'), digits[1:]
	}
	if scale <= 0 {
		dst = append(dst, digits...)
		if digits != "0" {
			dst = append(dst, strings.Repeat("0", int(-scale))...)
		}
		return dst
	}
	if missing := int(scale) + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - int(scale)
	return append(append(append(dst, digits[:point]...), '.'), digits[point:]...)
}

// jsonColumn returns the writer of a column's values as JSON: numbers and booleans as such, everything else as a string of
// the text that a TEXT column would hold. bytea is a string of PostgreSQL's hex form, and a float that JSON has no number
// for is a string of its name.
func jsonColumn(t schema.Type, a arrow.Array) (appendValue, error) {
	switch a := a.(type) {
	case *array.Boolean:
		return func(dst []byte, i int) ([]byte, error) { return strconv.AppendBool(dst, a.Value(i)), nil }, matches(t, a, schema.Bool)
	case *array.Int8:
		return func(dst []byte, i int) ([]byte, error) { return strconv.AppendInt(dst, int64(a.Value(i)), 10), nil }, matches(t, a, schema.Int8)
	case *array.Int16:
		return func(dst []byte, i int) ([]byte, error) { return strconv.AppendInt(dst, int64(a.Value(i)), 10), nil }, matches(t, a, schema.Int16)
	case *array.Float32:
		return func(dst []byte, i int) ([]byte, error) { return appendJSONFloat(dst, float64(a.Value(i)), 32), nil }, matches(t, a, schema.Float32)
	case *array.Float64:
		return func(dst []byte, i int) ([]byte, error) { return appendJSONFloat(dst, a.Value(i), 64), nil }, matches(t, a, schema.Float64)
	case *array.Binary:
		return func(dst []byte, i int) ([]byte, error) {
			return append(hex.AppendEncode(append(dst, `"\\x`...), a.Value(i)), '"'), nil
		}, matches(t, a, schema.Bytes)
	case *array.Int32:
		if t.Kind == schema.Int32 {
			return func(dst []byte, i int) ([]byte, error) { return strconv.AppendInt(dst, int64(a.Value(i)), 10), nil }, nil
		}
	case *array.Int64:
		if t.Kind == schema.Int64 {
			return func(dst []byte, i int) ([]byte, error) { return strconv.AppendInt(dst, a.Value(i), 10), nil }, nil
		}
	}
	text, err := textColumn(t, a)
	if err != nil {
		return nil, err
	}
	var scratch []byte
	return func(dst []byte, i int) (_ []byte, err error) {
		if scratch, err = text(scratch[:0], i); err != nil {
			return dst, err
		}
		return appendJSONString(dst, scratch), nil
	}, nil
}

func appendJSONFloat(dst []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v):
		return append(dst, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(dst, `"-Infinity"`...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, bits)
}

// appendJSONString quotes text, escaping what RFC 8259 (section 7) demands and nothing else.
func appendJSONString(dst, text []byte) []byte {
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < ' ':
			dst = hex.AppendEncode(append(dst, `\u00`...), []byte{c})
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
