package filter_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/postgres"
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

var testServer *testdb.Postgres

func TestMain(m *testing.M) { testdb.Main(m, &testServer) }

// column is a column of the oracle's table: values as SQL, and constants as a filter and as SQL write them.
type column struct {
	name, typ string
	values    []string
	constants [][2]string
	unordered bool
	text      bool
}

// same makes constants that both sides write alike, or that the filter writes in double quotes and SQL in single ones.
func same(constants ...string) [][2]string {
	var both [][2]string
	for _, c := range constants {
		sql := c
		if strings.HasPrefix(c, `"`) {
			sql = "'" + strings.Trim(c, `"`) + "'"
		}
		both = append(both, [2]string{c, sql})
	}
	return both
}

var columns = []column{
	{name: "b", typ: "bool", values: []string{"true", "false"}, constants: same("true", "false"), unordered: true},
	{name: "i2", typ: "int2", values: []string{"-32768", "-1", "0", "1", "7"}, constants: same("-1", "0", "1.5", "-0.5", "40000", "7")},
	{name: "i4", typ: "int4", values: []string{"-5", "0", "1", "2147483647"}, constants: same("0", "0.999", "1", "2147483647", "1e3", "99999999999999999999.5")},
	{name: "i8", typ: "int8", values: []string{"-9223372036854775808", "9223372036854775807", "9007199254740993", "1"}, constants: same("9223372036854775807", "9007199254740993", "9007199254740992.5", `"-9223372036854775808"`)},
	{name: "n", typ: "numeric", values: []string{"0.1", "0.10", "1.5", "-1.50", "100", "0", "'NaN'", "'Infinity'", "'-Infinity'", "123456789012345678901234567890.123456789"},
		constants: [][2]string{{"0.1", "0.1"}, {"1.50", "1.50"}, {"-1.5", "-1.5"}, {"1e2", "1e2"}, {`"NaN"`, "'NaN'::numeric"}, {`"Infinity"`, "'Infinity'::numeric"}, {`"123456789012345678901234567890.123456789"`, "123456789012345678901234567890.123456789"}, {"-0.0", "-0.0"}}},
	{name: "money2", typ: "numeric(12,2)", values: []string{"10.10", "0.3", "999999999.99"}, constants: same("10.1", "0.30", "0.1", "999999999.99")},
	{name: "f4", typ: "float4", values: []string{"0.1", "1.5", "'NaN'", "'Infinity'", "-0.0", "16777217"}, constants: [][2]string{{"0.1", "0.1"}, {"1.5", "1.5"}, {"0", "0"}, {`"NaN"`, "'NaN'::float8"}, {"16777217", "16777217"}}},
	{name: "f8", typ: "float8", values: []string{"0.1", "0.30000000000000004", "1e300", "'NaN'", "'-Infinity'", "0"}, constants: [][2]string{{"0.1", "0.1"}, {"0.3", "0.3"}, {"1e300", "1e300"}, {`"Infinity"`, "'Infinity'::float8"}, {"0.30000000000000004", "0.30000000000000004"}}},
	{name: "t", typ: `text COLLATE "C"`, values: []string{"''", "'a'", "'A'", "'ab'", "'b '", "'ä'", "'z'", "'NULL'"}, constants: same(`""`, `"a"`, `"ab"`, `"B"`, `"ä"`, `"b"`), text: true},
	{name: "v", typ: `varchar(5) COLLATE "C"`, values: []string{"'a'", "'ab'", "'ab '"}, constants: same(`"ab"`, `"ab "`), text: true},
	{name: "c", typ: `char(5) COLLATE "C"`, values: []string{"'a'", "'ab'", "'b'"}, constants: same(`"a"`, `"ab"`), text: true},
	{name: "e", typ: "mood", values: []string{"'sad'", "'ok'", "'happy'"}, constants: same(`"sad"`, `"happy"`), unordered: true},
	{name: "y", typ: "bytea", values: []string{`'\x'`, `'\x00'`, `'\x00ff'`, `'\xff'`}, constants: [][2]string{{`"\\x00"`, `'\x00'`}, {`"\\xff"`, `'\xff'`}, {`b"\x00\xff"`, `'\x00ff'`}}},
	{name: "u", typ: "uuid", values: []string{"'00000000-0000-0000-0000-000000000001'", "'ffffffff-0000-0000-0000-000000000001'"}, constants: same(`"00000000-0000-0000-0000-000000000001"`, `"80000000-0000-0000-0000-000000000000"`)},
	{name: "d", typ: "date", values: []string{"'2024-02-29'", "'1999-12-31'", "'infinity'", "'-infinity'", "'0044-03-15 BC'"}, constants: same(`"2024-02-29"`, `"0001-01-01"`, `"infinity"`, `"1999-12-31"`)},
	{name: "ti", typ: "time", values: []string{"'00:00'", "'12:30:00.000001'", "'24:00'"}, constants: same(`"12:30"`, `"24:00:00"`, `"12:30:00.000001"`)},
	{name: "ts", typ: "timestamp", values: []string{"'2024-02-29 12:00'", "'1900-01-01'", "'1969-12-31 23:59:59.999999'", "'infinity'"}, constants: same(`"2024-02-29"`, `"2024-02-29 12:00:00"`, `"1969-12-31T23:59:59.999999"`, `"-infinity"`)},
	{name: "tz", typ: "timestamptz", values: []string{"'2024-02-29 12:00+00'", "'1900-01-01+00'", "'-infinity'"}, constants: same(`"2024-02-29 14:00:00+02:00"`, `"2024-02-29T12:00:00.000001Z"`, `"1900-01-01 00:00:00+00"`)},
	{name: "ia", typ: "int[]", values: []string{"'{}'", "'{1,2}'", "'{1,NULL}'", "'{NULL}'", "'{{1,2},{3,4}}'"}},
	{name: "ta", typ: "text[]", values: []string{"'{}'", "'{a,b}'", "'{NULL,b}'"}},
	{name: "j", typ: "jsonb", values: []string{`'{"a":{"b":"x"},"l":[1,"two",null]}'`, `'{"a":{"b":null}}'`, `'{"a":1.50}'`, `'null'`, `'[]'`, `'{"a":{"b":"\u00e4\n"}}'`, `'{"a":{"b":{"c": [1, 2]}}}'`}},
	{name: "js", typ: "json", values: []string{`'{"a":1, "a":{"b":"last"}}'`, `'{ "a" : { "b" : 1.0e1 } }'`, `'7'`}},
}

