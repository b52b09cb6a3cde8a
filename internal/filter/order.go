package filter

import (
	"bytes"
	"cmp"
	"math"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/schema"
)

// class is what types have in common that can be compared with each other.
type class uint8

const (
	noClass class = iota // compared with nothing
	integers
	exacts // decimals of any size
	floats
	texts
	enums
	binaries
	bools
	uuids
	dates
	times
	timestamps
	timestampsTZ
)

func classOf(t schema.Type) class {
	switch t.Kind {
	case schema.Bool:
		return bools
	case schema.Int8, schema.Int16, schema.Int32, schema.Int64, schema.Uint64:
		return integers
	case schema.Float32, schema.Float64:
		return floats
	case schema.Decimal, schema.Numeric:
		return exacts
	case schema.Text:
		return texts
	case schema.Enum:
		return enums
	case schema.Bytes:
		return binaries
	case schema.UUID:
		return uuids
	case schema.Date:
		return dates
	case schema.Time:
		return times
	case schema.Timestamp:
		return timestamps
	case schema.TimestampTZ:
		return timestampsTZ
	}
	return noClass
}

func (c class) isNumber() bool { return c == integers || c == exacts || c == floats }

// hasOrder reports whether more than equality means something.
func (c class) hasOrder() bool { return c != enums && c != bools }

// order compares the value of a row with another value: -1, 0 or 1. It is not asked about a NULL.
type order func(i int) int

// orderWith compares a column with a constant of its class.
func orderWith(c class, v literal) func(bound) order {
	switch c {
	case integers:
		return func(b bound) order { return orderInteger(b.values, v) }
	case exacts:
		return func(b bound) order {
			value := decimalText(b.values)
			return func(i int) int { return compareDecimals(value(i), v.text) }
		}
	case floats:
		return func(b bound) order {
			value := floatValue(b.values)
			return func(i int) int { return compareFloats(value(i), v.float) }
		}
	case texts, enums:
		return func(b bound) order {
			value := b.text()
			return func(i int) int { return strings.Compare(value(i), v.text) }
		}
	case binaries, uuids:
		return func(b bound) order {
			value := bytesValue(b.values)
			return func(i int) int { return bytes.Compare(value(i), []byte(v.text)) }
		}
	case bools:
		return func(b bound) order {
			a := b.values.(*array.Boolean)
			return func(i int) int {
				if a.Value(i) == (v.integer == 1) {
					return 0
				}
				return 1
			}
		}
	default: // dates and times are integers
		return func(b bound) order {
			value := integerValue(b.values)
			return func(i int) int { return cmp.Compare(value(i), v.integer) }
		}
	}
}

// orderInteger compares with a number that need not be whole, nor as small as an int64.
func orderInteger(values arrow.Array, v literal) order {
	if u, ok := values.(*array.Uint64); ok {
		return func(i int) int { return compareDecimals(strconv.FormatUint(u.Value(i), 10), v.text) }
	}
	value := integerValue(values)
	if v.whole {
		return func(i int) int { return cmp.Compare(value(i), v.integer) }
	}
	return func(i int) int { return compareDecimals(strconv.FormatInt(value(i), 10), v.text) }
}

// orderBoth compares two columns of one class, or of two classes of numbers: exactly, unless one of them is a float, with
// which the server compares as floats.
func orderBoth(a, b class) func(left, right bound) order {
	switch {
	case a.isNumber() && (a == floats || b == floats):
		return func(l, r bound) order {
			x, y := floatValue(l.values), floatValue(r.values)
			return func(i int) int { return compareFloats(x(i), y(i)) }
		}
	case a == exacts || b == exacts:
		return func(l, r bound) order {
			x, y := decimalText(l.values), decimalText(r.values)
			return func(i int) int { return compareDecimals(x(i), y(i)) }
		}
	}
	switch a {
	case texts, enums:
		return func(l, r bound) order {
			x, y := l.text(), r.text()
			return func(i int) int { return strings.Compare(x(i), y(i)) }
		}
	case binaries, uuids:
		return func(l, r bound) order {
			x, y := bytesValue(l.values), bytesValue(r.values)
			return func(i int) int { return bytes.Compare(x(i), y(i)) }
		}
	case bools:
		return func(l, r bound) order {
			x, y := l.values.(*array.Boolean), r.values.(*array.Boolean)
			return func(i int) int {
				if x.Value(i) == y.Value(i) {
					return 0
				}
				return 1
			}
		}
	default:
		return func(l, r bound) order {
			if _, ok := l.values.(*array.Uint64); ok {
				return orderBoth(exacts, exacts)(l, r)
			}
			if _, ok := r.values.(*array.Uint64); ok {
				return orderBoth(exacts, exacts)(l, r)
			}
			x, y := integerValue(l.values), integerValue(r.values)
			return func(i int) int { return cmp.Compare(x(i), y(i)) }
		}
	}
}

