package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

func TestCopyIsUnseenUntilReady(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := plan(t, s, connector.Target{Table: plain("t")})
	target.Copy = 1
	load(t, s, target, inserts("1|a|A")...)
	wantRows(t, url, "SELECT to_regclass('public.t')", null)
	must(t, s.Ready(t.Context(), target, map[string]string{"at": "1"}))
	wantRows(t, url, "SELECT * FROM t", "1|a|A")
	wantRows(t, url, "SELECT value, copy, loading FROM sluice.entry, sluice.owner", "1|1|0")
	wantRows(t, url, "SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 't'::regclass", "t_pkey")
	wantRows(t, url, "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 AND attnotnull", "id")
	if again := plan(t, s, connector.Target{Table: plain("t")}); again.Copy != 1 {
		t.Errorf("planned with copy %d", again.Copy)
	}
	must(t, s.Ready(t.Context(), target, map[string]string{"at": "1"}))
	wantKind(t, s.Ready(t.Context(), target, map[string]string{"at": "2"}), connector.TableFault)
}

func TestCreateBeginsWithoutRows(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := plan(t, s, connector.Target{Table: plain("t")})
	for _, n := range []int{1, 1, 2} {
		target.Copy = n
		load(t, s, target, inserts("1|a|A")...)
	}
	wantRows(t, url, "SELECT count(*) FROM pg_class WHERE relname ~ '^copy_' AND relkind = 'r'", "1")
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT count(*) FROM t", "1")
}

func TestReadyAfterACrashGoesOn(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := plan(t, s, connector.Target{Table: plain("t")})
	target.Copy = 1
	load(t, s, target, inserts("1|a|A")...)
	if _, err := s.indexCopy(t.Context(), target); err != nil { // and then the process ends
		t.Fatal(err)
	}
	s = openTestSink(t, url)
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT * FROM t", "1|a|A")
}

func TestReadyIsFencedByChangedEntries(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	target.Copy++
	load(t, s, target, inserts("2|b|B")...)
	testdb.Exec(t, url, "INSERT INTO sluice.entry VALUES ('m', 'at', '9')")
	wantKind(t, s.Ready(t.Context(), target, map[string]string{"at": "1"}), connector.Fenced)
	wantRows(t, url, "SELECT * FROM t", "1|a|A")
}

func TestKeyTwiceInACopyIsATableFault(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := plan(t, s, connector.Target{Table: plain("t")})
	target.Copy = 1
	load(t, s, target, inserts("1|a|A", "1|b|B")...)
	wantKind(t, s.Ready(t.Context(), target, nil), connector.TableFault)
}

// TestExchangeKeepsWhatDependsOnTheTable makes a new copy under each kind of dependent.
func TestExchangeKeepsWhatDependsOnTheTable(t *testing.T) {
	for _, c := range []struct{ name, make, check, want string }{
		{"nothing", "", "SELECT 1", "1"},
		{"view", "CREATE VIEW v AS SELECT id, a FROM t", "SELECT * FROM v ORDER BY 1", "1|same\n2|new\n4|d"},
		{"foreign key", "CREATE TABLE child (id int REFERENCES t); INSERT INTO child VALUES (2)", "SELECT conname FROM pg_constraint WHERE confrelid = 't'::regclass", "child_id_fkey"},
		{"grant", "GRANT SELECT ON t TO PUBLIC", "SELECT has_table_privilege('public', 't', 'SELECT')", "t"},
		{"index", "CREATE INDEX mine ON t (a)", "SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'", "1"},
		{"comment", "COMMENT ON COLUMN t.a IS 'x'", "SELECT col_description('t'::regclass, 2)", "x"},
		{"policy", "CREATE POLICY p ON t", "SELECT count(*) FROM pg_policy WHERE polrelid = 't'::regclass", "1"},
		{"publication", "CREATE PUBLICATION p FOR TABLE t", "SELECT count(*) FROM pg_publication_rel WHERE prrelid = 't'::regclass", "1"},
		{"row type", "CREATE TABLE other (r t)", "SELECT atttypid::regtype FROM pg_attribute WHERE attrelid = 'other'::regclass AND attname = 'r'", "t"},
		{"function", "CREATE FUNCTION f() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM t; END", "SELECT f()", "3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := testServer.Database(t)
			s := openTestSink(t, url)
			target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|same|A", "2|old|∅", "3|gone|C")...)
			before := testdb.QueryText(t, url, "SELECT 't'::regclass::oid")
			testdb.Exec(t, url, c.make)
			target.Copy++
			load(t, s, target, inserts("1|same|A", "2|new|B", "4|d|D")...)
			must(t, s.Ready(t.Context(), target, map[string]string{"at": "1"}))
			wantRows(t, url, "SELECT * FROM t ORDER BY 1", "1|same|A\n2|new|B\n4|d|D")
			wantRows(t, url, c.check, c.want)
			if kept := before == testdb.QueryText(t, url, "SELECT 't'::regclass::oid"); kept != (c.make != "") {
				t.Errorf("the table was kept: %t", kept)
			}
			wantRows(t, url, "SELECT count(*) FROM pg_class WHERE relname ~ '^copy_' AND relkind = 'r'", "0")
			wantRows(t, url, "SELECT copy, value FROM sluice.owner, sluice.entry", "2|1")
			must(t, write(t, s, target, true, inserts("9|i|I")...))
		})
	}
}

