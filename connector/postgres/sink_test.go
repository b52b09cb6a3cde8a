package postgres

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// null and unsent stand for a value in testRow.
const (
	null   = "∅"
	unsent = "~"
)

// testRow is a row as text: values as the server writes them, joined by "|".
type testRow struct {
	op     connector.Op
	values string
}

func kind(k schema.Kind, native string) schema.Type { return schema.Type{Kind: k, Native: native} }

// testTable makes a table with the first column as its key; columns are a name and a type by turns.
func testTable(name string, columns ...schema.Column) *schema.Table {
	t := &schema.Table{ID: "1", Version: 1, Name: schema.Name{Schema: "public", Table: name}, Columns: columns, Key: []int{0}}
	for i := range t.Columns {
		t.Columns[i].Number = int32(i + 1)
	}
	return t
}

func column(name string, k schema.Kind, native string) schema.Column {
	return schema.Column{Name: name, Type: kind(k, native)}
}

// plain is the table of most tests: id, a, b.
func plain(name string) *schema.Table {
	return testTable(name, column("id", schema.Int32, "integer"), column("a", schema.Text, "text"), column("b", schema.Text, "text"))
}

// testRows builds rows from text.
func testRows(t testing.TB, table *schema.Table, distinct bool, rows ...testRow) *connector.Rows {
	t.Helper()
	b := array.NewRecordBuilder(memory.DefaultAllocator, table.Arrow())
	defer b.Release()
	r := &connector.Rows{Table: table, Distinct: distinct, Unsent: make([][]byte, len(table.Columns))}
	decode := make([]func([]byte) error, len(table.Columns))
	for c := range table.Columns {
		decode[c] = newColumnDecoder(table.Columns[c].Type, wireText, b.Field(c))
	}
	for i, row := range rows {
		r.Ops = append(r.Ops, row.op)
		values := strings.Split(row.values, "|")
		for c := range table.Columns {
			v := null
			if c < len(values) {
				v = values[c]
			}
			switch v {
			case unsent:
				if r.Unsent[c] == nil {
					r.Unsent[c] = make([]byte, (len(rows)+7)/8)
				}
				bitutil.SetBit(r.Unsent[c], i)
				b.Field(c).AppendNull()
			case null:
				b.Field(c).AppendNull()
			default:
				if err := decode[c]([]byte(v)); err != nil {
					t.Fatalf("value %q of column %d: %v", v, c, err)
				}
			}
		}
	}
	r.Values = b.NewRecordBatch()
	t.Cleanup(r.Release)
	return r
}

func inserts(values ...string) []testRow {
	rows := make([]testRow, len(values))
	for i, v := range values {
		rows[i] = testRow{connector.Insert, v}
	}
	return rows
}

