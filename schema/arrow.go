package schema

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
)

// MaxDecimal128 is the largest precision, in digits, that Arrow keeps in 128 bits.
const MaxDecimal128 = 38

// Arrow returns the one Arrow storage of a type. It panics on a Kind that does not exist, which no decoder makes.
func (t Type) Arrow() arrow.DataType {
	switch t.Kind {
	case Bool:
		return arrow.FixedWidthTypes.Boolean
	case Int8:
		return arrow.PrimitiveTypes.Int8
	case Int16:
		return arrow.PrimitiveTypes.Int16
	case Int32, Date:
		return arrow.PrimitiveTypes.Int32
	case Int64, Time, Timestamp, TimestampTZ:
		return arrow.PrimitiveTypes.Int64
	case Uint64:
		return arrow.PrimitiveTypes.Uint64
	case Float32:
		return arrow.PrimitiveTypes.Float32
	case Float64:
		return arrow.PrimitiveTypes.Float64
	case Decimal:
		if t.Precision > MaxDecimal128 {
			return &arrow.Decimal256Type{Precision: t.Precision, Scale: t.Scale}
		}
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case Numeric, Text, JSON, Enum, Document:
		return arrow.BinaryTypes.String
	case Bytes:
		return arrow.BinaryTypes.Binary
	case Interval, UUID:
		return &arrow.FixedSizeBinaryType{ByteWidth: 16}
	case Array:
		return arrow.StructOf(
			arrow.Field{Name: "values", Type: arrow.ListOf(t.Elem.Arrow()), Nullable: true},
			arrow.Field{Name: "shape", Type: arrow.BinaryTypes.String, Nullable: true},
		)
	default:
		panic(fmt.Sprintf("schema: no Arrow storage for kind %d", t.Kind))
	}
}

// Arrow returns the Arrow schema of the table's rows: its columns in order, each nullable, since a row may lack any value
// (a delete that carries the key alone, a value left unsent).
func (t *Table) Arrow() *arrow.Schema {
	fields := make([]arrow.Field, len(t.Columns))
	for i, c := range t.Columns {
		fields[i] = arrow.Field{Name: c.Name, Type: c.Type.Arrow(), Nullable: true}
	}
	return arrow.NewSchema(fields, nil)
}