// integerValue reads what is stored as an integer, but for unsigned ones.
func integerValue(values arrow.Array) func(i int) int64 {
	switch a := values.(type) {
	case *array.Int8:
		return func(i int) int64 { return int64(a.Value(i)) }
	case *array.Int16:
		return func(i int) int64 { return int64(a.Value(i)) }
	case *array.Int32:
		return func(i int) int64 { return int64(a.Value(i)) }
	case *array.Int64:
		return a.Value
	}
	panic("filter: " + values.DataType().String() + " is not stored as an integer")
}

// floatValue reads any number as a float, rounded as the server rounds it.
func floatValue(values arrow.Array) func(i int) float64 {
	switch a := values.(type) {
	case *array.Float32:
		return func(i int) float64 { return float64(a.Value(i)) }
	case *array.Float64:
		return a.Value
	case *array.Uint64:
		return func(i int) float64 { return float64(a.Value(i)) }
	case *array.Int8, *array.Int16, *array.Int32, *array.Int64:
		value := integerValue(values)
		return func(i int) float64 { return float64(value(i)) }
	}
	text := decimalText(values)
	return func(i int) float64 {
		f, _ := strconv.ParseFloat(text(i), 64) // beyond all floats it is an infinity
		return f
	}
}

// decimalText reads any number but floats as plain digits.
func decimalText(values arrow.Array) func(i int) string {
	switch a := values.(type) {
	case *array.String:
		return a.Value
	case *array.Uint64:
		return func(i int) string { return strconv.FormatUint(a.Value(i), 10) }
	case *array.Decimal128, *array.Decimal256:
		return values.ValueStr
	}
	value := integerValue(values)
	return func(i int) string { return strconv.FormatInt(value(i), 10) }
}

func bytesValue(values arrow.Array) func(i int) []byte {
	switch a := values.(type) {
	case *array.Binary:
		return a.Value
	case *array.FixedSizeBinary:
		return a.Value
	}
	panic("filter: " + values.DataType().String() + " is not stored as bytes")
}

// compareFloats takes NaN for equal to itself and greater than all else, as the server does. Zeros are equal.
func compareFloats(a, b float64) int {
	switch {
	case math.IsNaN(a) && math.IsNaN(b):
		return 0
	case math.IsNaN(a):
		return 1
	case math.IsNaN(b):
		return -1
	}
	return cmp.Compare(a, b)
}

// compareDecimals compares numbers in plain digits by value: 1.50 equals 1.5. NaN equals itself and is greater than all
// else.
func compareDecimals(a, b string) int {
	x, y := rankOf(a), rankOf(b)
	if x != y || x != finite {
		return cmp.Compare(x, y)
	}
	negA, intA, fracA := splitDecimal(a)
	negB, intB, fracB := splitDecimal(b)
	switch {
	case negA && !negB:
		return -1
	case !negA && negB:
		return 1
	}
	order := cmp.Or(cmp.Compare(len(intA), len(intB)), strings.Compare(intA, intB), strings.Compare(fracA, fracB))
	if negA {
		return -order
	}
	return order
}

// The ranks of numbers that are not finite.
const (
	finite = 1 // between the infinities
)

func rankOf(s string) int {
	switch s {
	case "-Infinity":
		return 0
	case "Infinity":
		return 2
	case "NaN":
		return 3
	}
	return finite
}

// splitDecimal takes a number apart, without zeros that mean nothing: a zero has neither digits nor a sign.
func splitDecimal(s string) (negative bool, whole, fraction string) {
	s, negative = strings.CutPrefix(s, "-")
	whole, fraction, _ = strings.Cut(s, ".")
	whole, fraction = strings.TrimLeft(whole, "0"), strings.TrimRight(fraction, "0")
	return negative && whole+fraction != "", whole, fraction
}