func TestMergeTouchesOnlyRowsThatDiffer(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := testTable("t", column("id", schema.Int32, "integer"), column("j", schema.JSON, "json"), column("p", schema.Text, "point"))
	rows := inserts(`1|{"a": 1}|(1,2)`, `2|∅|∅`, `3|{}|∅`)
	target := stored(t, s, connector.Target{Table: table}, rows...)
	testdb.Exec(t, url, "CREATE VIEW v AS SELECT * FROM t")
	before := testdb.QueryText(t, url, "SELECT id, xmin FROM t WHERE id < 3 ORDER BY 1")
	target.Copy++
	rows[2].values = `3|{ }|∅`
	load(t, s, target, rows...)
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT id, xmin FROM t WHERE id < 3 ORDER BY 1", before)
	wantRows(t, url, "SELECT * FROM v ORDER BY 1", "1|{\"a\": 1}|(1,2)\n2|∅|∅\n3|{ }|∅")
}

func TestMergeAddsColumnsAndRefusesOtherTypes(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	old := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	testdb.Exec(t, url, "CREATE VIEW v AS SELECT id FROM t")
	table := plain("t")
	table.Columns = append(table.Columns, schema.Column{Number: 4, Name: "c", Type: kind(schema.Int64, "bigint")})
	target := plan(t, s, connector.Target{Table: table})
	if target.Copy != old.Copy {
		t.Fatalf("copy %d", target.Copy)
	}
	target.Copy++
	load(t, s, target, inserts("1|a|A|5")...)
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT * FROM t", "1|a|A|5")

	table = plain("t")
	table.Columns[1].Type = kind(schema.Int64, "bigint")
	target = plan(t, s, connector.Target{Table: table})
	target.Copy++
	load(t, s, target, inserts("1|7|A")...)
	if e := wantKind(t, s.Ready(t.Context(), target, nil), connector.TableFault); e.Column != "a" {
		t.Errorf("column %q is named", e.Column)
	}
	wantRows(t, url, "SELECT * FROM t", "1|a|A|5")
}

// TestReadersNeverSeeHalfAnExchange reads all the time while copies are exchanged and merged.
func TestReadersNeverSeeHalfAnExchange(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	rows := make([]testRow, 1000)
	fill := func(v int) []testRow {
		for i := range rows {
			rows[i] = testRow{insert, fmt.Sprintf("%d|%d|x", i, v)}
		}
		return rows
	}
	target := stored(t, s, connector.Target{Table: plain("t")}, fill(0)...)
	ctx, stop := context.WithCancel(t.Context())
	reader, err := pgx.Connect(ctx, url)
	must(t, err)
	done := make(chan string)
	go func() {
		seen := ""
		for ctx.Err() == nil && seen == "" {
			var n, values int
			err := reader.QueryRow(context.WithoutCancel(ctx), "SELECT count(*), count(DISTINCT a) FROM t").Scan(&n, &values)
			if err != nil || n != len(rows) || values != 1 {
				seen = fmt.Sprintf("%d rows of %d copies, %v", n, values, err)
			}
		}
		_ = reader.Close(context.WithoutCancel(ctx))
		done <- seen
	}()
	for v := 1; v <= 6; v++ {
		if v == 4 {
			testdb.Exec(t, url, "CREATE VIEW v AS SELECT * FROM t") // from now on rows are merged
		}
		target.Copy++
		load(t, s, target, fill(v)...)
		must(t, s.Ready(t.Context(), target, nil))
	}
	stop()
	if seen := <-done; seen != "" {
		t.Errorf("a reader saw %s", seen)
	}
}