// openTestSink claims the mirror "m".
func openTestSink(t testing.TB, url string) *Sink {
	t.Helper()
	s, err := OpenSink(t.Context(), &Config{URL: url, Connections: 4}, connector.Env{Mirror: "m"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.Claim(t.Context(), "m", ""); err != nil {
		t.Fatal(err)
	}
	return s
}

func plan(t testing.TB, s *Sink, want connector.Target) *connector.Target {
	t.Helper()
	if want.Name.Table == "" {
		want.Name = want.Table.Name
	}
	target, err := s.Plan(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func begin(t testing.TB, s *Sink) *tx {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	x, err := s.begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Rollback() })
	return x
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t testing.TB, err error, k connector.Kind) *connector.Error {
	t.Helper()
	e, ok := errors.AsType[*connector.Error](err)
	if !ok || e.Kind != k {
		t.Fatalf("error %v, want kind %s", err, k)
	}
	return e
}

// stored makes a copy of a table with rows and puts it in place.
func stored(t testing.TB, s *Sink, want connector.Target, rows ...testRow) *connector.Target {
	t.Helper()
	target := plan(t, s, want)
	target.Copy++
	load(t, s, target, rows...)
	must(t, s.Ready(t.Context(), target, nil))
	return target
}

func load(t testing.TB, s *Sink, target *connector.Target, rows ...testRow) {
	t.Helper()
	must(t, s.Create(t.Context(), target))
	x := begin(t, s)
	must(t, x.Load(t.Context(), target, testRows(t, target.Table, false, rows...)))
	must(t, x.Commit(t.Context(), nil))
}

// write applies one batch in one transaction.
func write(t testing.TB, s *Sink, target *connector.Target, distinct bool, rows ...testRow) error {
	t.Helper()
	x := begin(t, s)
	if err := x.Write(t.Context(), target, testRows(t, target.Table, distinct, rows...)); err != nil {
		must(t, x.Rollback())
		return err
	}
	return x.Commit(t.Context(), nil)
}

func wantRows(t testing.TB, url, sql, want string) {
	t.Helper()
	if got := testdb.QueryText(t, url, sql); got != want {
		t.Errorf("%s:\n%s\nwant\n%s", sql, got, want)
	}
}

func TestClaimKeepsEntriesAndIdentity(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	must(t, begin(t, s).Commit(t.Context(), map[string]string{"a": "1", "b": "2"}))
	must(t, begin(t, s).Commit(t.Context(), map[string]string{"a": "3", "b": "", "c": `q"\,{}`}))
	first := s.claim.id

	again, err := s.Claim(t.Context(), "m", "")
	must(t, err)
	if again.New || again.ID != first || fmt.Sprint(again.Entries) != `map[a:3 c:q"\,{}]` {
		t.Errorf("second claim = %+v, first id %s", again, first)
	}
	_, err = s.Claim(t.Context(), "m", "another")
	wantKind(t, err, connector.Setup)
	wantRows(t, url, "SELECT epoch FROM sluice.mirror", "2")
	other, err := s.Claim(t.Context(), "n", "given")
	must(t, err)
	if !other.New || other.ID != "given" || len(other.Entries) != 0 {
		t.Errorf("claim of another mirror = %+v", other)
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, "UPDATE sluice.mirror SET format = 2")
	_, err := s.Claim(t.Context(), "m", "")
	wantKind(t, err, connector.Setup)
	wantRows(t, url, "SELECT epoch FROM sluice.mirror", "1")
}

func TestMissingRightsNameTheGrant(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, "DO $$ BEGIN CREATE ROLE weak LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
	s, err := OpenSink(t.Context(), &Config{URL: strings.Replace(url, "postgres@", "weak@", 1), Connections: 2}, connector.Env{Mirror: "m"})
	must(t, err)
	defer s.Close()
	_, err = s.Claim(t.Context(), "m", "")
	if e := wantKind(t, err, connector.Setup); !strings.Contains(e.Hint, "GRANT CREATE ON DATABASE") || !strings.Contains(e.Hint, `"weak"`) {
		t.Errorf("hint %q", e.Hint)
	}
}

func TestSecondClaimFencesTheFirst(t *testing.T) {
	url := testServer.Database(t)
	first := openTestSink(t, url)
	target := stored(t, first, connector.Target{Table: plain("t")})
	second := openTestSink(t, url)
	wantKind(t, begin(t, first).Commit(t.Context(), map[string]string{"a": "1"}), connector.Fenced)
	wantKind(t, write(t, first, target, true, inserts("1|x|y")...), connector.Fenced)
	var many []testRow
	for i := range smallSet + 1 {
		many = append(many, testRow{connector.Insert, fmt.Sprint(i)})
	}
	wantKind(t, write(t, first, target, true, many...), connector.Fenced)
	wantKind(t, first.Create(t.Context(), target), connector.Fenced)
	wantKind(t, first.Ready(t.Context(), target, nil), connector.Fenced)
	must(t, write(t, second, target, true, inserts("2|x|y")...))
	wantRows(t, url, "SELECT id FROM t", "2")
}

func TestDroppedSchemaIsASetupFault(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, "DROP SCHEMA sluice CASCADE")
	wantKind(t, begin(t, s).Commit(t.Context(), map[string]string{"a": "1"}), connector.Setup)
}

func TestClaimWaitsForTransactionsUnderWay(t *testing.T) {
	url := testServer.Database(t)
	first := openTestSink(t, url)
	x := begin(t, first)
	_, err := x.exec(t.Context(), "SELECT 1")
	must(t, err)
	claimed := make(chan *connector.Claim, 1)
	second, err := OpenSink(t.Context(), first.config, first.env)
	must(t, err)
	defer second.Close()
	go func() {
		c, err := second.Claim(context.Background(), "m", "")
		if err != nil {
			t.Error(err)
		}
		claimed <- c
	}()
	waitForLock(t, url)
	must(t, x.Commit(t.Context(), map[string]string{"late": "yes"}))
	if c := <-claimed; c == nil || c.Entries["late"] != "yes" {
		t.Errorf("claim %+v does not hold what was committed before it", c)
	}
}

func waitForLock(t *testing.T, url string) {
	testdb.Eventually(t, func() error {
		if testdb.QueryText(t, url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == "0" {
			return errors.New("nobody waits")
		}
		return nil
	})
}

func TestClaimEndsTransactionsThatHang(t *testing.T) {
	url := testServer.Database(t)
	first := openTestSink(t, url)
	x := begin(t, first)
	_, err := x.exec(t.Context(), "SELECT 1")
	must(t, err)
	second, err := OpenSink(t.Context(), first.config, first.env)
	must(t, err)
	defer second.Close()
	second.claimWait = 50 * time.Millisecond
	if _, err := second.Claim(t.Context(), "m", ""); err != nil {
		t.Fatal(err)
	}
	wantKind(t, x.Commit(t.Context(), map[string]string{"late": "yes"}), connector.Unavailable)
	wantRows(t, url, "SELECT count(*) FROM sluice.entry", "0")
}

func TestChangedEntryFencesTheCommit(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	must(t, begin(t, s).Commit(t.Context(), map[string]string{"a": "1", "b": "1"}))
	for _, change := range []string{"UPDATE sluice.entry SET value = '9' WHERE key = 'a'", "DELETE FROM sluice.entry WHERE key = 'a'"} {
		testdb.Exec(t, url, change)
		for _, v := range []string{"2", ""} {
			wantKind(t, begin(t, s).Commit(t.Context(), map[string]string{"a": v, "b": "2"}), connector.Fenced)
		}
	}
	testdb.Exec(t, url, "INSERT INTO sluice.entry VALUES ('m', 'new', '1')")
	wantKind(t, begin(t, s).Commit(t.Context(), map[string]string{"new": "2"}), connector.Fenced)
	wantRows(t, url, "SELECT key, value FROM sluice.entry ORDER BY 1", "b|1\nnew|1")
	must(t, begin(t, s).Commit(t.Context(), map[string]string{"b": "2"}))
}

func TestLostCommitIsFoundByTheNextClaim(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")})
	x := begin(t, s)
	must(t, x.Write(t.Context(), target, testRows(t, target.Table, true, inserts("1|x|y")...)))
	testdb.Exec(t, url, fmt.Sprintf("SELECT pg_terminate_backend(%d, 5000)", x.pg.PID()))
	wantKind(t, x.Commit(t.Context(), map[string]string{"a": "1"}), connector.Unavailable)
	c, err := s.Claim(t.Context(), "m", "")
	must(t, err)
	if len(c.Entries) != 0 {
		t.Errorf("entries %v of a transaction that was ended", c.Entries)
	}
	wantRows(t, url, "SELECT count(*) FROM t", "0")
	must(t, write(t, s, target, true, inserts("1|x|y")...))
}

func TestCancelledCallsLeaveUsableSink(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")})
	for range 10 { // more than there are connections
		ctx, cancel := context.WithCancel(t.Context())
		x := begin(t, s)
		cancel()
		if err := x.Write(ctx, target, testRows(t, target.Table, true, inserts("1|x|y")...)); !errors.Is(err, context.Canceled) {
			t.Fatalf("write under a cancelled context: %v", err)
		}
		must(t, x.Rollback())
	}
	must(t, write(t, s, target, true, inserts("1|x|y")...))
}

// TestFirstWritesOnAllConnectionsDoNotWaitForEachOther would hang if a transaction needed a second connection.
func TestFirstWritesOnAllConnectionsDoNotWaitForEachOther(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	var open []*tx
	for range s.config.Connections {
		open = append(open, begin(t, s))
	}
	testdb.Exec(t, url, "CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
	table := plain("t")
	for i, x := range open {
		target := &connector.Target{Table: table, Name: table.Name, Columns: []int{0, 1, 2}, SinkNames: []string{"id", "a", "b"}, SinkTypes: []string{"integer", "text", "text"}}
		must(t, x.Write(t.Context(), target, testRows(t, table, true, inserts(fmt.Sprint(i))...)))
	}
	for _, x := range open {
		must(t, x.Commit(t.Context(), nil))
	}
}

// typeCases are literals by native type; both COPY formats must store what the server reads from them.
var typeCases = []struct {
	kind     schema.Kind
	native   string
	literals []string
}{
	{schema.Bool, "boolean", []string{"t", "f"}},
	{schema.Int16, "smallint", []string{"-32768", "32767"}},
	{schema.Int32, "integer", []string{"-2147483648", "0", "2147483647"}},
	{schema.Int64, "bigint", []string{"-9223372036854775808", "9223372036854775807"}},
	{schema.Int64, "oid", []string{"0", "4294967295"}},
	{schema.Float32, "real", []string{"NaN", "-Infinity", "Infinity", "-0", "1e-45", "3.4028235e38", "0.1"}},
	{schema.Float64, "double precision", []string{"NaN", "-Infinity", "Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"}},
	{schema.Numeric, "numeric", []string{"NaN", "Infinity", "-Infinity", "0", "0.000", "-0.00001", "1", "10000", "100000000", "1.50", "12345.6789",
		"99999999999999999999999999.9999999999", "1" + strings.Repeat("0", 1000), "0." + strings.Repeat("0", 999) + "1", strings.Repeat("9", 131072), "-" + strings.Repeat("1234567890", 1600) + "." + strings.Repeat("0123456789", 1600)}},
	{schema.Numeric, "numeric(10,2)", []string{"12345678.90", "-0.01"}},
	{schema.Text, "text", []string{"", `a\b`, "tab\tnewline\nreturn\r", `\N`, "'\"{},", "ünïcødé 🎉", strings.Repeat("x", 100000)}},
	{schema.Text, "character varying(20)", []string{"", "short"}},
	{schema.Text, "character(5)", []string{"ab   "}},
	{schema.Text, "name", []string{"n"}},
	{schema.Text, `"char"`, []string{"c"}},
	{schema.Bytes, "bytea", []string{`\x`, `\x00ff5c0a09`}},
	{schema.Date, "date", []string{"infinity", "-infinity", "4713-01-01 BC", "0001-12-31 BC", "0001-01-01", "1999-12-31", "2000-01-01", "2000-02-29", "1900-03-01", "5874897-12-31"}},
	{schema.Time, "time without time zone", []string{"00:00:00", "24:00:00", "23:59:59.999999"}},
	{schema.Time, "time(3) without time zone", []string{"01:02:03.456"}},
	{schema.Timestamp, "timestamp without time zone", []string{"infinity", "-infinity", "4714-11-24 00:00:00 BC", "1999-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999", "0044-03-15 12:00:00 BC"}},
	{schema.TimestampTZ, "timestamp with time zone", []string{"infinity", "-infinity", "4714-11-24 00:00:00+00 BC", "2020-02-29 12:34:56.000001+00", "294276-12-31 23:59:59.999999+00"}},
	{schema.Interval, "interval", []string{"00:00:00", "-00:00:00.000001", "1 year 2 mons -3 days +04:05:06.7", "-178000000 years", "2147483647 days", "99:00:00"}},
	{schema.UUID, "uuid", []string{"00000000-0000-0000-0000-000000000000", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}},
	{schema.JSON, "json", []string{"null", `{"b":1,  "a":[1,"x\n"]}`, `"\u0000"`}},
	{schema.JSON, "jsonb", []string{"null", `{"a": [1, "x\n"], "b": 1.50}`}},
	{schema.Enum, "shop.mood", []string{"so so", `it's`, `back\slash`}},
	{schema.Text, "inet", []string{"10.0.0.0/8", "::1"}},
	{schema.Text, "time with time zone", []string{"12:00:00+05:30"}},
	{schema.Text, "bit varying(8)", []string{"10101", ""}},
	{schema.Text, "int4range", []string{"empty", "[1,5)", "(,)"}},
	{schema.Text, "money", []string{"$1,234.50", "-$0.01"}},
	{schema.Text, "point", []string{"(1,2)"}},
	{schema.Text, "tsvector", []string{"'a':1 'b c':2"}},
	{schema.Text, "xml", []string{"<a>&lt;\\</a>", ""}},
	{schema.Text, "public.citext", []string{"MiXed"}},
	{schema.Text, "public.hstore", []string{`"a"=>"1", "b"=>NULL`}},
	{schema.Text, "shop.address", []string{`("Main \\ ""St""",12)`, "(,)"}},
}

var arrayCases = []struct {
	elem     schema.Type
	literals []string
}{
	{kind(schema.Int32, "integer"), []string{"{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:1]={5,6}", "[-1:0][2:3]={{1,2},{3,NULL}}", "{{{1},{2}},{{3},{4}}}"}},
	{kind(schema.Text, "text"), []string{"{}", `{"",NULL,"NULL","a\\b","q\"q","{x,y}"," sp "}`}},
	{kind(schema.Numeric, "numeric"), []string{"{1.50,NaN,-Infinity}"}},
	{kind(schema.TimestampTZ, "timestamp with time zone"), []string{`{"2020-01-01 00:00:00+00",infinity}`}},
	{schema.Type{Kind: schema.Enum, Native: "shop.mood", Labels: []string{"so so", `it's`, `back\slash`}}, []string{`{"so so","back\\slash"}`}},
	{kind(schema.Bytes, "bytea"), []string{`{"\\x00ff"}`}},
	{kind(schema.Text, "inet"), []string{"{10.0.0.0/8,::1}"}},
	{kind(schema.Text, "shop.address"), []string{`{"(\"Main \\\\ \"\"St\"\"\",12)"}`}},
}

// TestEveryTypeIsStoredAsTheServerReadsIt takes values through the binary and the text format of COPY, the parameters of
// single statements and the stage table: what the server prints must be what it prints for the literal.
func TestEveryTypeIsStoredAsTheServerReadsIt(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, `CREATE EXTENSION citext; CREATE EXTENSION hstore; CREATE SCHEMA shop;
		CREATE TYPE shop.mood AS ENUM ('so so', 'it''s', E'back\\slash'); CREATE TYPE shop.address AS (street text, number int)`)
	s := openTestSink(t, url)
	check := func(typ schema.Type, literals []string) {
		t.Run(typ.Native, func(t *testing.T) { storeLiterals(t, s, url, typ, literals) })
	}
	for _, c := range typeCases {
		check(kind(c.kind, c.native), c.literals)
	}
	for _, c := range arrayCases {
		check(schema.Type{Kind: schema.Array, Native: c.elem.Native + "[]", Elem: &c.elem}, c.literals)
	}
}

func TestInfiniteIntervalsAreStoredOrRefused(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	typ := kind(schema.Interval, "interval")
	if testServer.Version(t) >= 170000 {
		storeLiterals(t, s, url, typ, []string{"infinity", "-infinity", "2147483647 mons 2147483647 days"})
		return
	}
	// An older server would take them for large finite ones.
	for _, with := range []string{"", "inet"} {
		table := testTable("t"+with, column("id", schema.Int32, "integer"), schema.Column{Name: "v", Type: typ})
		if with != "" {
			table.Columns = append(table.Columns, column("other", schema.Text, with))
		}
		target := stored(t, s, connector.Target{Table: table})
		for _, v := range []string{"infinity", "-infinity"} {
			for _, distinct := range []bool{true, false} {
				r := literalRows(t, table, []string{"1\x00" + v})
				r.Distinct = distinct
				x := begin(t, s)
				wantKind(t, x.Write(t.Context(), target, r), connector.BadRow)
				must(t, x.Rollback())
			}
		}
	}
}

func storeLiterals(t *testing.T, s *Sink, url string, typ schema.Type, literals []string) {
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(t.Context())
	for set, v := range sessionSettings {
		_, err := conn.Exec(t.Context(), "SELECT set_config($1, $2, false)", set, v)
		must(t, err)
	}
	var want []string
	for _, l := range literals {
		rows, err := readRows(t.Context(), conn.PgConn(), "SELECT "+quoteLiteral(l)+"::"+typ.Native)
		must(t, err)
		want = append(want, rows[0][0])
	}
	// Text columns of a type that has no binary form bring the whole table to the text format.
	for _, with := range []string{"", "inet"} {
		table := testTable("types", column("id", schema.Int32, "integer"), schema.Column{Name: "v", Type: typ})
		if with != "" {
			table.Columns = append(table.Columns, column("other", schema.Text, with))
		}
		for _, way := range []string{"load", "write", "stage"} {
			testdb.Exec(t, url, "DROP TABLE IF EXISTS public.types")
			rows := make([]string, 0, smallSet+1)
			for i, l := range want {
				rows = append(rows, fmt.Sprintf("%d\x00%s", i, l))
			}
			for i := len(rows); way == "stage" && i <= smallSet; i++ {
				rows = append(rows, fmt.Sprintf("%d\x00%s", i, null))
			}
			target := plan(t, s, connector.Target{Table: table})
			if target.SinkTypes[1] != typ.Native || target.Misfits[1] != "" {
				t.Fatalf("planned as %s (%s)", target.SinkTypes[1], target.Misfits[1])
			}
			target.Copy++
			must(t, s.Create(t.Context(), target))
			r := literalRows(t, table, rows)
			x := begin(t, s)
			if way == "load" {
				must(t, x.Load(t.Context(), target, r))
				must(t, x.Commit(t.Context(), nil))
				must(t, s.Ready(t.Context(), target, nil))
			} else {
				must(t, x.Rollback())
				must(t, s.Ready(t.Context(), target, nil))
				r.Distinct = true
				x = begin(t, s)
				must(t, x.Write(t.Context(), target, r))
				must(t, x.Commit(t.Context(), nil))
			}
			got, err := readRows(t.Context(), conn.PgConn(), fmt.Sprintf("SELECT v FROM public.types WHERE id < %d ORDER BY id", len(want)))
			must(t, err)
			if len(got) != len(want) {
				t.Fatalf("%s %s: %d rows, want %d", way, with, len(got), len(want))
			}
			for i := range want {
				if got[i][0] != want[i] {
					t.Errorf("%s %s: stored %.80q, want %.80q", way, with, got[i][0], want[i])
				}
			}
		}
	}
}

// literalRows builds rows of an id and a value that may hold any character.
func literalRows(t *testing.T, table *schema.Table, rows []string) *connector.Rows {
	b := array.NewRecordBuilder(memory.DefaultAllocator, table.Arrow())
	defer b.Release()
	id, v := newColumnDecoder(table.Columns[0].Type, wireText, b.Field(0)), newColumnDecoder(table.Columns[1].Type, wireText, b.Field(1))
	for _, row := range rows {
		n, value, _ := strings.Cut(row, "\x00")
		must(t, id([]byte(n)))
		if value == null {
			b.Field(1).AppendNull()
		} else if err := v([]byte(value)); err != nil {
			t.Fatalf("%.80q: %v", value, err)
		}
		if len(table.Columns) > 2 {
			b.Field(2).AppendNull()
		}
	}
	r := &connector.Rows{Table: table, Values: b.NewRecordBatch()}
	t.Cleanup(r.Release)
	return r
}

func TestDamagedNumericIsARowError(t *testing.T) {
	for _, s := range []string{"", "-", ".", "1e5", "1x", "--1", "+1", " 1", "1." + strings.Repeat("1", numericScaleMax+1), strings.Repeat("1", numericIntegerMax+1)} {
		if b, err := encodeNumeric([]byte("kept"), s); err == nil || !bytes.Equal(b, []byte("kept")) {
			t.Errorf("encodeNumeric(%.20q) = %q, %v", s, b, err)
		}
	}
}

func FuzzEncodeNumericFitsItsDecoder(f *testing.F) {
	for _, s := range []string{"0", "-1.50", "10000.0001", "NaN", "Infinity", "00012.30"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := encodeNumeric(nil, s)
		if err != nil {
			return
		}
		if n := int(binary.BigEndian.Uint16(b)); len(b) != 8+2*n {
			t.Fatalf("%d digits in %d bytes", n, len(b))
		}
		text, ok := appendNumeric(nil, b)
		if !ok {
			t.Fatalf("encodeNumeric(%q) is not decoded", s)
		}
		again, err := encodeNumeric(nil, string(text))
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%q -> %q -> another value", s, text)
		}
	})
}

func FuzzParseShape(f *testing.F) {
	f.Add("[1:2][0:4]")
	f.Add("[-2147483648:2147483647]")
	f.Fuzz(func(t *testing.T, s string) {
		dims, err := parseShape(s)
		if err == nil && len(dims) == 0 {
			t.Fatal("a shape without dimensions")
		}
		for _, d := range dims {
			if d.length() < 1 {
				t.Fatalf("%q has a dimension of length %d", s, d.length())
			}
		}
	})
}