var comparisons = [][2]string{{"==", "="}, {"!=", "<>"}, {"<", "<"}, {"<=", "<="}, {">", ">"}, {">=", ">="}}

// special are conditions of the types that are not compared.
var special = [][2]string{
	{`1 in ia`, `1 = ANY (ia)`}, {`4 in ia`, `4 = ANY (ia)`}, {`"b" in ta`, `'b' = ANY (ta)`}, {`"a" not in ta`, `NOT 'a' = ANY (ta)`},
	{`j.a.b == "x"`, `j #>> '{a,b}' = 'x'`}, {`j["a"].b != nil`, `j #>> '{a,b}' IS NOT NULL`}, {`j.l[1] == "two"`, `j #>> '{l,1}' = 'two'`},
	{`j.a == "1.50"`, `j #>> '{a}' = '1.50'`}, {`j.a.b contains "c"`, `j #>> '{a,b}' LIKE '%c%'`}, {`j == nil`, `j IS NULL`},
	{`j.a.b in ["x", "ä\n"]`, `j #>> '{a,b}' IN ('x', E'ä\n')`}, {`j.l[2] == nil`, `j #>> '{l,2}' IS NULL`},
	{`js.a.b == "last"`, `js #>> '{a,b}' = 'last'`}, {`js.a.b >= "1"`, `(js #>> '{a,b}') COLLATE "C" >= '1'`},
	{`i4 < i8`, `i4 < i8`}, {`i8 == f8`, `i8 = f8`}, {`n >= i8`, `n >= i8`}, {`n < f8`, `n < f8`}, {`money2 == n`, `money2 = n`}, {`f4 <= f8`, `f4 <= f8`},
	{`i2 != f4`, `i2 <> f4`}, {`t == v`, `t = v`}, {`c == t`, `c = t`}, {`t <= j.a.b`, `t <= (j #>> '{a,b}') COLLATE "C"`}, {`e == e`, `e = e`}, {`0.1 <= n`, `0.1 <= n`},
	{`true`, `true`}, {`b`, `b`}, {`not b`, `NOT b`}, {`1 <= i4 <= 5`, `1 <= i4 AND i4 <= 5`}, {`$env["t"] == "a"`, `t = 'a'`},
}