func TestReadyWaitsForAReaderAndThenIsAConflict(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	target.Copy++
	load(t, s, target, inserts("2|b|B")...)
	reader, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer reader.Close(t.Context())
	_, err = reader.Exec(t.Context(), "BEGIN; SELECT * FROM t")
	must(t, err)
	wantKind(t, wrapError(s.exchange(t.Context(), target, nil), sinkSystem, "", schema.Name{}), connector.Conflict)
	_, err = reader.Exec(t.Context(), "COMMIT")
	must(t, err)
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT id FROM t", "2")
}

func TestDestinationOfOthersIsRefused(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	refused := func(want connector.Target, part string) {
		t.Helper()
		if want.Name.Table == "" {
			want.Name = want.Table.Name
		}
		_, err := s.Plan(t.Context(), want)
		if e := wantKind(t, err, connector.TableFault); !strings.Contains(e.Error(), part) || e.Hint == "" {
			t.Errorf("refused with %q, want %q", e, part)
		}
	}
	testdb.Exec(t, url, `CREATE TABLE rows (id int PRIMARY KEY, a text, b text); INSERT INTO rows VALUES (1);
		CREATE TABLE columns (id int PRIMARY KEY, a text); CREATE TABLE types (id int PRIMARY KEY, a text, b varchar(3));
		CREATE TABLE nokey (id int, a text, b text); CREATE VIEW view AS SELECT 1; CREATE TABLE fits (id int PRIMARY KEY, a text, b text)`)
	refused(connector.Target{Table: plain("rows")}, "holds rows")
	refused(connector.Target{Table: plain("columns")}, `no column "b"`)
	refused(connector.Target{Table: plain("types")}, `differ at "b"`)
	refused(connector.Target{Table: plain("nokey")}, "primary key")
	refused(connector.Target{Table: plain("view")}, "not a table")
	refused(connector.Target{Table: plain("x"), Name: schema.Name{Schema: "sluice", Table: "entry"}}, "not for mirrored tables")
	refused(connector.Target{Table: plain("x"), Key: []string{"zz"}}, "not among the stored columns")
	refused(connector.Target{Table: plain("x"), Columns: []int{1, 2}}, "not among the stored columns")
	own := plain("x")
	own.Columns[1].Name = "_sluice_op"
	refused(connector.Target{Table: own}, "that sluice adds")
	keyless := plain("x")
	keyless.Key, keyless.Keyless = nil, "ALTER TABLE x ADD PRIMARY KEY (id)"
	refused(connector.Target{Table: keyless}, "no key")
	stored(t, s, connector.Target{Table: plain("mine")})
	s2, err := OpenSink(t.Context(), s.config, connector.Env{Mirror: "other"})
	must(t, err)
	defer s2.Close()
	if _, err := s2.Plan(t.Context(), connector.Target{Table: plain("mine"), Name: plain("mine").Name}); connector.KindOf(err) != connector.TableFault {
		t.Errorf("another mirror's table: %v", err)
	}
	wantRows(t, url, "SELECT count(*) FROM sluice.owner", "1")
}

func TestEmptyTableThatFitsIsAdopted(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, "CREATE TABLE t (id int PRIMARY KEY, a text, b text); GRANT SELECT ON t TO PUBLIC")
	stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	wantRows(t, url, "SELECT *, has_table_privilege('public', 't', 'SELECT') FROM t", "1|a|A|t")

	testdb.Exec(t, url, "CREATE TABLE u (id int PRIMARY KEY, a text, b text)")
	target := plan(t, s, connector.Target{Table: plain("u")})
	target.Copy = 1
	load(t, s, target, inserts("1|a|A")...)
	testdb.Exec(t, url, "INSERT INTO u VALUES (7)")
	wantKind(t, s.Ready(t.Context(), target, nil), connector.TableFault)
	wantRows(t, url, "SELECT id FROM u", "7")
}

