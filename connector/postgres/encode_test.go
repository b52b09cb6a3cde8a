package postgres

import (
	"fmt"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// BenchmarkEncodeCopy writes rows of seven columns in the binary format of COPY; the time is that of one row.
func BenchmarkEncodeCopy(b *testing.B) {
	table := testTable("t", column("id", schema.Int64, "bigint"), column("customer", schema.Int32, "integer"),
		column("total", schema.Numeric, "numeric(10,2)"), column("note", schema.Text, "text"), column("paid", schema.Bool, "boolean"),
		column("at", schema.TimestampTZ, "timestamp with time zone"), column("score", schema.Float64, "double precision"))
	oids := []uint32{20, 23, 1700, 25, 16, 1184, 701}
	receive := []string{"int8recv", "int4recv", "numeric_recv", "textrecv", "boolrecv", "timestamptz_recv", "float8recv"}
	l := &sinkLayout{target: &connector.Target{Table: table}, binary: true}
	for i := range table.Columns {
		l.columns = append(l.columns, writtenColumn{source: i, typ: table.Columns[i].Type, binary: true, sink: sinkType{oid: oids[i], receive: receive[i]}})
	}
	const n = 8192
	rows := make([]testRow, n)
	for i := range rows {
		rows[i] = testRow{insert, fmt.Sprintf("%d|%d|%d.%02d|a note of some length %d|t|2024-05-06 07:08:09.123456+00|%g", i, i%1000, i, i%100, i, float64(i)/3)}
	}
	columns, err := l.bindColumns(testRows(b, table, false, rows...), true)
	if err != nil {
		b.Fatal(err)
	}
	w := &copyIn{binary: true}
	b.ReportAllocs()
	for i := 0; b.Loop(); i = (i + 1) % n {
		w.beginRow(len(columns))
		for c := range columns {
			if err := w.value(&columns[c], i); err != nil {
				b.Fatal(err)
			}
		}
		if len(w.buf) >= copyMessage {
			w.buf = w.buf[:0]
		}
	}
}
