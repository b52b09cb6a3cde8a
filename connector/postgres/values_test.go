package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// valueCase is a type with values that are known for trouble, as the text inside quotes, and an expression for random ones.
type valueCase struct {
	typ    string
	values []string
	random string
}

const randomText = `translate(substr(md5(random()::text), 1, (random() * 8)::int), '0123456789', E'",{}\\ ''😀é')`

var valueCases = []valueCase{
	{"bool", []string{"t", "f"}, "random() < 0.5"},
	{"int2", []string{"-32768", "32767", "0"}, "random() * 60000 - 30000"},
	{"int4", []string{"-2147483648", "2147483647"}, "random() * 4e9 - 2e9"},
	{"int8", []string{"-9223372036854775808", "9223372036854775807", "9007199254740993"}, "random() * 1.8e19 - 9e18"},
	{"oid", []string{"0", "4294967295"}, "(random() * 4e9)::int8"},
	{"float4", []string{"NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1"}, "exp(random() * 160 - 80)"},
	{"float8", []string{"NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"}, "exp(random() * 1400 - 700)"},
	{"numeric", []string{"NaN", "Infinity", "-Infinity", "0", "0.00", "-0.5", "1e-20", "1e130", "0.0001000", "10000", "99990000.00001", "-1234567890123456789012345678901234567890.10"},
		"round((random() * 1e6 - 5e5)::numeric * 10::numeric ^ (random() * 60 - 30)::int, (random() * 40)::int)"},
	{"numeric(10,2)", []string{"1.50", "NaN", "-0.01"}, "random() * 1e7"},
	{"text", []string{"", "NULL", "null", `a\b`, "😀", " ", "a\nb"}, randomText},
	{"varchar(9)", []string{"", "a "}, randomText},
	{"char(9)", []string{"", "a", "a  "}, randomText},
	{"name", []string{"", "x"}, randomText},
	{`"char"`, []string{"", "x"}, "chr(65 + (random() * 20)::int)"},
	{"public.citext", []string{"", "Aa"}, randomText},
	{"bytea", []string{"", `\x00ff5c`}, "decode(md5(random()::text), 'hex')"},
	{"date", []string{"infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-01-01", "0001-12-31 BC", "2000-02-29", "1900-03-01", "12345-01-01"},
		"'2000-01-01'::date + (random() * 4e6 - 2e6)::int"},
	{"time", []string{"00:00", "24:00:00", "23:59:59.999999", "12:00:00.5"}, "'00:00'::time + random() * interval '1 day'"},
	{"timestamp", []string{"infinity", "-infinity", "4714-11-24 00:00 BC", "294276-12-31 23:59:59.999999", "0001-01-01", "1999-12-31 23:59:59.999999"},
		"'2000-01-01'::timestamp + (random() - 0.02) * interval '290000 years' + random() * interval '1 day'"},
	{"timestamptz", []string{"infinity", "-infinity", "4714-11-24 00:00+00 BC", "294276-12-31 23:59:59.999999+00", "0044-03-15 12:00+00 BC"},
		"'2000-01-01'::timestamptz + (random() - 0.02) * interval '290000 years' + random() * interval '1 day'"},
	{"timestamptz(2)", []string{"2024-01-01 00:00:00.126+05:30"}, "now() + random() * interval '1 year'"},
	{"interval", []string{"0", "178000000 years", "-178000000 years", "1 year -2 mons", "-1 year 3 days", "1 mon -1 day +00:00:00.000001", "-00:00:01", "-5 days 04:00", "1 day -00:30"},
		"make_interval(years => (random() * 200 - 100)::int, months => (random() * 30 - 15)::int, days => (random() * 60 - 30)::int, secs => random() * 1e6 - 5e5)"},
	{"uuid", nil, "gen_random_uuid()"},
	{"json", []string{"null", `{"a":  1.0, "a": 2}`, `"a"`, "[]", " 7E+1"}, "json_build_object('k', random())"},
	{"jsonb", []string{"null", `{"b": 1.00, "a": 2}`, `"a"`, "[]"}, "jsonb_build_object('k', random())"},
	{"shop.mood", []string{"sad", "ok'ish"}, "(ARRAY['sad', 'it,s \"'])[1 + (random() + 0.01)::int]"},
	{"shop.price", []string{"1.50"}, "random() * 1000 + 1"},
	{"int4[]", []string{"{}", "{NULL}", "{1,NULL,-3}", "[0:1]={1,2}", "{{1,2},{3,4}}", "[0:1][-1:0]={{1,NULL},{3,4}}", "{{{{{{1}}}}}}", "[5:5]={7}"}, "ARRAY[(random() * 9)::int, NULL]"},
	{"text[]", []string{"{}", `{"a,b","q\"x","\\\\",NULL,"NULL",""," ","{}"}`, `[2:3]={a,"b c"}`}, "ARRAY[" + randomText + ", NULL, " + randomText + "]"},
	{"numeric[]", []string{"{NaN,1.50,-Infinity}"}, "ARRAY[round(random()::numeric, 7)]"},
	{"float8[]", []string{"{NaN,-0,1e-300}"}, "ARRAY[random()]"},
	{"bool[]", []string{"{t,f,NULL}"}, "ARRAY[random() < 0.5]"},
	{"date[]", []string{"{infinity,0044-03-15 BC}"}, "ARRAY[now()::date]"},
	{"timestamptz[]", []string{`{infinity,"2024-01-01 00:00:00.5+00"}`}, "ARRAY[now()]"},
	{"interval[]", []string{`{"1 year 2 mons","-00:00:01"}`}, "ARRAY[random() * interval '1 year']"},
	{"uuid[]", []string{"{}"}, "ARRAY[gen_random_uuid()]"},
	{"bytea[]", []string{`{"\\x00",""}`}, "ARRAY[decode(md5(random()::text), 'hex')]"},
	{"jsonb[]", []string{`{"{\"a\": \"b\"}",null,NULL}`}, "ARRAY[jsonb_build_object('k', random())]"},
	{"shop.mood[]", []string{`{sad,"ok'ish"}`}, "ARRAY['sad'::shop.mood]"},
	{"shop.price[]", []string{"{1.50,NULL}"}, "ARRAY[1 + random()]"},
	{"char(4)[]", []string{"{a,NULL}"}, "ARRAY['x']"},
	{"inet[]", []string{"{1.2.3.4,::1/64,NULL}"}, "ARRAY['10.0.0.0/8'::inet]"},
	{"shop.pair[]", []string{`{"(1,\"a,b\")",NULL}`}, "ARRAY[ROW(1, 'x')::shop.pair]"},
	{"shop.ints[]", []string{`{"{1,2}","{}","[0:0]={3}"}`}, "ARRAY['{1}'::shop.ints]"},
	{"box[]", []string{"{(2,2),(1,1);(4,4),(3,3)}"}, "ARRAY[box '((0,0),(1,1))']"},
	{"money", []string{"-12.34"}, "(random() * 1000)::numeric"},
	{"timetz", []string{"24:00:00-15:59:59"}, "now()"},
	{"bit(5)", []string{"10101"}, "B'00001'"},
	{"varbit", []string{"", "1"}, "B'00001'"},
	{"inet", []string{"1.2.3.4", "1.2.3.4/24", "::1"}, "'10.0.0.0/8'::inet + (random() * 1000)::int"},
	{"cidr", []string{"10.0.0.0/8"}, "'10.0.0.0/8'::cidr"},
	{"macaddr", []string{"08:00:2b:01:02:03"}, "'08:00:2b:01:02:03'::macaddr"},
	{"int4range", []string{"empty", "[1,5)", "(,)"}, "int4range(1, 2 + (random() * 9)::int)"},
	{"datemultirange", []string{"{}", "{[2020-01-01,2021-01-01),[2022-01-01,)}"}, "datemultirange(daterange(now()::date, NULL))"},
	{"shop.pair", []string{`(1,"a,b")`, "(,)"}, "ROW((random() * 9)::int, " + randomText + ")"},
	{"point", []string{"(0.1,-0)"}, "point(random(), random())"},
	{"polygon", []string{"((0,0),(1,1),(1,0))"}, "polygon '((0,0),(1,1),(1,0.5))'"},
	{"tsvector", []string{"a:1 'b c':2A"}, "to_tsvector('simple', " + randomText + ")"},
	{"xml", []string{`<?xml version="1.0" encoding="UTF-8"?><a>é</a>`, "x<b/>"}, "xmlelement(name a, random())"},
	{"pg_lsn", []string{"16/B374D848"}, "pg_current_wal_lsn()"},
	{"public.hstore", []string{`a=>"b c",d=>NULL`}, "public.hstore('k', random()::text)"},
	{"regclass", []string{"pg_class"}, "'pg_type'::regclass"},
	{"int2vector", []string{"1 2"}, "'3 4'"},
}

