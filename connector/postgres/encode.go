package postgres

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/schema"
)

// appendValue appends the value of row i, which is not null, to dst, without a length or quotes around it.
type appendValue func(dst []byte, i int) ([]byte, error)

// binaryForms are the ways to write a value in the form that a type's receive function reads (PostgreSQL:
// src/backend/utils/adt/, the ..._recv functions). A pair that is missing is written as text.
var binaryForms = map[string]map[schema.Kind]func(arrow.Array) (appendValue, error){
	"boolrecv": {schema.Bool: bind(func(a *array.Boolean) appendValue {
		return func(dst []byte, i int) ([]byte, error) {
			if a.Value(i) {
				return append(dst, 1), nil
			}
			return append(dst, 0), nil
		}
	})},
	"int2recv": {
		schema.Int8: bind(func(a *array.Int8) appendValue {
			return func(dst []byte, i int) ([]byte, error) { return appendInt16(dst, int16(a.Value(i))), nil }
		}),
		schema.Int16: bind(func(a *array.Int16) appendValue {
			return func(dst []byte, i int) ([]byte, error) { return appendInt16(dst, a.Value(i)), nil }
		}),
	},
	"int4recv": {schema.Int32: bind(appendInt32s)},
	"int8recv": {schema.Int64: bind(appendInt64s)},
	"oidrecv": {
		schema.Int64: bind(func(a *array.Int64) appendValue {
			return func(dst []byte, i int) ([]byte, error) { return appendOID(dst, uint64(a.Value(i))) }
		}),
		schema.Uint64: bind(func(a *array.Uint64) appendValue {
			return func(dst []byte, i int) ([]byte, error) { return appendOID(dst, a.Value(i)) }
		}),
	},
	"float4recv": {schema.Float32: bind(func(a *array.Float32) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return appendUint32(dst, math.Float32bits(a.Value(i))), nil }
	})},
	"float8recv": {schema.Float64: bind(func(a *array.Float64) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return appendUint64(dst, math.Float64bits(a.Value(i))), nil }
	})},
	"numeric_recv": {
		schema.Numeric: bind(func(a *array.String) appendValue {
			return func(dst []byte, i int) ([]byte, error) { return encodeNumeric(dst, a.Value(i)) }
		}),
		schema.Uint64: bind(func(a *array.Uint64) appendValue {
			return func(dst []byte, i int) ([]byte, error) { return encodeNumeric(dst, strconv.FormatUint(a.Value(i), 10)) }
		}),
		schema.Decimal: bindDecimal(encodeNumeric),
	},
	"textrecv":         {schema.Text: bind(appendStrings), schema.Enum: bind(appendStrings)},
	"varcharrecv":      {schema.Text: bind(appendStrings)},
	"bpcharrecv":       {schema.Text: bind(appendStrings)},
	"namerecv":         {schema.Text: bind(appendStrings)},
	"citextrecv":       {schema.Text: bind(appendStrings)},
	"enum_recv":        {schema.Enum: bind(appendStrings)},
	"json_recv":        {schema.JSON: bind(appendStrings), schema.Document: bind(appendStrings)},
	"jsonb_recv":       {schema.JSON: bind(appendJSONB), schema.Document: bind(appendJSONB)},
	"bytearecv":        {schema.Bytes: bind(appendBytes)},
	"date_recv":        {schema.Date: bind(appendInt32s)},
	"time_recv":        {schema.Time: bind(appendInt64s)},
	"timestamp_recv":   {schema.Timestamp: bind(appendInt64s)},
	"timestamptz_recv": {schema.TimestampTZ: bind(appendInt64s)},
	"interval_recv":    {schema.Interval: bind(appendFixed)},
	finiteIntervals:    {schema.Interval: bind(appendFiniteIntervals)},
	"uuid_recv":        {schema.UUID: bind(appendFixed)},
}

