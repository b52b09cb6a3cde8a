package postgres

import (
	"fmt"
	"strings"

	"github.com/sluicehq/sluice/schema"
)

// Type OIDs of the built-in types that have a logical twin. They are fixed (src/include/catalog/pg_type.dat).
const (
	oidBool        = 16
	oidBytea       = 17
	oidName        = 19
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidOID         = 26
	oidJSON        = 114
	oidFloat4      = 700
	oidFloat8      = 701
	oidBPChar      = 1042
	oidVarchar     = 1043
	oidDate        = 1082
	oidTime        = 1083
	oidTimestamp   = 1114
	oidTimestampTZ = 1184
	oidInterval    = 1186
	oidNumeric     = 1700
	oidUUID        = 2950
	oidJSONB       = 3802
)

// nativeTwins is the table of the native types with a logical twin. In a copy they arrive in their binary form, in the
// stream as text; every other type arrives in both as the text that its output function makes.
var nativeTwins = map[uint32]schema.Kind{
	oidBool: schema.Bool, oidInt2: schema.Int16, oidInt4: schema.Int32, oidInt8: schema.Int64, oidOID: schema.Int64,
	oidFloat4: schema.Float32, oidFloat8: schema.Float64, oidNumeric: schema.Numeric,
	oidText: schema.Text, oidVarchar: schema.Text, oidBPChar: schema.Text, oidName: schema.Text,
	oidBytea: schema.Bytes, oidDate: schema.Date, oidTime: schema.Time, oidTimestamp: schema.Timestamp,
	oidTimestampTZ: schema.TimestampTZ, oidInterval: schema.Interval, oidUUID: schema.UUID,
	oidJSON: schema.JSON, oidJSONB: schema.JSON,
}

// nativeType is a row of pg_type, with what belongs to it.
type nativeType struct {
	oid        uint32
	kind       byte   // typtype: b base, c composite, d domain, e enum, r range, m multirange, p pseudo
	base       uint32 // of a domain: the type below it, 0 otherwise
	baseMod    int32
	baseNative string // format_type(base, baseMod)
	elem       uint32 // of an array whose text form has commas between its elements: the element's type, 0 otherwise
	output     string // the output function, quoted and qualified
	labels     []string
	attributes []nativeAttribute
}

type nativeAttribute struct {
	name   string
	typ    uint32
	mod    int32
	native string // format_type(typ, mod)
}

// nativeTypes holds the types that the tables being discovered use, by OID.
type nativeTypes map[uint32]*nativeType

// resolved is the answer of the type table for a column.
type resolved struct {
	schema.Type
	wire   wireForm
	output string // the output function: what a copy calls where wire is wireText
}

// wireForm is how a value arrives in a copy. In the stream all values are text.
type wireForm uint8

const (
	wireBinary wireForm = iota // the type's send function
	wireJSONB                  // the same with a version byte in front (jsonb_send)
	wireText                   // the type's output function
)

// maxTypeDepth bounds domains over arrays of composites over ...: far beyond what anyone declares.
const maxTypeDepth = 64

// typeOf is the type table: the logical type of a native type, given with its modifier and as format_type writes it.
func (ts nativeTypes) typeOf(oid uint32, mod int32, native string) (resolved, error) {
	return ts.resolve(oid, mod, native, 0)
}

func (ts nativeTypes) resolve(oid uint32, mod int32, native string, depth int) (resolved, error) {
	t := ts[oid]
	if t == nil || depth > maxTypeDepth {
		return resolved{}, fmt.Errorf("type %s (OID %d) is not in the catalog, or nested deeper than %d", native, oid, maxTypeDepth)
	}
	r := resolved{Type: schema.Type{Kind: schema.Text, Native: native}, wire: wireText, output: t.output}
	switch {
	case t.kind == 'd':
		return ts.resolve(t.base, t.baseMod, t.baseNative, depth+1)
	case t.kind == 'e':
		r.Kind, r.wire, r.Labels = schema.Enum, wireBinary, t.labels
	case t.kind == 'c':
		r.Fields = make([]schema.Field, len(t.attributes)) // not nil: a composite may have no attributes
		for i, a := range t.attributes {
			f, err := ts.resolve(a.typ, a.mod, a.native, depth+1)
			if err != nil {
				return resolved{}, err
			}
			r.Fields[i] = schema.Field{Name: a.name, Type: f.Type}
		}
	case t.elem != 0:
		elem, err := ts.resolve(t.elem, mod, strings.TrimSuffix(native, "[]"), depth+1)
		if err != nil {
			return resolved{}, err
		}
		r.Kind, r.wire, r.Elem, r.Native = schema.Array, elem.wire, &elem.Type, elem.Native+"[]"
	default:
		kind, ok := nativeTwins[oid]
		if !ok {
			break
		}
		r.Kind, r.wire = kind, wireBinary
		if oid == oidJSONB {
			r.wire = wireJSONB
		}
		r.Precision, r.Scale = modifier(oid, mod)
		r.Padded = oid == oidBPChar
	}
	return r, nil
}

// defaultFraction is the number of fractional digits of a time that is declared without one: microseconds.
const defaultFraction = 6

// modifier reads precision and scale from a type modifier. The forms are those of numeric.c (make_numeric_typmod),
// timestamp.c (anytimestamp_typmod_check, INTERVAL_PRECISION) and date.c.
func modifier(oid uint32, mod int32) (precision, scale int32) {
	switch oid {
	case oidNumeric:
		if mod < 4 {
			return 0, 0
		}
		mod -= 4
		return mod >> 16 & 0xffff, (mod&0x7ff ^ 0x400) - 0x400 // an eleven bit signed scale
	case oidTime, oidTimestamp, oidTimestampTZ:
		if mod < 0 {
			return defaultFraction, 0
		}
		return mod, 0
	case oidInterval:
		if mod < 0 || mod&0xffff == 0xffff {
			return defaultFraction, 0
		}
		return mod & 0xffff, 0
	}
	return 0, 0
}
