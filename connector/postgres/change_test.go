package postgres

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// laterVersion returns a version of a table behind t, with numbered columns.
func laterVersion(t *schema.Table, edit func(to *schema.Table)) *schema.Table {
	to := *t
	to.Version++
	to.Columns = slices.Clone(t.Columns)
	edit(&to)
	return &to
}

func changed(t *testing.T, s *Sink, from *connector.Target, want connector.Target) *connector.Target {
	t.Helper()
	want.Name = from.Name
	next, err := s.Change(t.Context(), from, connector.Alteration{Want: want})
	must(t, err)
	return next
}

// numberColumns makes the columns of t ones that keep what they are under other names.
func numberColumns(t *schema.Table) *schema.Table {
	for i := range t.Columns {
		t.Columns[i].Number = int32(i + 1)
	}
	return t
}

func addColumn(to *schema.Table) {
	c := column("c", schema.Text, "text")
	c.Number = 9
	to.Columns = append(to.Columns, c)
}

func TestChangeKeepsTheColumnTypesOfATableOfOthers(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, `CREATE TABLE t (id bigint PRIMARY KEY, a varchar, b text)`)
	want := connector.Target{Table: numberColumns(plain("t")), Existing: connector.MergeExisting}
	from := stored(t, s, want, inserts("1|a|A")...)
	want.Table = laterVersion(want.Table, addColumn)
	next := changed(t, s, from, want)
	if next == nil {
		t.Fatal("the sink wants a new copy")
	}
	wantRows(t, url, `SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 't'::regclass AND attnum > 0`, "id bigint, a character varying, b text, c text")
	must(t, write(t, s, next, true, inserts("2|b|B|C")...))
	wantRows(t, url, "SELECT id, a, b, c FROM t ORDER BY 1", "1|a|A|∅\n2|b|B|C")
}

func TestChangeRenamesNoColumnOfATableOfOthers(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, `CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text); INSERT INTO t VALUES (1, 'x', 'x', 'theirs')`)
	want := connector.Target{Table: numberColumns(plain("t")), Existing: connector.MergeExisting}
	from := stored(t, s, want, inserts("1|a|A")...)
	want.Table = laterVersion(want.Table, addColumn)
	if changed(t, s, from, want) != nil {
		t.Error("a column of that name was there, and the sink has altered the table")
	}
	wantRows(t, url, "SELECT id, a, c FROM t", "1|a|theirs")
}

func TestChangeOfATableOfOthersThatTheRoleMayNotAlterIsLeftToPlan(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, `DO $$ BEGIN CREATE ROLE plain_writer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$;
		CREATE TABLE t (id int PRIMARY KEY, a text, b text); GRANT SELECT, INSERT, UPDATE, DELETE ON t TO plain_writer;
		DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO plain_writer', current_database()); END $$`)
	s := openTestSink(t, strings.Replace(url, "postgres@", "plain_writer@", 1))
	want := connector.Target{Table: numberColumns(plain("t")), Existing: connector.MergeExisting}
	from := stored(t, s, want, inserts("1|a|A")...)
	want.Table = laterVersion(want.Table, addColumn)
	if changed(t, s, from, want) != nil {
		t.Error("the sink has altered a table that is not its role's")
	}
	refusedWith(t, s, want, `ADD COLUMN "c" text`)
}

func TestChangeKeepsWhetherTheTableIsOurs(t *testing.T) {
	s := openTestSink(t, testServer.Database(t))
	want := connector.Target{Table: numberColumns(plain("t")), Existing: connector.MergeExisting}
	from := stored(t, s, want, inserts("1|a|A")...)
	want.Table = laterVersion(want.Table, addColumn)
	if next := changed(t, s, from, want); next == nil || next.Existing != connector.RefuseExisting {
		t.Fatalf("changed to %+v, want a table of ours", next)
	} else {
		must(t, write(t, s, next, false, testRow{connector.Truncate, null}))
	}
}

func TestChangeToALongerTextRewritesNoRow(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := numberColumns(plain("t"))
	table.Columns[1].Type.Native = "character varying(10)"
	from := stored(t, s, connector.Target{Table: table}, inserts("1|a|A")...)
	const file = "SELECT pg_relation_filenode('t')"
	before := testdb.QueryText(t, url, file)
	for _, native := range []string{"character varying(20)", "character varying", "text"} {
		want := connector.Target{Table: laterVersion(from.Table, func(to *schema.Table) { to.Columns[1].Type.Native = native })}
		if from = changed(t, s, from, want); from == nil {
			t.Fatalf("to %s the sink wants a new copy", native)
		}
		if got := testdb.QueryText(t, url, file); got != before {
			t.Errorf("the table was rewritten for %s", native)
		}
	}
	wantRows(t, url, "SELECT pg_typeof(a), a FROM t", "text|a")
}