// hasBinary reports whether values of t can be written in the binary form of the type s of the server.
func hasBinary(t schema.Type, s sinkType) bool {
	if t.Kind == schema.Array {
		return s.elem != nil && s.receive == "array_recv" && hasBinary(*t.Elem, *s.elem)
	}
	return binaryForms[s.receive][t.Kind] != nil
}

// bindBinary returns the writer of a's values in the binary form of s.
func bindBinary(t schema.Type, s sinkType, a arrow.Array) (appendValue, error) {
	if t.Kind != schema.Array {
		return binaryForms[s.receive][t.Kind](a)
	}
	l, err := bindArray(a)
	if err != nil {
		return nil, err
	}
	if l.elem, err = bindBinary(*t.Elem, *s.elem, l.values); err != nil {
		return nil, err
	}
	oid := s.elem.oid
	return func(dst []byte, i int) ([]byte, error) { return l.appendBinary(dst, i, oid) }, nil
}

// bind makes the writer of a storage type check the array that it is given.
func bind[A arrow.Array](f func(A) appendValue) func(arrow.Array) (appendValue, error) {
	return func(a arrow.Array) (appendValue, error) {
		typed, ok := a.(A)
		if !ok {
			return nil, fmt.Errorf("storage %s is not that of the column's type", a.DataType())
		}
		return f(typed), nil
	}
}

func appendInt16(dst []byte, v int16) []byte   { return binary.BigEndian.AppendUint16(dst, uint16(v)) }
func appendUint32(dst []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(dst, v) }
func appendUint64(dst []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(dst, v) }

func appendInt32s(a *array.Int32) appendValue {
	values := a.Int32Values()
	return func(dst []byte, i int) ([]byte, error) { return appendUint32(dst, uint32(values[i])), nil }
}

func appendInt64s(a *array.Int64) appendValue {
	values := a.Int64Values()
	return func(dst []byte, i int) ([]byte, error) { return appendUint64(dst, uint64(values[i])), nil }
}

func appendOID(dst []byte, v uint64) ([]byte, error) {
	if v > math.MaxUint32 {
		return dst, errors.New("an oid is beyond 32 bits")
	}
	return appendUint32(dst, uint32(v)), nil
}

func appendStrings(a *array.String) appendValue {
	return func(dst []byte, i int) ([]byte, error) { return append(dst, a.Value(i)...), nil }
}

func appendBytes(a *array.Binary) appendValue {
	return func(dst []byte, i int) ([]byte, error) { return append(dst, a.Value(i)...), nil }
}

func appendFixed(a *array.FixedSizeBinary) appendValue {
	return func(dst []byte, i int) ([]byte, error) { return append(dst, a.Value(i)...), nil }
}

func appendFiniteIntervals(a *array.FixedSizeBinary) appendValue {
	return func(dst []byte, i int) ([]byte, error) {
		v := a.Value(i)
		if infiniteInterval(v) != "" {
			return dst, errors.New("an interval is infinite, which servers before 17 do not know")
		}
		return append(dst, v...), nil
	}
}

// appendJSONB writes the version of jsonb's binary form, 1, and the text.
func appendJSONB(a *array.String) appendValue {
	return func(dst []byte, i int) ([]byte, error) { return append(append(dst, 1), a.Value(i)...), nil }
}

// bindDecimal writes Decimal128 and Decimal256 by way of their digits.
func bindDecimal(digits func(dst []byte, s string) ([]byte, error)) func(arrow.Array) (appendValue, error) {
	return func(a arrow.Array) (appendValue, error) {
		switch a := a.(type) {
		case *array.Decimal128:
			scale := a.DataType().(arrow.DecimalType).GetScale()
			return func(dst []byte, i int) ([]byte, error) { return digits(dst, a.Value(i).ToString(scale)) }, nil
		case *array.Decimal256:
			scale := a.DataType().(arrow.DecimalType).GetScale()
			return func(dst []byte, i int) ([]byte, error) { return digits(dst, a.Value(i).ToString(scale)) }, nil
		}
		return nil, fmt.Errorf("storage %s is not that of a decimal", a.DataType())
	}
}

