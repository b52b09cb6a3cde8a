package postgres

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// everyKind has a column of each kind that the type table knows, and an array of it.
func everyKind() *schema.Table {
	t := &schema.Table{}
	for _, k := range []schema.Kind{
		schema.Bool, schema.Int16, schema.Int32, schema.Int64, schema.Float32, schema.Float64, schema.Numeric, schema.Text, schema.Bytes,
		schema.Date, schema.Time, schema.Timestamp, schema.TimestampTZ, schema.Interval, schema.UUID, schema.JSON, schema.Enum,
	} {
		typ := schema.Type{Kind: k}
		t.Columns = append(t.Columns, schema.Column{Name: "c", Type: typ}, schema.Column{Name: "a", Type: schema.Type{Kind: schema.Array, Elem: &typ}})
	}
	return t
}

func FuzzDecodeCopy(f *testing.F) {
	header := append([]byte(copySignature), 0, 0, 0, 0, 0, 0, 0, 0)
	row := binary.BigEndian.AppendUint16(nil, 3)
	for _, v := range [][]byte{{0, 0, 0, 1}, []byte("a"), {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
		row = append(binary.BigEndian.AppendUint32(row, uint32(len(v))), v...)
	}
	f.Add(append(header, row...), append(row, 0xff, 0xff))
	f.Add(header, []byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		d := newCopyDecoder(listTable(0), []wireForm{wireBinary, wireBinary, wireBinary}, memory.DefaultAllocator)
		if d.decode(first) == nil && d.decode(second) == nil {
			d.take().Release()
		}
	})
}

func FuzzDecodeValue(f *testing.F) {
	for _, s := range []string{"t", "-32768", "1e400", "NaN", `\x00`, "0001-01-01 BC", "24:00:00", "294276-12-31 23:59:59.999999+00", "1 year -2 mons +3 days -04:05:06.7", "{{1,2},{3,NULL}}", "[0:1]={a,b}", "00000000-0000-0000-0000-000000000000"} {
		f.Add([]byte(s))
	}
	table := everyKind()
	f.Fuzz(func(t *testing.T, value []byte) {
		for _, wire := range []wireForm{wireBinary, wireJSONB, wireText} {
			wires := make([]wireForm, len(table.Columns))
			for i := range wires {
				wires[i] = wire
			}
			rb := newRowBuilder(table, wires, memory.DefaultAllocator)
			for _, c := range rb.sent {
				if c.decode(value) == nil && c.builder.Len() != 1 {
					t.Fatalf("column %d: %d values", c.index, c.builder.Len())
				}
			}
			rb.clear()
		}
	})
}

// FuzzParseArray checks that an array that is taken has as many values as its shape says.
func FuzzParseArray(f *testing.F) {
	for _, s := range []string{"{}", "{1,NULL}", `{"a\"b","\\",""}`, "{{1,2},{3,4}}", "[0:1][-1:0]={{1,2},{3,4}}", "{{1},{2,3}}", "[1:0]={}", "{{{{{{{1}}}}}}}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n := int64(0)
		shape, _, err := parseArray(text, nil, func([]byte) error { n++; return nil }, func() { n++ })
		if err != nil {
			return
		}
		want := int64(min(shape.count, 1))
		for _, d := range shape.dimensions[:shape.count] {
			want *= d.length
		}
		if n != want {
			t.Fatalf("%d values in an array of %+v", n, shape)
		}
	})
}