// laterValueCases are the cases that need a server of this version (server_version_num) or a later one.
var laterValueCases = map[int][]valueCase{
	150000: {
		{"interval", []string{"2562047788:00:54.775807", "-2562047788:00:54.775807"}, "interval '2562047787:00:00'"},
		{"numeric(3,-2)", []string{"99900", "-49", "NaN"}, "random() * 90000"},
	},
	170000: {
		{"interval(3)", []string{"infinity", "-infinity"}, "interval 'infinity'"},
		{"interval[]", []string{`{infinity,-infinity,"1 day"}`}, "ARRAY[interval '-infinity']"},
	},
}

// TestEveryTypeIsTheSameThroughCopyAndStream compares, for values of every type, what a copy gives with what the stream
// gives for the text that the server writes, and for kinds that are text, with that text itself.
func TestEveryTypeIsTheSameThroughCopyAndStream(t *testing.T) {
	src, url := openTestSource(t, `CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE SCHEMA shop;
		CREATE TYPE shop.mood AS ENUM ('sad', 'ok''ish', 'it,s "'); CREATE DOMAIN shop.price AS numeric CHECK (VALUE > 0);
		CREATE TYPE shop.pair AS (x int, y text); CREATE DOMAIN shop.ints AS int[]`)
	seed := rand.Float64()
	t.Logf("seed %v", seed)
	cases := valueCases
	for version, more := range laterValueCases {
		if testServer.Version(t) >= version {
			cases = slices.Concat(cases, more)
		}
	}
	for i, c := range cases {
		name := fmt.Sprintf("v%d", i)
		sql := fmt.Sprintf("CREATE TABLE %s (n int PRIMARY KEY, v %s); SELECT setseed(%v); INSERT INTO %[1]s VALUES (-1, NULL);", name, c.typ, seed)
		for j, v := range c.values {
			sql += fmt.Sprintf("INSERT INTO %s VALUES (%d, %s);", name, -2-j, quoteLiteral(v))
		}
		testdb.Exec(t, url, sql+fmt.Sprintf("INSERT INTO %s SELECT n, (%s)::%s FROM generate_series(1, 100) n", name, c.random, c.typ))
	}
	tables := discover(t, src)
	for i, c := range cases {
		t.Run(c.typ, func(t *testing.T) {
			table := tables[fmt.Sprintf("public.v%d", i)]
			copied := copyTable(t, src, table)
			texts := outputRows(t, src, table)
			streamed := decodeTexts(t, table, texts)
			if !array.RecordApproxEqual(copied, streamed, array.WithNaNsEqual(true), array.WithAbsTolerance(0)) {
				t.Fatalf("copied:   %v\nstreamed: %v", copied.Column(1), streamed.Column(1))
			}
			if int(copied.NumRows()) != len(texts) {
				t.Fatalf("%d rows, want %d", copied.NumRows(), len(texts))
			}
			checkAgainstText(t, table.Columns[1].Type, copied.Column(1), texts)
			checkAgainstText(t, table.Columns[1].Type, streamed.Column(1), texts)
		})
	}
}