func TestRowWrittenToAnAdoptedTableDuringTheExchangeStays(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, "CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
	target := plan(t, s, connector.Target{Table: plain("t")})
	target.Copy = 1
	load(t, s, target, inserts("1|a|A")...)
	other := connect(t, url)
	mustExec(t, other, "BEGIN; INSERT INTO t VALUES (7)")
	done := make(chan error, 1)
	go func() { done <- s.Ready(t.Context(), target, nil) }()
	testdb.Eventually(t, func() error {
		if testdb.QueryText(t, url, "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND NOT granted") == "0" {
			return errors.New("nobody waits for the table")
		}
		return nil
	})
	mustExec(t, other, "COMMIT")
	wantKind(t, <-done, connector.TableFault)
	wantRows(t, url, "SELECT id FROM t", "7")
}

func TestNewTableHasTheSchemasDefaultGrants(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO PUBLIC")
	stored(t, s, connector.Target{Table: plain("t")})
	wantRows(t, url, "SELECT has_table_privilege('public', 't', 'SELECT')", "t")
}

func TestPlanChangesNothing(t *testing.T) {
	url := testServer.Database(t)
	s, err := OpenSink(t.Context(), &Config{URL: url, Connections: 2}, connector.Env{Mirror: "m"})
	must(t, err)
	defer s.Close()
	target := plan(t, s, connector.Target{Table: plain("t")})
	if target.Copy != 0 || fmt.Sprint(target.Columns, target.SinkNames, target.SinkTypes) != "[0 1 2] [id a b] [integer text text]" {
		t.Errorf("target %+v", target)
	}
	wantRows(t, url, "SELECT to_regnamespace('sluice')", null)
}

func TestUserTypesAreMade(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	mood := schema.Type{Kind: schema.Enum, Native: `shop."Mood"`, Labels: []string{"bad", "it's", "good"}}
	address := schema.Type{Kind: schema.Text, Native: "shop.address", Fields: []schema.Field{
		{Name: "street", Type: kind(schema.Text, "character varying(20)")}, {Name: "mood", Type: mood}}}
	table := testTable("t", column("id", schema.Int32, "integer"), schema.Column{Name: "m", Type: mood},
		schema.Column{Name: "ms", Type: schema.Type{Kind: schema.Array, Native: `shop."Mood"[]`, Elem: &mood}},
		schema.Column{Name: "adr", Type: address}, column("h", schema.Text, "public.hstore"),
		schema.Column{Name: "hs", Type: schema.Type{Kind: schema.Array, Native: "public.hstore[]", Elem: &schema.Type{Kind: schema.Text, Native: "public.hstore"}}},
		schema.Column{Name: "foreign", Type: kind(schema.Text, "set('a','b')")})
	rows := inserts(`1|good|{bad,NULL}|("x y",bad)|"a"=>"1"|{"\"a\"=>\"1\""}|a,b`)
	target := stored(t, s, connector.Target{Table: table}, rows...)
	for i, note := range target.Misfits {
		if (note != "") != (i >= 4) {
			t.Errorf("column %s: misfit %q", target.SinkNames[i], note)
		}
	}
	wantRows(t, url, "SELECT * FROM t", `1|good|{bad,NULL}|("x y",bad)|"a"=>"1"|{"\"a\"=>\"1\""}|a,b`)
	wantRows(t, url, "SELECT pg_typeof(m), pg_typeof(ms), pg_typeof(adr), pg_typeof(h), pg_typeof(hs) FROM t",
		`shop."Mood"|shop."Mood"[]|shop.address|text|text[]`)

	table.Columns[1].Type.Labels = []string{"worst", "bad", "it's", "fine", "good"}
	target = plan(t, s, connector.Target{Table: table})
	target.Copy++
	load(t, s, target, inserts("1|fine", "2|worst")...)
	must(t, s.Ready(t.Context(), target, nil))
	wantRows(t, url, "SELECT id, m FROM t ORDER BY m", "2|worst\n1|fine")
	wantRows(t, url, `SELECT enum_range(NULL::shop."Mood")`, "{worst,bad,it's,fine,good}")
}