// numericIntegerMax is the number of digits before the point that the server's numeric holds (PostgreSQL: numeric.c).
const numericIntegerMax = 131072

// encodeNumeric writes plain decimal digits in numeric's binary form: the counts of base-10000 digits, the weight of the
// first, the sign, the number of decimal digits after the point, then the base-10000 digits without zeros at the ends.
func encodeNumeric(dst []byte, s string) ([]byte, error) {
	switch s {
	case "NaN":
		return encodeNumericHead(dst, 0, 0, numericNaN, 0), nil
	case "Infinity":
		return encodeNumericHead(dst, 0, 0, numericInfinity, 0), nil
	case "-Infinity":
		return encodeNumericHead(dst, 0, 0, numericNegInfinity, 0), nil
	}
	var sign uint16
	if strings.HasPrefix(s, "-") {
		s, sign = s[1:], numericNegative
	}
	whole, fraction, _ := strings.Cut(s, ".")
	if whole == "" && fraction == "" {
		return dst, errors.New("a numeric has no digits")
	}
	whole = strings.TrimLeft(whole, "0")
	if len(whole) > numericIntegerMax || len(fraction) > numericScaleMax {
		return dst, errors.New("a numeric has more digits than the server's type holds")
	}
	start, weight := len(dst), (len(whole)+3)/4-1
	dst = encodeNumericHead(dst, 0, 0, sign, uint16(len(fraction)))
	digits := numericDigits{dst: dst, start: len(dst), weight: weight}
	for len(whole) > 0 {
		n := (len(whole)-1)%4 + 1
		digits.add(whole[:n], 0)
		whole = whole[n:]
	}
	for len(fraction) > 0 {
		n := min(4, len(fraction))
		digits.add(fraction[:n], 4-n)
		fraction = fraction[n:]
	}
	if digits.bad {
		return dst[:start], errors.New("a numeric is not written in plain digits")
	}
	dst = digits.dst[:digits.end()]
	count := (len(dst) - digits.start) / 2
	if count == 0 {
		digits.weight, sign = 0, 0
	}
	encodeNumericHead(dst[:start], uint16(count), uint16(digits.weight), sign, binary.BigEndian.Uint16(dst[start+6:]))
	return dst, nil
}

func encodeNumericHead(dst []byte, count, weight, sign, scale uint16) []byte {
	dst = binary.BigEndian.AppendUint16(dst, count)
	dst = binary.BigEndian.AppendUint16(dst, weight)
	dst = binary.BigEndian.AppendUint16(dst, sign)
	return binary.BigEndian.AppendUint16(dst, scale)
}

// numericDigits collects base-10000 digits, leaving out zeros in front.
type numericDigits struct {
	dst    []byte
	start  int // of the digits in dst
	weight int // of the first digit
	last   int // length of dst after the last digit that is not zero
	bad    bool
}

// add appends a group of up to four decimal digits, with zeros behind it.
func (d *numericDigits) add(group string, zeros int) {
	var v uint16
	for i := range len(group) {
		c := group[i] - '0'
		if c > 9 {
			d.bad = true
			return
		}
		v = v*10 + uint16(c)
	}
	for range zeros {
		v *= 10
	}
	if v == 0 && len(d.dst) == d.start {
		d.weight--
		return
	}
	d.dst = binary.BigEndian.AppendUint16(d.dst, v)
	if v != 0 {
		d.last = len(d.dst)
	}
}

func (d *numericDigits) end() int { return max(d.start, d.last) }

