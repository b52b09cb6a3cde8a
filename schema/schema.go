// Package schema describes tables: their columns, logical types and versions. A value of it never changes once it is
// handed on, so it may be shared between goroutines without locks.
package schema

// Kind is a logical type. Its one Arrow storage stands beside it and in [Type.Arrow]; there are no registered
// extension types.
type Kind uint8

// The logical types.
const (
	Bool        Kind = iota + 1 // Boolean
	Int8                        // Int8; smaller unsigned types widen to the next signed one
	Int16                       // Int16
	Int32                       // Int32
	Int64                       // Int64
	Uint64                      // Uint64
	Float32                     // Float32
	Float64                     // Float64
	Decimal                     // Decimal128 or 256: for types that have neither NaN nor infinity (MySQL DECIMAL)
	Numeric                     // String: plain digits, "NaN", "Infinity", "-Infinity" (PostgreSQL numeric, DynamoDB N)
	Text                        // String; also timetz, ranges, inet, composites, ...: the server's own text, see Native
	Bytes                       // Binary
	Date                        // Int32: days since 2000-01-01; min and max are -infinity and infinity
	Time                        // Int64: microseconds since midnight, 24:00:00 included
	Timestamp                   // Int64: microseconds since 2000-01-01 00:00; min and max as for Date
	TimestampTZ                 // Int64: the same, in UTC
	Interval                    // FixedSizeBinary(16): microseconds int64, days int32, months int32, big endian
	UUID                        // FixedSizeBinary(16)
	JSON                        // String: the bytes as sent; JSON null is the text null, SQL NULL is null
	Enum                        // String: the label
	Array                       // Struct{values List(Elem), shape String}; shape null: one dimension from 1, or empty
	Document                    // String: DynamoDB's typed JSON, {"S":"a"}
)

// Type is the type of a column, an array's element or a composite's attribute.
type Type struct {
	Kind             Kind
	Native           string   // as the source writes it, modifiers and schema included: "numeric(10,2)", "shop.mood"
	Precision, Scale int32    // Decimal; Numeric where declared; Precision also of times: fractional digits
	Padded           bool     // Text: blanks at its end mean nothing (character(n))
	Elem             *Type    // Array
	Labels           []string // Enum, in the source's order
	Fields           []Field  // Text that is a composite: its attributes in order; nil for every other type
}

// Field is an attribute of a composite type.
type Field struct {
	Name string
	Type Type
}

type (
	// ID names a table for life, through renames: an OID, a DynamoDB TableId.
	ID string
	// Name is the name of a table, Schema "" where there is none. Only [Name.String] and [ParseName] join and split it.
	Name struct{ Schema, Table string }
)

// Column is a column of one version of a table. Generated is SQL of the source.
type Column struct {
	Number    int32 // the source's own (attnum): tells a rename from a drop and an add; 0 if it has none
	Name      string
	Type      Type
	NotNull   bool
	Missing   *string // what rows hold that are older than the column, as its log would send it; nil: NULL, or there are none
	Generated string  // stored, and not in the log
	Unread    bool    // set by the engine: nobody wants its values, a Source need not read them; rows hold NULL there
}

// UniqueKey is a set of columns that tells a table's rows apart: all NOT NULL, and the server keeps them unique.
type UniqueKey struct {
	Columns []int  // indexes into Table.Columns, in the index's order
	Unfit   string // why it cannot be a key, and the statement that mends it; "": each update and delete sends all of it
}

// Table is one version of a table. Versions come from the source alone and only grow.
type Table struct {
	ID             ID
	Version        int
	Log            string // the change log that carries it; tables of one Log share a Stream
	Name           Name
	Columns        []Column
	Key            []int  // indexes into Columns, in key order, all of them sent with every update and delete; empty: none
	Keyless        string // where Key is empty: why, and the statement that would give one
	Unique         []UniqueKey
	Refused        string // why it cannot be mirrored and what to do; "" if it can
	Layout         string // the source's own text of where the rows are stored, see connector.Rewriter
	Rows, RowBytes int64  // estimates; -1 unknown
}

// KeyNames returns the names of the key's columns, in key order.
func (t *Table) KeyNames() []string {
	names := make([]string, len(t.Key))
	for i, c := range t.Key {
		names[i] = t.Columns[c].Name
	}
	return names
}

// Column returns the index of the column with this name, -1 if there is none.
func (t *Table) Column(name string) int {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return i
		}
	}
	return -1
}
