package connectortest

import (
	"fmt"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Row is a row as text, one value a column, in the form that internal/testdb returns: [Null] stands for NULL.
type Row []string

// Values of a Row that are none.
const (
	Null   = "∅"
	Unsent = "▫" // not sent by the source: keep the stored value
)

// Int64 and Text declare a column; the tables of this package have no other types.
func Int64(name string) schema.Column {
	return schema.Column{Name: name, Type: schema.Type{Kind: schema.Int64, Native: "bigint"}}
}

// Text declares a column of type text.
func Text(name string) schema.Column {
	return schema.Column{Name: name, Type: schema.Type{Kind: schema.Text, Native: "text"}}
}

// RowsBuilder makes [connector.Rows] of Row values.
type RowsBuilder struct {
	table   *schema.Table
	ops     []connector.Op
	unsent  [][]byte
	records *array.RecordBuilder
}

// NewRowsBuilder returns a builder for rows of t; [RowsBuilder.Rows] or Release ends it.
func NewRowsBuilder(alloc memory.Allocator, t *schema.Table) *RowsBuilder {
	return &RowsBuilder{table: t, records: array.NewRecordBuilder(alloc, t.Arrow())}
}

// Append adds a row; row is nil for a Truncate. An error leaves the builder fit only for Release.
func (b *RowsBuilder) Append(op connector.Op, row Row) error {
	if row != nil && len(row) != len(b.table.Columns) {
		return fmt.Errorf("a row of %d values for %d columns", len(row), len(b.table.Columns))
	}
	for c := range b.table.Columns {
		value := Null
		if row != nil {
			value = row[c]
		}
		if value == Unsent {
			b.markUnsent(c)
			value = Null
		}
		if err := appendText(b.records.Field(c), value); err != nil {
			return fmt.Errorf("column %s: %w", b.table.Columns[c].Name, err)
		}
	}
	b.ops = append(b.ops, op)
	return nil
}

func (b *RowsBuilder) markUnsent(c int) {
	if b.unsent == nil {
		b.unsent = make([][]byte, len(b.table.Columns))
	}
	for len(b.unsent[c])*8 <= len(b.ops) {
		b.unsent[c] = append(b.unsent[c], 0)
	}
	bitutil.SetBit(b.unsent[c], len(b.ops))
}

func appendText(b array.Builder, value string) error {
	if value == Null {
		b.AppendNull()
		return nil
	}
	switch b := b.(type) {
	case *array.Int64Builder:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return err
		}
		b.Append(n)
	case *array.StringBuilder:
		b.Append(value)
	default:
		return fmt.Errorf("type %s is none of this package", b.Type())
	}
	return nil
}

// Len returns the number of rows appended.
func (b *RowsBuilder) Len() int { return len(b.ops) }

// Rows returns what was appended, for the caller to release, and ends the builder.
func (b *RowsBuilder) Rows() *connector.Rows {
	defer b.records.Release()
	for c, bits := range b.unsent {
		if bits != nil {
			b.unsent[c] = append(bits, make([]byte, (len(b.ops)+7)/8-len(bits))...)
		}
	}
	return &connector.Rows{Table: b.table, Ops: b.ops, Values: b.records.NewRecordBatch(), Unsent: b.unsent}
}

// Release ends the builder without a result.
func (b *RowsBuilder) Release() { b.records.Release() }

// RowAt returns row i of r as text.
func RowAt(r *connector.Rows, i int) Row {
	row := make(Row, r.Values.NumCols())
	for c := range row {
		switch col := r.Values.Column(c); {
		case r.IsUnsent(c, i):
			row[c] = Unsent
		case col.IsNull(i):
			row[c] = Null
		default:
			row[c] = valueText(col, i)
		}
	}
	return row
}

func valueText(col arrow.Array, i int) string {
	switch col := col.(type) {
	case *array.Int64:
		return strconv.FormatInt(col.Value(i), 10)
	case *array.String:
		return col.Value(i)
	default:
		return col.ValueStr(i)
	}
}