// bindText returns the writer of a's values in the form that the input functions of all types of this kind read.
func bindText(t schema.Type, s sinkType, a arrow.Array) (appendValue, error) {
	switch t.Kind {
	case schema.Array:
		l, err := bindArray(a)
		if err != nil {
			return nil, err
		}
		elem := sinkType{delimiter: ','}
		if s.elem != nil {
			elem = *s.elem
		}
		if l.elem, err = bindText(*t.Elem, elem, l.values); err != nil {
			return nil, err
		}
		delimiter := elem.delimiter
		return func(dst []byte, i int) ([]byte, error) { return l.appendText(dst, i, delimiter) }, nil
	case schema.Decimal:
		return bindDecimal(func(dst []byte, s string) ([]byte, error) { return append(dst, s...), nil })(a)
	}
	f, ok := textForms[t.Kind]
	if !ok {
		return nil, fmt.Errorf("kind %d has no text form", t.Kind)
	}
	return f(a)
}

var textForms = map[schema.Kind]func(arrow.Array) (appendValue, error){
	schema.Bool: bind(func(a *array.Boolean) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return strconv.AppendBool(dst, a.Value(i)), nil }
	}),
	schema.Int8:  bind(func(a *array.Int8) appendValue { return appendDecimal(a.Value) }),
	schema.Int16: bind(func(a *array.Int16) appendValue { return appendDecimal(a.Value) }),
	schema.Int32: bind(func(a *array.Int32) appendValue { return appendDecimal(a.Value) }),
	schema.Int64: bind(func(a *array.Int64) appendValue { return appendDecimal(a.Value) }),
	schema.Uint64: bind(func(a *array.Uint64) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return strconv.AppendUint(dst, a.Value(i), 10), nil }
	}),
	schema.Float32: bind(func(a *array.Float32) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return appendFloat(dst, float64(a.Value(i)), 32), nil }
	}),
	schema.Float64: bind(func(a *array.Float64) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return appendFloat(dst, a.Value(i), 64), nil }
	}),
	schema.Numeric:  bind(appendStrings),
	schema.Text:     bind(appendStrings),
	schema.JSON:     bind(appendStrings),
	schema.Enum:     bind(appendStrings),
	schema.Document: bind(appendStrings),
	schema.Bytes: bind(func(a *array.Binary) appendValue {
		return func(dst []byte, i int) ([]byte, error) {
			return hex.AppendEncode(append(dst, '\\', 'x'), a.Value(i)), nil
		}
	}),
	schema.Date: bind(func(a *array.Int32) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return schema.AppendDate(dst, a.Value(i)), nil }
	}),
	schema.Time: bind(func(a *array.Int64) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return schema.AppendTime(dst, a.Value(i)), nil }
	}),
	schema.Timestamp: bind(func(a *array.Int64) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return schema.AppendTimestamp(dst, a.Value(i)), nil }
	}),
	schema.TimestampTZ: bind(func(a *array.Int64) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return schema.AppendTimestampTZ(dst, a.Value(i)), nil }
	}),
	schema.Interval: bind(func(a *array.FixedSizeBinary) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return appendIntervalText(dst, a.Value(i)) }
	}),
	schema.UUID: bind(func(a *array.FixedSizeBinary) appendValue {
		return func(dst []byte, i int) ([]byte, error) { return hex.AppendEncode(dst, a.Value(i)), nil }
	}),
}

func appendDecimal[V int8 | int16 | int32 | int64](value func(int) V) appendValue {
	return func(dst []byte, i int) ([]byte, error) { return strconv.AppendInt(dst, int64(value(i)), 10), nil }
}

