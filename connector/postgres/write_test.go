package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

const (
	insert   = connector.Insert
	update   = connector.Update
	remove   = connector.Delete
	before   = connector.Before
	truncate = connector.Truncate
)

// writeCases change the rows 1 to 4 of a table; each way to apply them must end with the same rows.
var writeCases = []struct {
	name string
	rows []testRow
	want string
}{
	{"insert, update, delete", []testRow{{insert, "5|e|E"}, {update, "1|x|X"}, {remove, "2|~|~"}}, "1|x|X\n3|c|C\n4|d|D\n5|e|E"},
	{"insert over a stored row", []testRow{{insert, "1|x|∅"}}, "1|x|∅\n2|b|B\n3|c|C\n4|d|D"},
	{"delete of a missing row", []testRow{{remove, "9|~|~"}}, "1|a|A\n2|b|B\n3|c|C\n4|d|D"},
	{"key change", []testRow{{before, "1|~|~"}, {update, "9|x|X"}}, "2|b|B\n3|c|C\n4|d|D\n9|x|X"},
	{"old row with the same key", []testRow{{before, "1|a|A"}, {update, "1|x|~"}}, "1|x|A\n2|b|B\n3|c|C\n4|d|D"},
	{"unsent value under its own key", []testRow{{update, "1|x|~"}, {update, "2|~|y"}, {update, "3|~|~"}}, "1|x|A\n2|b|y\n3|c|C\n4|d|D"},
	{"unsent value under the old key", []testRow{{before, "1|~|~"}, {update, "9|x|~"}}, "2|b|B\n3|c|C\n4|d|D\n9|x|A"},
	{"key moved onto a stored row", []testRow{{remove, "2|~|~"}, {before, "1|~|~"}, {update, "2|~|~"}}, "2|a|A\n3|c|C\n4|d|D"},
	{"delete and key change leave room", []testRow{{remove, "4|~|~"}, {before, "3|~|~"}, {update, "4|x|~"}, {insert, "3|n|N"}}, "1|a|A\n2|b|B\n3|n|N\n4|x|C"},
}

func TestWrittenRowsAreTheSourcesInEveryWay(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	for i, c := range writeCases {
		for _, way := range []string{"small set", "stage", "rows"} {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				target := stored(t, s, connector.Target{Table: plain(fmt.Sprintf("w%d_%s", i, way))}, inserts("1|a|A", "2|b|B", "3|c|C", "4|d|D")...)
				rows := c.rows
				if way == "stage" {
					for n := range smallSet {
						rows = append(rows, testRow{insert, fmt.Sprintf("%d|f|f", 1000+n)})
					}
				}
				must(t, write(t, s, target, way != "rows", rows...))
				wantRows(t, url, "SELECT id, a, b FROM "+quoteName(target.Name)+" WHERE id < 1000 ORDER BY 1", c.want)
			})
		}
	}
}

func TestKeysSwappedInOneBatchKeepTheirUnsentValues(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A", "2|b|B")...)
	must(t, write(t, s, target, true, testRow{before, "1"}, testRow{update, "2|x|~"}, testRow{before, "2"}, testRow{update, "1|y|~"}))
	wantRows(t, url, "SELECT * FROM t ORDER BY 1", "1|y|B\n2|x|A")
}

func TestUpdateOfAMissingRowIsABadRow(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	filler := make([]testRow, smallSet)
	for i := range filler {
		filler[i] = testRow{insert, fmt.Sprint(1000 + i)}
	}
	for _, rows := range [][]testRow{
		{{update, "1|x|X"}, {update, "2|x|~"}},
		append([]testRow{{update, "1|x|X"}, {update, "2|x|~"}}, filler...),
		{{before, "7"}, {update, "1|x|~"}},
	} {
		for _, distinct := range []bool{true, false} {
			e := wantKind(t, write(t, s, target, distinct, rows...), connector.BadRow)
			if e.Row != 1 || !strings.Contains(e.Error(), "resync") {
				t.Errorf("row %d: %v", e.Row, e)
			}
		}
	}
	wantRows(t, url, "SELECT * FROM t", "1|a|A")
}

func TestRefusedRowIsNamedRowByRow(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	testdb.Exec(t, url, "ALTER TABLE t ADD CHECK (a <> 'bad'); ALTER TABLE t ALTER b SET NOT NULL")
	filler := make([]testRow, smallSet)
	for i := range filler {
		filler[i] = testRow{insert, fmt.Sprintf("%d|a|b", 1000+i)}
	}
	rows := []testRow{{insert, "2|ok|ok"}, {insert, "3|bad|x"}}
	wantKind(t, write(t, s, target, true, rows...), connector.Constraint)
	wantKind(t, write(t, s, target, true, append(rows, filler...)...), connector.Constraint)
	if e := wantKind(t, write(t, s, target, false, rows...), connector.BadRow); e.Row != 1 {
		t.Errorf("row %d is named, want 1", e.Row)
	}
	if e := wantKind(t, write(t, s, target, false, testRow{insert, "4|a|∅"}), connector.BadRow); e.Row != 0 || e.Column != "b" {
		t.Errorf("row %d, column %q", e.Row, e.Column)
	}
	wantRows(t, url, "SELECT * FROM t", "1|a|A")
	must(t, write(t, s, target, true, inserts("5|a|b")...))
}

