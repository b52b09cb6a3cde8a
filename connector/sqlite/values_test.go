package sqlite_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/testdb"
)

// valueCase is a type with values that are known for trouble, as the text inside quotes, and an expression for random ones.
type valueCase struct {
	typ, stored string
	values      []string
	random      string
}

const (
	randomText = `translate(substr(md5(random()::text), 1, (random() * 8)::int), '0123456789', E'",{}\\\n\t''😀é')`
	anyDay     = "(random() - 0.02) * interval '290000 years' + random() * interval '1 day'"
)

var valueCases = []valueCase{
	{"bool", "integer", []string{"t", "f"}, "random() < 0.5"},
	{"int2", "integer", []string{"-32768", "32767", "0"}, "random() * 60000 - 30000"},
	{"int4", "integer", []string{"-2147483648", "2147483647"}, "random() * 4e9 - 2e9"},
	{"int8", "integer", []string{"-9223372036854775808", "9223372036854775807", "9007199254740993"}, "random() * 1.8e19 - 9e18"},
	{"oid", "integer", []string{"0", "4294967295"}, "(random() * 4e9)::int8"},
	{"float4", "real", []string{"Infinity", "-Infinity", "1e-45", "3.4028235e38", "0.1", "0"}, "exp(random() * 160 - 80)"},
	{"float8", "real", []string{"Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "0.1", "1e15"}, "exp(random() * 1400 - 700)"},
	{"numeric", "text", []string{"NaN", "Infinity", "-Infinity", "0", "0.00", "-0.5", "1e-20", "1e130", "10000", "99990000.00001", "-1234567890123456789012345678901234567890.10"},
		"round((random() * 1e6 - 5e5)::numeric * 10::numeric ^ (random() * 60 - 30)::int, (random() * 40)::int)"},
	{"numeric(10,2)", "text", []string{"1.50", "NaN", "-0.01"}, "random() * 1e7"},
	{"text", "text", []string{"", "NULL", `a\b`, "😀", " ", "a\nb\t\x01\x7f"}, randomText},
	{"char(9)", "text", []string{"", "a", "a  "}, randomText},
	{"bytea", "blob", []string{"", `\x00ff5c`}, "decode(md5(random()::text), 'hex')"},
	{"date", "text", []string{"infinity", "-infinity", "4714-11-24 BC", "5874897-12-31", "0001-01-01", "0001-12-31 BC", "2000-02-29", "1900-03-01", "12345-01-01", "0099-12-31", "0999-12-31"},
		"'2000-01-01'::date + (random() * 4e6 - 2e6)::int"},
	{"time", "text", []string{"00:00", "24:00:00", "23:59:59.999999", "12:00:00.5", "00:00:00.000010"}, "'00:00'::time + random() * interval '1 day'"},
	{"timestamp", "text", []string{"infinity", "-infinity", "4714-11-24 00:00 BC", "294276-12-31 23:59:59.999999", "0001-01-01", "1999-12-31 23:59:59.999999"}, "'2000-01-01'::timestamp + " + anyDay},
	{"timestamptz", "text", []string{"infinity", "-infinity", "4714-11-24 00:00+00 BC", "294276-12-31 23:59:59.999999+00", "0044-03-15 12:00+00 BC"}, "'2000-01-01'::timestamptz + " + anyDay},
	{"timestamptz(2)", "text", []string{"2024-01-01 00:00:00.126+05:30"}, "now() + random() * interval '1 year'"},
	{"interval", "text", []string{"0", "178000000 years", "-178000000 years", "1 year -2 mons", "-1 year 3 days", "1 mon -1 day +00:00:00.000001", "2562047788:00:54.775807", "-2562047788:00:54.775807", "-00:00:01", "-5 days 04:00", "1 day -00:30", "-1 mons 1 day", "1 year 1 mon 1 day"},
		"make_interval(years => (random() * 4 - 2)::int, months => (random() * 30 - 15)::int, days => (random() * 6 - 3)::int, secs => round(random()) * (random() * 1e6 - 5e5))"},
	{"uuid", "text", nil, "gen_random_uuid()"},
	{"json", "text", []string{"null", `{"a":  1.0, "a": 2}`, `"a"`, "[]", " 7E+1"}, "json_build_object('k', random())"},
	{"jsonb", "text", []string{"null", `"é"`, "{}"}, "jsonb_build_object('k', random())"},
	{"mood", "text", []string{"sad", "ok'ish"}, "(ARRAY['sad', 'it,s \"'])[1 + (random() * 1)::int]::mood"},
	{"price", "text", []string{"1.50"}, "1 + random()"},
	{"pair", "text", []string{`(1,"a,b")`, "(,)"}, "ROW((random() * 9)::int, " + randomText + ")::pair"},
	{"timetz", "text", []string{"24:00:00-15:59:59"}, "now()"},
	{"inet", "text", []string{"1.2.3.4", "1.2.3.4/24", "::1"}, "'10.0.0.0/8'::inet + (random() * 1000)::int"},
	{"int4range", "text", []string{"empty", "[1,5)", "(,)"}, "int4range(1, 2 + (random() * 9)::int)"},
	{"point", "text", []string{"(0.1,-0)"}, "point(random(), random())"},
	{"bit(5)", "text", []string{"10101"}, "B'00001'"},
	{"int4[]", "array", []string{"{}", "{1,NULL}", "{{1,2},{3,NULL}}", "{{{1},{2}},{{3},{4}}}", "[0:1]={7,8}", "[-1:0][1:1]={{7},{8}}"}, "ARRAY[(random() * 9)::int, NULL]"},
	{"bool[]", "array", []string{"{t,f,NULL}"}, "ARRAY[random() < 0.5]"},
	{"int8[]", "array", []string{"{9223372036854775807,9007199254740993}"}, "ARRAY[1]"},
	{"float8[]", "array", []string{"{NaN,Infinity,-Infinity,-0,1e300,5e-324}"}, "ARRAY[random()]"},
	{"float4[]", "array", []string{"{NaN,0.1,1e-45}"}, "ARRAY[random()]"},
	{"numeric[]", "array", []string{"{1.50,NaN,NULL,Infinity}"}, "ARRAY[random()::numeric]"},
	{"text[]", "array", []string{`{"",NULL,"NULL","a\"b\\c"}`, `{{"{",","}}`}, "ARRAY[" + randomText + ", " + randomText + "]"},
	{"bytea[]", "array", []string{`{"\\x00",""}`}, "ARRAY[decode(md5(random()::text), 'hex')]"},
	{"date[]", "array", []string{"{infinity,2020-02-29,0044-03-15 BC}"}, "ARRAY[now()::date]"},
	{"timestamptz[]", "array", []string{`{infinity,"2024-01-01 00:00:00.5+00"}`}, "ARRAY[now()]"},
	{"interval[]", "array", []string{`{"1 year 2 mons","-00:00:01"}`}, "ARRAY[random() * interval '1 year']"},
	{"uuid[]", "array", []string{"{}"}, "ARRAY[gen_random_uuid()]"},
	{"jsonb[]", "array", []string{`{"{\"a\": \"b\"}",null,NULL}`}, "ARRAY[jsonb_build_object('k', random())]"},
	{"mood[]", "array", []string{`{sad,"ok'ish"}`}, "ARRAY['sad'::mood]"},
	{"char(4)[]", "array", []string{"{a,NULL}"}, "ARRAY['x']"},
	{"pair[]", "array", []string{`{"(1,\"a,b\")",NULL}`}, "ARRAY[ROW(1, 'x')::pair]"},
}

// streamed is added to a row's number for the row with the same value that comes through the stream.
const streamed = 1_000_000

// TestEveryValueIsStoredAsTheServerWritesIt compares what a copy and the stream store, for values of every type, with the
// text that the server prints.
func TestEveryValueIsStoredAsTheServerWritesIt(t *testing.T) {
	m := newMirrored(t, "")
	seed := rand.Float64()
	t.Logf("seed %v", seed)
	var sql strings.Builder
	fmt.Fprintf(&sql, `CREATE TYPE mood AS ENUM ('sad', 'ok''ish', 'it,s "'); CREATE DOMAIN price AS numeric CHECK (VALUE > 0);
		CREATE TYPE pair AS (x int, y text); SELECT setseed(%v);`, seed)
	for i, c := range valueCases {
		fmt.Fprintf(&sql, "CREATE TABLE v%d (n int PRIMARY KEY, v %s); INSERT INTO v%[1]d VALUES (0, NULL);", i, c.typ)
		for j, v := range c.values {
			fmt.Fprintf(&sql, "INSERT INTO v%d VALUES (%d, E'%s');", i, j+1, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v))
		}
		fmt.Fprintf(&sql, "INSERT INTO v%d SELECT 100 + n, (%s)::%s FROM generate_series(1, 60) n;", i, c.random, c.typ)
	}
	testdb.Exec(t, m.source, sql.String())
	m.once()
	sql.Reset()
	for i := range valueCases {
		fmt.Fprintf(&sql, "INSERT INTO v%d SELECT n + %d, v FROM v%[1]d;", i, streamed)
	}
	testdb.Exec(t, m.source, sql.String())
	m.once()
	for i, c := range valueCases {
		t.Run(c.typ, func(t *testing.T) { m.checkValues(t, fmt.Sprintf("v%d", i), c) })
	}
}

// storedValue is a value as the file holds it: its storage class, and its text.
type storedValue struct{ class, text string }

func (m *mirrored) checkValues(t *testing.T, table string, c valueCase) {
	stored := map[string]storedValue{}
	conn, err := sqlite.OpenConn(m.path, sqlite.OpenReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = sqlitex.ExecuteTransient(conn, "SELECT n, typeof(v), v FROM "+table, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		v := storedValue{s.ColumnText(1), s.ColumnText(2)}
		if v.class == "real" {
			v.text = strconv.FormatFloat(s.ColumnFloat(2), 'g', -1, 64)
		}
		stored[s.ColumnText(0)] = v
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	// The elements of an array, each as its output function writes it; format() does not trim as a cast to text would.
	more := "''"
	if c.stored == "array" {
		more = "coalesce(array_dims(v), '') || ' ' || (SELECT coalesce(json_agg(CASE WHEN e IS NOT NULL THEN format('%s', e) END), '[]') FROM unnest(v) e)"
	}
	want := testdb.Query(t, m.source, "SELECT n, v, "+more+" FROM "+table+" ORDER BY n")
	if len(want) != len(stored) || len(want) < 100 {
		t.Fatalf("%d rows at the source, %d in the file", len(want), len(stored))
	}
	for _, row := range want {
		if err := checkValue(c, stored[row[0]], row[1], row[2]); err != nil {
			t.Errorf("row %s: %v", row[0], err)
		}
	}
}

func checkValue(c valueCase, got storedValue, text, elements string) error {
	want := storedValue{c.stored, text}
	switch {
	case text == "∅":
		want = storedValue{"null", ""}
	case c.stored == "array":
		want = storedValue{"text", ""}
		if err := checkArray(c, got.text, elements); err != nil {
			return fmt.Errorf("%w: %s for %s", err, got.text, text)
		}
		got.text = ""
	case c.typ == "bool":
		want.text = map[string]string{"t": "1", "f": "0"}[text]
	case c.stored == "real":
		want.text = normalFloat(c.typ, text)
	case c.stored == "blob":
		raw, err := hex.DecodeString(strings.TrimPrefix(text, `\x`))
		if err != nil {
			return err
		}
		want.text = string(raw)
	}
	if got != want {
		return fmt.Errorf("%s %q in the file, want %s %q", got.class, got.text, want.class, want.text)
	}
	return nil
}

// normalFloat gives equal floats one text.
func normalFloat(typ, text string) string {
	bits := 64
	if strings.HasPrefix(typ, "float4") {
		bits = 32
	}
	v, err := strconv.ParseFloat(text, bits)
	if err != nil {
		return text
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// checkArray compares the JSON of an array with its dimensions and elements.
func checkArray(c valueCase, got, elements string) error {
	dims, list, _ := strings.Cut(elements, " ")
	var want []*string
	if err := json.Unmarshal([]byte(list), &want); err != nil {
		return err
	}
	values := json.RawMessage(got)
	lower := strings.ReplaceAll(dims, "[1:", "[")
	if strings.Contains(lower, ":") {
		var object struct {
			Lower  []int
			Values json.RawMessage
		}
		if err := json.Unmarshal(values, &object); err != nil {
			return err
		}
		var bounds []int
		for part := range strings.SplitSeq(strings.Trim(dims, "[]"), "][") {
			low, _, _ := strings.Cut(part, ":")
			n, err := strconv.Atoi(low)
			if err != nil {
				return err
			}
			bounds = append(bounds, n)
		}
		if fmt.Sprint(object.Lower) != fmt.Sprint(bounds) {
			return fmt.Errorf("lower bounds %v, want %v", object.Lower, bounds)
		}
		values = object.Values
	}
	flat, shape, err := flatten(values)
	if err != nil {
		return err
	}
	if depth := strings.Count(dims, "["); shape != depth && len(want) > 0 {
		return fmt.Errorf("%d dimensions, want %d", shape, depth)
	}
	if len(flat) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(flat), len(want))
	}
	for i, e := range flat {
		expected := "null"
		if want[i] != nil {
			expected = elementJSON(c.typ, *want[i])
		}
		if strings.HasPrefix(c.typ, "float") && !strings.Contains(e, `"`) && e != "null" {
			e = normalFloat(c.typ, e)
		}
		if e != expected {
			return fmt.Errorf("element %d is %s, want %s", i, e, expected)
		}
	}
	return nil
}

// flatten returns the elements of nested JSON arrays, in their own text, and the depth of the first.
func flatten(raw json.RawMessage) (flat []string, depth int, err error) {
	if !bytes.HasPrefix(raw, []byte("[")) {
		var text string
		if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
			quoted, err := json.Marshal(text)
			return []string{string(quoted)}, 0, err
		}
		return []string{string(raw)}, 0, nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, 0, err
	}
	for _, item := range items {
		inner, below, err := flatten(item)
		if err != nil {
			return nil, 0, err
		}
		flat, depth = append(flat, inner...), below
	}
	return flat, depth + 1, nil
}

// elementJSON is the JSON of an element that the server writes as text.
func elementJSON(typ, text string) string {
	switch {
	case typ == "bool[]":
		return map[string]string{"t": "true", "f": "false"}[text]
	case strings.HasPrefix(typ, "int4"), strings.HasPrefix(typ, "int8"):
		return text
	case strings.HasPrefix(typ, "float") && !strings.Contains(text, "Na") && !strings.Contains(text, "In"):
		return normalFloat(typ, text)
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return err.Error()
	}
	return string(quoted)
}