func appendFloat(dst []byte, v float64, bits int) []byte {
	switch {
	case math.IsInf(v, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(v, -1):
		return append(dst, "-Infinity"...)
	}
	return strconv.AppendFloat(dst, v, 'g', -1, bits)
}

var (
	laterThanAll   = intervalBytes(math.MaxInt64, math.MaxInt32, math.MaxInt32)
	earlierThanAll = intervalBytes(math.MinInt64, math.MinInt32, math.MinInt32)
)

// infiniteInterval names an interval that has no end, "" for any other one.
func infiniteInterval(v []byte) string {
	switch {
	case bytes.Equal(v, laterThanAll[:]):
		return "infinity"
	case bytes.Equal(v, earlierThanAll[:]):
		return "-infinity"
	}
	return ""
}

// appendIntervalText writes months, days and the time of day, each with its sign.
func appendIntervalText(dst, v []byte) ([]byte, error) {
	if len(v) != 16 {
		return dst, errors.New("an interval is not 16 bytes long")
	}
	if name := infiniteInterval(v); name != "" {
		return append(dst, name...), nil
	}
	us := int64(binary.BigEndian.Uint64(v))
	dst = strconv.AppendInt(dst, int64(int32(binary.BigEndian.Uint32(v[12:]))), 10)
	dst = strconv.AppendInt(append(dst, " mons "...), int64(int32(binary.BigEndian.Uint32(v[8:]))), 10)
	dst = append(dst, " days "...)
	switch {
	case us == math.MinInt64: // has no positive twin
		return append(dst, "-2562047788:00:54.775808"...), nil
	case us < 0:
		dst, us = append(dst, '-'), -us
	}
	return schema.AppendTime(dst, us), nil
}

// arrayWriter writes the values of an array column; see schema.Array for its storage.
type arrayWriter struct {
	lists  *array.List
	values arrow.Array
	shapes *array.String
	elem   appendValue
}

func bindArray(a arrow.Array) (*arrayWriter, error) {
	s, ok := a.(*array.Struct)
	if !ok || s.NumField() != 2 {
		return nil, fmt.Errorf("storage %s is not that of an array", a.DataType())
	}
	lists, ok := s.Field(0).(*array.List)
	shapes, ok2 := s.Field(1).(*array.String)
	if !ok || !ok2 {
		return nil, fmt.Errorf("storage %s is not that of an array", a.DataType())
	}
	return &arrayWriter{lists: lists, values: lists.ListValues(), shapes: shapes}, nil
}

// dimension is one bracket of a shape: the bounds of a subscript, both included.
type dimension struct{ lower, upper int32 }

func (d dimension) length() int { return int(int64(d.upper) - int64(d.lower) + 1) }

// shape returns the dimensions of row i, none for an empty array, and the range of its elements in values.
func (w *arrayWriter) shape(i int) (dims []dimension, first, end int, err error) {
	f, e := w.lists.ValueOffsets(i)
	first, end = int(f), int(e)
	switch {
	case !w.shapes.IsNull(i):
		dims, err = parseShape(w.shapes.Value(i))
		n := 1
		for _, d := range dims {
			if n *= d.length(); n > end-first {
				break
			}
		}
		if err == nil && n != end-first {
			err = errors.New("an array's shape does not fit its number of elements")
		}
	case end > first:
		dims = []dimension{{1, int32(end - first)}}
	}
	return dims, first, end, err
}

// parseShape reads dimensions as the server writes them in front of an array: [1:2][0:4].
func parseShape(s string) ([]dimension, error) {
	bad := errors.New("an array's shape is not of the form [lower:upper]")
	var dims []dimension
	for s != "" {
		inside, rest, ok := strings.Cut(s, "]")
		lower, upper, ok2 := strings.Cut(strings.TrimPrefix(inside, "["), ":")
		if !ok || !ok2 || s[0] != '[' || len(dims) == maxDimensions {
			return nil, bad
		}
		l, err := strconv.ParseInt(lower, 10, 32)
		u, err2 := strconv.ParseInt(upper, 10, 32)
		if err != nil || err2 != nil || u < l {
			return nil, bad
		}
		dims, s = append(dims, dimension{int32(l), int32(u)}), rest
	}
	if dims == nil {
		return nil, bad
	}
	return dims, nil
}

// appendBinary writes the form that array_recv reads: dimensions, whether there are nulls, the elements' type, length
// and lower bound of each dimension, then the elements behind their lengths.
func (w *arrayWriter) appendBinary(dst []byte, i int, oid uint32) ([]byte, error) {
	dims, first, end, err := w.shape(i)
	if err != nil {
		return dst, err
	}
	dst = appendUint32(dst, uint32(len(dims)))
	nulls := len(dst)
	dst = appendUint32(dst, 0)
	dst = appendUint32(dst, oid)
	for _, d := range dims {
		dst = appendUint32(dst, uint32(d.length()))
		dst = appendUint32(dst, uint32(d.lower))
	}
	for j := first; j < end; j++ {
		if w.values.IsNull(j) {
			dst[nulls+3] = 1
		}
		if dst, err = appendField(dst, w.values, w.elem, j); err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// appendField writes a value behind its length, or the length -1 for null.
func appendField(dst []byte, a arrow.Array, value appendValue, i int) ([]byte, error) {
	if a.IsNull(i) {
		return append(dst, 0xFF, 0xFF, 0xFF, 0xFF), nil
	}
	start := len(dst)
	dst, err := value(append(dst, 0, 0, 0, 0), i)
	if err != nil {
		return dst[:start], err
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst, nil
}

// appendText writes an array constant, with its dimensions in front unless it has one from 1.
func (w *arrayWriter) appendText(dst []byte, i int, delimiter byte) ([]byte, error) {
	dims, first, end, err := w.shape(i)
	if err != nil {
		return dst, err
	}
	if len(dims) == 0 {
		return append(dst, '{', '}'), nil
	}
	if !w.shapes.IsNull(i) {
		dst = append(append(dst, w.shapes.Value(i)...), '=')
	}
	// inner[d] is the number of elements in one item of dimension d.
	inner := make([]int, len(dims))
	for d, n := len(dims)-1, 1; d >= 0; d-- {
		inner[d] = n
		n *= dims[d].length()
	}
	for j := first; j < end; j++ {
		if j > first {
			dst = append(dst, delimiter)
		}
		for d := range dims {
			if (j-first)%(inner[d]*dims[d].length()) == 0 {
				dst = append(dst, '{')
			}
		}
		if dst, err = w.appendElement(dst, j); err != nil {
			return dst, err
		}
		for d := range dims {
			if (j-first+1)%(inner[d]*dims[d].length()) == 0 {
				dst = append(dst, '}')
			}
		}
	}
	return dst, nil
}

func (w *arrayWriter) appendElement(dst []byte, j int) ([]byte, error) {
	if w.values.IsNull(j) {
		return append(dst, "NULL"...), nil
	}
	dst = append(dst, '"')
	start := len(dst)
	dst, err := w.elem(dst, j)
	if err != nil {
		return dst, err
	}
	return append(escapeInPlace(dst, start, quoteEscape), '"'), nil
}

// quoteEscape says what stands behind the backslash for a character in a quoted array element, 0 for itself alone.
func quoteEscape(c byte) byte {
	if c == '"' || c == '\\' {
		return c
	}
	return 0
}

// copyEscape says the same for a field of COPY's text format.
func copyEscape(c byte) byte {
	switch c {
	case '\\':
		return '\\'
	case '\n':
		return 'n'
	case '\r':
		return 'r'
	case '\t':
		return 't'
	}
	return 0
}

// escapeInPlace puts backslashes in front of what needs them in dst[start:].
func escapeInPlace(dst []byte, start int, escape func(byte) byte) []byte {
	n := 0
	for _, c := range dst[start:] {
		if escape(c) != 0 {
			n++
		}
	}
	if n == 0 {
		return dst
	}
	end := len(dst)
	for range n {
		dst = append(dst, 0)
	}
	for from, to := end-1, len(dst)-1; from < to; from-- {
		if e := escape(dst[from]); e != 0 {
			dst[to], dst[to-1] = e, '\\'
			to -= 2
		} else {
			dst[to] = dst[from]
			to--
		}
	}
	return dst
}