func TestValueThatCannotBeWrittenNamesItsRow(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := testTable("t", column("id", schema.Int32, "integer"), column("n", schema.Numeric, "numeric"))
	target := stored(t, s, connector.Target{Table: table})
	for _, n := range []int{2, smallSet + 1} {
		for _, distinct := range []bool{true, false} {
			b := array.NewRecordBuilder(memory.DefaultAllocator, table.Arrow())
			for i := range n {
				b.Field(0).(*array.Int32Builder).Append(int32(i))
				b.Field(1).(*array.StringBuilder).Append([]string{"1.5", "1x"}[i%2])
			}
			r := &connector.Rows{Table: table, Values: b.NewRecordBatch(), Distinct: distinct}
			for range s.config.Connections + 1 { // a connection that is not given back would be missed
				x := begin(t, s)
				e := wantKind(t, x.Write(t.Context(), target, r), connector.BadRow)
				if e.Row != 1 || e.Column != "n" || strings.Contains(e.Error(), "1x") {
					t.Errorf("row %d, column %q: %v", e.Row, e.Column, e)
				}
				must(t, x.Rollback())
			}
			r.Release()
			b.Release()
		}
	}
	must(t, write(t, s, target, true, inserts("1|1.5")...))
	wantRows(t, url, "SELECT * FROM t", "1|1.5")
}

func TestRowsInOrderSeeEachOther(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	must(t, write(t, s, target, false, testRow{insert, "2|b|B"}, testRow{update, "2|~|x"}, testRow{before, "2"}, testRow{update, "3|~|~"},
		testRow{remove, "1"}, testRow{insert, "1|n|N"}))
	wantRows(t, url, "SELECT * FROM t ORDER BY 1", "1|n|N\n3|b|x")
	must(t, write(t, s, target, false, testRow{truncate, null}, testRow{insert, "7|a|A"}))
	wantRows(t, url, "SELECT * FROM t", "7|a|A")
}

