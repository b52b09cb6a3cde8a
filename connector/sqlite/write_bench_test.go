package sqlite

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// benchRows makes rows of seven columns whose keys count from first on.
func benchRows(table *schema.Table, first, n int) *connector.Rows {
	b := array.NewRecordBuilder(memory.DefaultAllocator, table.Arrow())
	defer b.Release()
	for i := first; i < first+n; i++ {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.Int32Builder).Append(int32(i % 1000))
		b.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("customer %d", i))
		b.Field(3).(*array.StringBuilder).Append("12345.67")
		b.Field(4).(*array.Int64Builder).Append(int64(i) * 1_000_003)
		b.Field(5).(*array.BooleanBuilder).Append(i%2 == 0)
		b.Field(6).(*array.Float64Builder).Append(float64(i) / 7)
	}
	return &connector.Rows{Table: table, Values: b.NewRecordBatch(), Distinct: true}
}

func benchTarget(b *testing.B) (*Sink, *connector.Target) {
	kinds := []schema.Kind{schema.Int64, schema.Int32, schema.Text, schema.Numeric, schema.TimestampTZ, schema.Bool, schema.Float64}
	t := &schema.Table{Name: schema.Name{Table: "t"}, Key: []int{0}}
	for i, k := range kinds {
		t.Columns = append(t.Columns, schema.Column{Name: fmt.Sprintf("c%d", i), Type: schema.Type{Kind: k}})
	}
	s, err := OpenSink(&Config{Path: filepath.Join(b.TempDir(), "b.db")}, connector.Env{Mirror: "b"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.Close() })
	if _, err := s.Claim(b.Context(), "b", ""); err != nil {
		b.Fatal(err)
	}
	target, err := s.Plan(b.Context(), connector.Target{Table: t, Name: t.Name})
	if err != nil {
		b.Fatal(err)
	}
	target.Copy = 1
	if err := s.Create(b.Context(), target); err != nil {
		b.Fatal(err)
	}
	return s, target
}

// BenchmarkLoad loads chunks of 100,000 rows.
func BenchmarkLoad(b *testing.B) {
	const chunk, batch = 100_000, 10_000
	s, target := benchTarget(b)
	n := 0
	for b.Loop() {
		tx, err := s.Begin(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for range chunk / batch {
			r := benchRows(target.Table, n, batch)
			n += batch
			if err := tx.Load(b.Context(), target, r); err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
		if err := tx.Commit(b.Context(), map[string]string{"chunk": fmt.Sprint(n)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkWrite puts batches of 10,000 rows over stored ones.
func BenchmarkWrite(b *testing.B) {
	const batch, stored = 10_000, 200_000
	s, target := benchTarget(b)
	load := benchRows(target.Table, 0, stored)
	defer load.Release()
	tx, err := s.Begin(b.Context())
	if err == nil {
		err = tx.Load(b.Context(), target, load)
	}
	if err == nil {
		err = tx.Commit(b.Context(), nil)
	}
	if err == nil {
		err = s.Ready(b.Context(), target, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		r := benchRows(target.Table, n%stored, batch)
		tx, err := s.Begin(b.Context())
		if err == nil {
			err = tx.Write(b.Context(), target, r)
		}
		if err == nil {
			err = tx.Commit(b.Context(), nil)
		}
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
		n += batch
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
}