// checkAgainstText compares values with the server's text where the two are the same by definition.
func checkAgainstText(t *testing.T, typ schema.Type, values arrow.Array, texts [][][]byte) {
	for i, row := range texts {
		if (row[1] == nil) != values.IsNull(i) {
			t.Errorf("row %d: null %v, the server says %q", i, values.IsNull(i), row[1])
			continue
		}
		if row[1] == nil {
			continue
		}
		got, want := "", string(row[1])
		switch v := values.(type) {
		case *array.String:
			got = v.Value(i)
		case *array.Binary:
			got = fmt.Sprintf(`\x%x`, v.Value(i))
		case *array.Int64:
			if typ.Kind != schema.Int64 {
				continue
			}
			got = fmt.Sprint(v.Value(i))
		case *array.Float64:
			if math.Signbit(v.Value(i)) != (want[0] == '-') {
				t.Errorf("row %d: the sign of %v is lost", i, want)
			}
			continue
		default:
			continue
		}
		if got != want {
			t.Errorf("row %d: %q, the server writes %q", i, got, want)
		}
	}
}

// copyTable reads a table whole through a Snapshot, in as many chunks as there are.
func copyTable(t testing.TB, src *Source, table *schema.Table) arrow.RecordBatch {
	t.Helper()
	snap := mustSnapshot(t, src, table)
	defer snap.Close()
	chunks, err := snap.Chunks(t.Context(), 1_000_000)
	if err != nil || len(chunks) != 1 {
		t.Fatalf("%d chunks, %v", len(chunks), err)
	}
	batches, err := readChunk(t, snap, chunks[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(batches) != 1 {
		t.Fatalf("%d batches", len(batches))
	}
	return batches[0]
}

func mustSnapshot(t testing.TB, src *Source, table *schema.Table) connector.Snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	snap, err := src.Snapshot(ctx, table)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func readChunk(t testing.TB, snap connector.Snapshot, c connector.Chunk) ([]arrow.RecordBatch, error) {
	t.Helper()
	r, err := snap.Read(t.Context(), c)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var batches []arrow.RecordBatch
	for {
		rows, err := r.Next(t.Context())
		if err == io.EOF {
			return batches, nil
		}
		if err != nil {
			return nil, err
		}
		batches = append(batches, rows.Values)
	}
}

// outputRows returns the text of all values under our session settings, as pgoutput sends it.
func outputRows(t testing.TB, src *Source, table *schema.Table) [][][]byte {
	t.Helper()
	conn, err := src.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	results, err := conn.Conn().PgConn().Exec(t.Context(), "SELECT * FROM "+quoteName(table.Name)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return results[0].Rows
}

// decodeTexts sends rows of text through the stream's decoder, as inserts of one transaction.
func decodeTexts(t testing.TB, table *schema.Table, rows [][][]byte) arrow.RecordBatch {
	t.Helper()
	f := &connector.Frames{Table: table, Commits: []connector.Commit{{Rows: len(rows), Position: "p", Time: time.Unix(0, 0)}}}
	for _, row := range rows {
		f.Data = appendMessage(f.Data, appendTuple([]byte{'I', 0, 0, 0, 1, 'N'}, row))
	}
	r, err := newRowDecoder(table, memory.DefaultAllocator).Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	if r.Ops != nil || r.Unsent != nil {
		t.Errorf("ops %v, unsent %v", r.Ops, r.Unsent)
	}
	return r.Values
}

func appendMessage(data, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32(data, uint32(len(message))), message...)
}

// appendTuple writes a TupleData; nil is NULL, unsentValue an unchanged value.
func appendTuple(out []byte, row [][]byte) []byte {
	out = binary.BigEndian.AppendUint16(out, uint16(len(row)))
	for _, v := range row {
		switch {
		case v == nil:
			out = append(out, cellNull)
		case len(v) == 1 && &v[0] == &unsentValue[0]:
			out = append(out, cellUnsent)
		default:
			out = append(out, cellText)
			out = binary.BigEndian.AppendUint32(out, uint32(len(v)))
			out = append(out, v...)
		}
	}
	return out
}

var unsentValue = []byte{0}