func TestTruncateOfReferencedAndLargeTables(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	testdb.Exec(t, url, "CREATE TABLE child (id int REFERENCES t)")
	must(t, write(t, s, target, true, testRow{truncate, null}))
	wantRows(t, url, "SELECT count(*) FROM t", "0")
	testdb.Exec(t, url, "DROP TABLE child; INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
	must(t, write(t, s, target, true, testRow{truncate, null}))
	wantRows(t, url, "SELECT count(*), pg_table_size('t') < 100000 FROM t", "0|t")
}

func TestTruncateDoesNotWaitForReaders(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")})
	testdb.Exec(t, url, "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n")
	reader, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer reader.Close(t.Context())
	_, err = reader.Exec(t.Context(), "BEGIN; SELECT 1 FROM t LIMIT 1")
	must(t, err)
	x := begin(t, s)
	_, err = x.exec(t.Context(), "SET LOCAL lock_timeout = 50")
	must(t, err)
	must(t, x.Write(t.Context(), target, testRows(t, target.Table, true, testRow{truncate, null})))
	must(t, x.Commit(t.Context(), nil))
	wantRows(t, url, "SELECT count(*) FROM t", "0")
}

func TestSeveralTablesInOneTransaction(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	var targets []*connector.Target
	for i := range maxStages + 2 { // more than a connection keeps stages for
		targets = append(targets, stored(t, s, connector.Target{Table: testTable(fmt.Sprintf("t%d", i),
			column("id", schema.Int32, "integer"), column("a", schema.Text, fmt.Sprintf("character varying(%d)", 10+i)))}))
	}
	for round := range 3 {
		x := begin(t, s)
		for pass := range 2 {
			for _, target := range targets {
				rows := make([]testRow, smallSet+1)
				for n := range rows {
					rows[n] = testRow{insert, fmt.Sprintf("%d|r%dp%d", n, round, pass)}
				}
				must(t, x.Write(t.Context(), target, testRows(t, target.Table, true, rows...)))
			}
		}
		if round == 1 {
			must(t, x.Rollback())
			continue
		}
		must(t, x.Commit(t.Context(), map[string]string{"round": fmt.Sprint(round)}))
	}
	for _, target := range targets {
		wantRows(t, url, "SELECT a, count(*) FROM "+quoteName(target.Name)+" GROUP BY 1", fmt.Sprintf("r2p1|%d", smallSet+1))
	}
}

func TestCompositeKeyAndWeirdNames(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := testTable(`we"ird. Täble`, column(`k"1`, schema.Text, "text"), column("a b", schema.Text, "text"), column("select", schema.Int64, "bigint"))
	table.Name.Schema, table.Key = `Odd "schema"`, []int{2, 0}
	target := stored(t, s, connector.Target{Table: table}, inserts("x|1|1", "x|2|2", "y|3|1")...)
	must(t, write(t, s, target, true, testRow{update, "x|~|1"}, testRow{before, "x|~|2"}, testRow{update, "y|~|2"}, testRow{remove, "y|~|1"}))
	wantRows(t, url, "SELECT * FROM "+quoteName(target.Name)+" ORDER BY 3", "x|1|1\ny|2|2")
	wantRows(t, url, `SELECT indexdef FROM pg_indexes WHERE tablename = 'we"ird. Täble'`,
		`CREATE UNIQUE INDEX "we""ird. Täble_pkey" ON "Odd ""schema"""."we""ird. Täble" USING btree ("select", "k""1")`)
}

func TestNamesThatAreTooLongEndWithAHashAndStayApart(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	long := strings.Repeat("é", 40) // 80 bytes
	tables := make([]*connector.Target, 2)
	for i, end := range []string{"1", "2"} {
		table := testTable(long+end, column(long+"key", schema.Int32, "integer"), column(long+"a", schema.Text, "text"), column(long+"b", schema.Text, "text"))
		table.ID = schema.ID(end)
		tables[i] = stored(t, s, connector.Target{Table: table, Name: schema.Name{Schema: long, Table: long + end}}, inserts("1|a"+end+"|b", "2|x|y")...)
		must(t, write(t, s, tables[i], true, testRow{connector.Update, "1|A" + end + "|~"}, testRow{connector.Delete, "2"}))
		must(t, write(t, s, tables[i], false, testRow{connector.Before, "1"}, testRow{connector.Update, "3|~|B"}))
	}
	for i, target := range tables {
		for _, name := range append([]string{target.Name.Schema, target.Name.Table}, target.SinkNames...) {
			if len(name) > maxNameLength || !utf8.ValidString(name) {
				t.Errorf("%q has %d bytes, or is cut within a character", name, len(name))
			}
		}
		if again := plan(t, s, connector.Target{Table: target.Table, Name: schema.Name{Schema: long, Table: target.Table.Name.Table}}); again.Name != target.Name || again.Copy != 1 {
			t.Errorf("planned again as %v, copy %d", again.Name, again.Copy)
		}
		wantRows(t, url, "SELECT * FROM "+quoteName(target.Name), fmt.Sprintf("3|A%d|B", i+1))
	}
}

func TestGeneratedColumnsStayGenerated(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := plain("t")
	table.Columns = append(table.Columns, schema.Column{Number: 4, Name: "g", Type: kind(schema.Int32, "integer"), Generated: "(id * 10)"})
	target := stored(t, s, connector.Target{Table: table}, inserts("1|a|A")...)
	must(t, write(t, s, target, true, inserts("2|b|B")...))
	must(t, write(t, s, target, false, testRow{before, "1"}, testRow{update, "3|~|~"}))
	wantRows(t, url, "SELECT id, g FROM t ORDER BY 1", "2|20\n3|30")
	target.Copy++
	testdb.Exec(t, url, "CREATE VIEW v AS SELECT * FROM t")
	load(t, s, target, inserts("2|x|B", "4|d|D")...)
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT id, a, g FROM v ORDER BY 1", "2|x|20\n4|d|40")
}

func TestEqualKeysOfOtherBytesMove(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := testTable("t", column("id", schema.Numeric, "numeric"), column("a", schema.Text, "text"))
	target := stored(t, s, connector.Target{Table: table}, inserts("1.0|a")...)
	for i, distinct := range []bool{true, false} {
		from, to := []string{"1.0", "1.00"}[i], []string{"1.00", "1.000"}[i]
		must(t, write(t, s, target, distinct, testRow{before, from + "|~"}, testRow{update, to + "|~"}))
		wantRows(t, url, "SELECT * FROM t", to+"|a")
	}
}

func TestTableMadeAnewWithOtherTypesIsWritten(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	for _, native := range []schema.Type{kind(schema.Int32, "integer"), kind(schema.Text, "text"), kind(schema.UUID, "uuid")} {
		table := testTable("t", column("id", schema.Int32, "integer"), schema.Column{Name: "v", Type: native})
		target := plan(t, s, connector.Target{Table: table})
		target.Copy++
		load(t, s, target)
		must(t, s.Ready(t.Context(), target, nil))
		must(t, write(t, s, target, true, inserts("1|"+null)...))
	}
}

func BenchmarkWriteSet(b *testing.B) {
	for _, n := range []int{1, 10, 100, 300, 400, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchmarkWrite(b, n) })
	}
}

func benchmarkWrite(b *testing.B, n int) {
	s := openTestSink(b, testServer.Database(b))
	target := stored(b, s, connector.Target{Table: plain("t")})
	rows := make([]testRow, n)
	for i := range rows {
		rows[i] = testRow{insert, fmt.Sprintf("%d|value of a|value of b", i)}
	}
	r := testRows(b, target.Table, true, rows...)
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		x := begin(b, s)
		must(b, x.Write(context.Background(), target, r))
		must(b, x.Commit(context.Background(), map[string]string{"at": fmt.Sprint(i + 1)}))
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/row")
}