// draw returns a condition as a filter and as SQL write it.
func draw(t *rapid.T, depth int) (expression, sql string) {
	shape := rapid.IntRange(0, 9).Draw(t, "shape")
	if depth > 0 && shape < 5 {
		a, sa := draw(t, depth-1)
		if shape == 0 {
			return "not (" + a + ")", "NOT (" + sa + ")"
		}
		b, sb := draw(t, depth-1)
		op := rapid.SampledFrom([][2]string{{"and", "AND"}, {"&&", "AND"}, {"or", "OR"}, {"||", "OR"}}).Draw(t, "op")
		return "(" + a + " " + op[0] + " " + b + ")", "(" + sa + " " + op[1] + " " + sb + ")"
	}
	if shape == 9 {
		s := rapid.SampledFrom(special).Draw(t, "special")
		return s[0], s[1]
	}
	c := rapid.SampledFrom(columns).Draw(t, "column")
	if shape == 8 || c.constants == nil {
		if rapid.Bool().Draw(t, "is null") {
			return c.name + " == nil", c.name + " IS NULL"
		}
		return c.name + " != nil", c.name + " IS NOT NULL"
	}
	if c.text && shape == 7 {
		constant := rapid.SampledFrom([]string{"a", "b", "ä"}).Draw(t, "part")
		f := rapid.SampledFrom([][3]string{{"contains", "%", "%"}, {"startsWith", "", "%"}, {"endsWith", "%", ""}}).Draw(t, "text test")
		return fmt.Sprintf("%s %s %q", c.name, f[0], constant), fmt.Sprintf("%s::text LIKE '%s%s%s'", c.name, f[1], constant, f[2])
	}
	constant := func() [2]string { return rapid.SampledFrom(c.constants).Draw(t, "constant") }
	if shape == 6 {
		x, y := constant(), constant()
		return fmt.Sprintf("%s in [%s, %s]", c.name, x[0], y[0]), fmt.Sprintf("%s IN (%s, %s)", c.name, x[1], y[1])
	}
	ops := comparisons
	if c.unordered {
		ops = comparisons[:2]
	}
	op, x := rapid.SampledFrom(ops).Draw(t, "comparison"), constant()
	return c.name + " " + op[0] + " " + x[0], c.name + " " + op[1] + " " + x[1]
}

// oracle is a table of random rows at a server, and the same rows read by us.
type oracle struct {
	url   string
	table *schema.Table
	rows  []*connector.Rows
}