func TestParseArrayRefuses(t *testing.T) {
	for _, s := range []string{"", "{", "}", "{1", "{1,}", "{,1}", "{1}}", "{{1},{2,3}}", "{{1},2}", "{1,{2}}", "{{},{}}", "{{}}", `{"a}`, `{"a"b}`, `{a"b"}`, `{"\`,
		"[0:1]={1}", "[1:1]={{1}}", "[1:0]={}", "[1:1]={}", "[1:1", "[1:1]{1}", "[a:b]={1}", "[1:1]x[1:1]={{1}}", "{{{{{{{1}}}}}}}", "{1} "} {
		if shape, _, err := parseArray([]byte(s), nil, func([]byte) error { return nil }, func() {}); err == nil {
			t.Errorf("%q passes as %+v", s, shape)
		}
	}
}

func TestValuesAtTheEdges(t *testing.T) {
	for text, want := range map[string]int64{
		"2000-01-01 00:00:00": 0, "1999-12-31 23:59:59.999999": -1, "2000-01-01 01:00:00+01": 0, "2000-01-01 05:30:15-05:30:15": 11*microsPerHour + 30*microsPerSecond,
		"infinity": math.MaxInt64, "-infinity": math.MinInt64, "0001-01-01 00:00:00 BC": -730485 * microsPerDay,
	} {
		if got, ok := parseTimestamp([]byte(text)); !ok || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "2000-01-01", "2000-02-30 00:00:00", "2000-01-01 25:00:00", "2000-01-01 00:00:00+1", "9999999-01-01 00:00:00", "2000-01-01 00:00:00 AD"} {
		if got, ok := parseTimestamp([]byte(text)); ok {
			t.Errorf("%q passes as %d", text, got)
		}
	}
	for _, text := range []string{"", "1 year 2", "1 fortnight", "year", "01:02", "99999999999 days", "00:00:00 1 day", "1  day"} {
		if got, ok := parseInterval([]byte(text)); ok {
			t.Errorf("%q passes as %v", text, got)
		}
	}
	for _, text := range []string{"", "-", ".5", "5.", "1e5", "1.2.3", "+1", "inf", "nan"} {
		if isNumeric([]byte(text)) {
			t.Errorf("%q passes as a numeric", text)
		}
	}
}

// benchmarkTable is the row of 7 columns that speeds are stated for.
func benchmarkTable() *schema.Table {
	t := &schema.Table{Key: []int{0}}
	for _, k := range []schema.Kind{schema.Int64, schema.Int32, schema.Text, schema.Numeric, schema.TimestampTZ, schema.Bool, schema.Text} {
		t.Columns = append(t.Columns, schema.Column{Name: "c", Type: schema.Type{Kind: k}})
	}
	return t
}

func BenchmarkDecodeRow(b *testing.B) {
	const rows = 10_000
	f := insertFrames(rows, []string{"1234567890", "42", "some text of a row", "12345.67", "2024-05-06 07:08:09.123456+00", "t", "and some more text, a little longer"})
	d := newRowDecoder(benchmarkTable(), memory.DefaultAllocator)
	b.SetBytes(int64(len(f.Data)))
	b.ReportAllocs()
	for b.Loop() {
		r, err := d.Decode(f)
		if err != nil {
			b.Fatal(err)
		}
		r.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
}

func BenchmarkDecodeCopy(b *testing.B) {
	const rows = 10_000
	values := [][]byte{
		binary.BigEndian.AppendUint64(nil, 1234567890), binary.BigEndian.AppendUint32(nil, 42), []byte("some text of a row"),
		{0, 3, 0, 1, 0, 0, 0, 2, 0, 1, 9, 41, 26, 44}, binary.BigEndian.AppendUint64(nil, 768_294_489_123_456), {1}, []byte("and some more text, a little longer"),
	}
	row := binary.BigEndian.AppendUint16(nil, 7)
	for _, v := range values {
		row = append(binary.BigEndian.AppendUint32(row, uint32(len(v))), v...)
	}
	d := newCopyDecoder(benchmarkTable(), make([]wireForm, 7), memory.DefaultAllocator)
	d.started = true
	b.SetBytes(int64(rows * len(row)))
	b.ReportAllocs()
	for b.Loop() {
		d.rows.reserve(rows)
		for range rows {
			if err := d.decode(row); err != nil {
				b.Fatal(err)
			}
		}
		d.take().Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
}

// insertFrames repeats one row as inserts of one transaction.
func insertFrames(rows int, values []string) *connector.Frames {
	f := &connector.Frames{Commits: []connector.Commit{{Rows: rows, Position: "p"}}}
	message := append([]byte{'I', 0, 0, 0, 1}, tuple('N', values...)...)
	for range rows {
		f.Data = appendMessage(f.Data, message)
	}
	return f
}