func newOracle(t *testing.T, rows int) *oracle {
	url := testServer.Database(t)
	declared := []string{"id int PRIMARY KEY"}
	values := []string{"i"}
	for _, c := range columns {
		declared = append(declared, c.name+" "+c.typ)
		quoted := make([]string, len(c.values))
		typ, _, _ := strings.Cut(c.typ, " COLLATE")
		for i, v := range c.values {
			quoted[i] = "(" + v + ")::" + typ
		}
		values = append(values, fmt.Sprintf("(ARRAY[%s, NULL::%s])[1 + floor(random() * %d)::int + 0 * i]", strings.Join(quoted, ", "), typ, len(quoted)+1))
		if strings.HasSuffix(c.typ, "[]") { // an array of arrays would be one array
			choice := make([]string, len(quoted))
			for i, v := range quoted {
				choice[i] = fmt.Sprintf("WHEN %d THEN %s", i, v)
			}
			values[len(values)-1] = fmt.Sprintf("CASE floor(random() * %d + 0 * i)::int %s END", len(quoted)+1, strings.Join(choice, " "))
		}
	}
	testdb.Exec(t, url, "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy'); CREATE TABLE t ("+strings.Join(declared, ", ")+
		"); SELECT setseed(0.5); INSERT INTO t SELECT "+strings.Join(values, ", ")+fmt.Sprintf(" FROM generate_series(1, %d) i", rows))
	source, err := postgres.OpenSource(t.Context(), &postgres.Config{URL: url, Connections: 4}, connector.Env{Mirror: "m", Alloc: memory.DefaultAllocator})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	tables, err := source.Tables(t.Context())
	if err != nil || len(tables) != 1 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	o := &oracle{url: url, table: tables[0]}
	snap, err := source.Snapshot(t.Context(), o.table)
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	chunks, err := snap.Chunks(t.Context(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chunks {
		reader, err := snap.Read(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for {
			r, err := reader.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			o.rows = append(o.rows, r)
		}
		reader.Close()
	}
	return o
}

// in returns the ids of the rows that a filter takes.
func (o *oracle) in(expression string) ([]int, error) {
	f, err := filter.Compile(expression, o.table)
	if err != nil {
		return nil, err
	}
	var ids []int
	for _, r := range o.rows {
		for i, v := range f.Judge(r) {
			if v == filter.In {
				ids = append(ids, int(r.Values.Column(0).(*array.Int32).Value(i)))
			}
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func TestFilterTakesTheRowsThatTheServersConditionTakes(t *testing.T) {
	o := newOracle(t, 200)
	check := func(t interface{ Fatalf(string, ...any) }, expression, sql string) {
		got, err := o.in(expression)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		rows, err := testdb.TryQuery(o.url, "SELECT id FROM t WHERE "+sql+" ORDER BY id")
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		var want []int
		for _, r := range rows {
			id, err := strconv.Atoi(r[0])
			if err != nil {
				t.Fatalf("%v", err)
			}
			want = append(want, id)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s takes %v\n%s takes %v", expression, got, sql, want)
		}
	}
	for _, s := range special {
		check(t, s[0], s[1])
	}
	for _, c := range columns {
		for _, constant := range c.constants {
			for n, op := range comparisons {
				if !c.unordered || n < 2 {
					check(t, c.name+op[0]+constant[0], c.name+op[1]+constant[1])
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		expression, sql := draw(t, 3)
		check(t, expression, sql)
	})
}

func BenchmarkJudge(b *testing.B) {
	const n = 16_000
	table := &schema.Table{Columns: []schema.Column{
		{Name: "id", Type: schema.Type{Kind: schema.Int64}}, {Name: "status", Type: schema.Type{Kind: schema.Text}}, {Name: "total", Type: schema.Type{Kind: schema.Numeric}},
	}}
	builder := array.NewRecordBuilder(memory.DefaultAllocator, table.Arrow())
	for i := range n {
		builder.Field(0).(*array.Int64Builder).Append(int64(i))
		builder.Field(1).(*array.StringBuilder).Append([]string{"open", "paid", "closed"}[i%3])
		builder.Field(2).(*array.StringBuilder).Append(fmt.Sprintf("%d.%02d", i, i%100))
	}
	rows := &connector.Rows{Table: table, Values: builder.NewRecordBatch()}
	for _, expression := range []string{`id > 5000`, `total >= 1000.50`, `status in ["open", "paid"] and total >= 1000.50 and not (id < 10)`} {
		b.Run(expression, func(b *testing.B) {
			f, err := filter.Compile(expression, table)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				f.Judge(rows)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
		})
	}
}
