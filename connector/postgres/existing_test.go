package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

func TestPlanTellsUniqueConstraintsBeyondTheKey(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	if plan(t, s, connector.Target{Table: plain("t")}).UniqueBeyondKey {
		t.Error("a table that does not exist has a unique constraint")
	}
	stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	for _, c := range []struct {
		make   string
		beyond bool
	}{
		{"CREATE INDEX i ON t (a)", false},
		{"CREATE UNIQUE INDEX i ON t (a, id)", false},
		{"CREATE UNIQUE INDEX i ON t (a) INCLUDE (id)", true},
		{"CREATE UNIQUE INDEX i ON t (lower(a))", true},
		{"CREATE UNIQUE INDEX i ON t (a) WHERE b = 'x'", true},
		{"ALTER TABLE t ADD CONSTRAINT i UNIQUE (a) DEFERRABLE", true},
		{"ALTER TABLE t ADD CONSTRAINT i EXCLUDE USING btree (a WITH =)", true},
	} {
		testdb.Exec(t, url, c.make)
		if got := plan(t, s, connector.Target{Table: plain("t")}).UniqueBeyondKey; got != c.beyond {
			t.Errorf("%s: unique beyond the key: %t", c.make, got)
		}
		testdb.Exec(t, url, "ALTER TABLE t DROP CONSTRAINT IF EXISTS i; DROP INDEX IF EXISTS i")
	}
}

func refusedWith(t *testing.T, s *Sink, want connector.Target, parts ...string) {
	t.Helper()
	want.Name = want.Table.Name
	_, err := s.Plan(t.Context(), want)
	e := wantKind(t, err, connector.TableFault)
	for _, part := range parts {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("refused with %q, want %q", e, part)
		}
	}
}

func TestExistingRowsAreReplacedOrMerged(t *testing.T) {
	for _, c := range []struct {
		existing      connector.Existing
		first, second string
	}{
		{connector.ReplaceExisting, "1|one|∅|mine\n4|four|D|∅", "1|uno|∅|mine"},
		{connector.MergeExisting, "1|one|∅|mine\n2|old|B|∅\n4|four|D|∅", "1|uno|∅|mine\n2|old|B|∅\n4|four|D|∅"},
	} {
		t.Run(c.existing.String(), func(t *testing.T) {
			url := testServer.Database(t)
			s := openTestSink(t, url)
			testdb.Exec(t, url, `CREATE TABLE t (b varchar, extra text, id bigint UNIQUE, a text); CREATE VIEW v AS SELECT id FROM t;
				COMMENT ON TABLE t IS 'theirs'; INSERT INTO t VALUES ('A', 'mine', 1, 'old'), ('B', NULL, 2, 'old')`)
			before := testdb.QueryText(t, url, "SELECT 't'::regclass::oid")
			refusedWith(t, s, connector.Target{Table: plain("t")}, "not of this mirror", "existing")
			want := connector.Target{Table: plain("t"), Existing: c.existing}
			target := plan(t, s, want)
			target.Copy++
			load(t, s, target, inserts("1|one|∅", "4|four|D")...)
			wantRows(t, url, "SELECT id, a FROM t ORDER BY 1", "1|old\n2|old")
			must(t, s.Ready(t.Context(), target, map[string]string{"at": "1"}))
			const all = "SELECT id, a, b, extra FROM t ORDER BY 1"
			wantRows(t, url, all, c.first)

			refusedWith(t, s, connector.Target{Table: plain("t")}, "somebody else", "existing") // rows of others must not go because a setting did
			target = stored(t, s, want, inserts("1|uno|∅")...)
			wantRows(t, url, all, c.second)
			wantRows(t, url, "SELECT 't'::regclass::oid, obj_description('t'::regclass), (SELECT count(*) FROM v)",
				fmt.Sprintf("%s|theirs|%d", before, strings.Count(c.second, "\n")+1))
			must(t, write(t, s, target, true, inserts("9|i|I")...))
			must(t, write(t, s, target, true, testRow{connector.Delete, "9|~|~"}))
			wantRows(t, url, all, c.second)
			err := write(t, s, target, false, testRow{connector.Truncate, null})
			if c.existing == connector.MergeExisting {
				wantKind(t, err, connector.TableFault) // rows of others would go
				wantRows(t, url, all, c.second)
			} else {
				must(t, err)
				wantRows(t, url, all, "")
			}
		})
	}
}

func TestSoftDeletesReplaceRowsOfOthersAndKeepTheirOwn(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, `CREATE TABLE t (id int PRIMARY KEY, a text, b text, _sluice_deleted_at timestamptz); INSERT INTO t VALUES (1), (2)`)
	want := connector.Target{Table: plain("t"), Existing: connector.ReplaceExisting, SoftDelete: true}
	stored(t, s, want, inserts("1|a|A", "3|c|C")...)
	stored(t, s, want, inserts("1|a|A")...)
	wantRows(t, url, "SELECT id, _sluice_deleted_at IS NULL FROM t ORDER BY 1", "1|t\n3|f")
}

func TestDeletesChangeBetweenHardAndSoft(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	soft, hard := connector.Target{Table: plain("t"), SoftDelete: true}, connector.Target{Table: plain("t")}
	stored(t, s, hard, inserts("1|a|A", "2|b|B")...)
	stored(t, s, soft, inserts("1|a|A")...)
	const all = "SELECT id, _sluice_deleted_at IS NULL FROM t ORDER BY 1"
	wantRows(t, url, all, "1|t\n2|f")
	testdb.Exec(t, url, "CREATE VIEW v AS SELECT * FROM t; UPDATE t SET _sluice_deleted_at = now()")
	stored(t, s, hard, inserts("1|a|A")...)
	wantRows(t, url, all, "1|t")

	table := plain("t")
	table.Columns[1].Type = kind(schema.Int64, "bigint")
	target := plan(t, s, connector.Target{Table: table, SoftDelete: true})
	target.Copy++
	load(t, s, target, inserts("1|7|A")...)
	if e := wantKind(t, s.Ready(t.Context(), target, nil), connector.TableFault); !strings.Contains(e.Hint, "rename the table") {
		t.Errorf("hint %q", e.Hint)
	}
}

func TestExistingTableThatDoesNotFitIsRefusedWithEveryStatement(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	testdb.Exec(t, url, `CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE t (id smallint, a numeric, need int NOT NULL, free int NOT NULL DEFAULT 1, id2 int GENERATED ALWAYS AS (1) STORED);
		CREATE TABLE waits (id int UNIQUE DEFERRABLE, a text, b text);
		CREATE TABLE loose (id text COLLATE loose PRIMARY KEY);
		CREATE TABLE narrow (id int PRIMARY KEY, a varchar(3), b timestamp(0));
		CREATE TABLE own (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a text, b text GENERATED ALWAYS AS ('x') STORED);
		CREATE TABLE strict (id int PRIMARY KEY, a text NOT NULL, b text CHECK (b <> ''))`)
	target := func(name string) connector.Target {
		return connector.Target{Table: plain(name), Existing: connector.MergeExisting}
	}
	refusedWith(t, s, target("t"), `column "id" has type smallint`, `column "a" has type numeric`, `no column "b"`, `"need", which the source does not have`,
		`no unique constraint on ("id")`, `ADD COLUMN "b" text`, `ALTER COLUMN "need" DROP NOT NULL`, `ALTER COLUMN "id" TYPE integer`, `ADD UNIQUE ("id")`)
	refusedWith(t, s, target("waits"), "not deferrable")
	refusedWith(t, s, target("narrow"), `column "a" has type character varying(3)`, `column "b" has type timestamp(0)`)
	refusedWith(t, s, target("own"), `"id" takes no values`, `"b" is generated`)
	loose := testTable("loose", column("id", schema.Text, "text"))
	refusedWith(t, s, connector.Target{Table: loose, Existing: connector.ReplaceExisting}, "takes different keys for equal")
	fits := plan(t, s, target("strict"))
	if fmt.Sprint(fits.Misfits) != "[ NULL ]" || len(fits.Notes) != 1 || !strings.Contains(fits.Notes[0], "CHECK") {
		t.Errorf("misfits %q, notes %q", fits.Misfits, fits.Notes)
	}
	history := target("strict")
	history.History = true
	refusedWith(t, s, history, "not of this mirror")
}

// TestForeignKeysAndTriggersDoNotActOnTheMirrorsRows brings a child before its parent, deletes a parent whose children
// would go with it, and has a trigger that would change rows.
func TestForeignKeysAndTriggersDoNotActOnTheMirrorsRows(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	parent, child := plain("parent"), plain("child")
	parents := stored(t, s, connector.Target{Table: parent}, inserts("1|a|A")...)
	children := stored(t, s, connector.Target{Table: child}, inserts("1|1|A")...)
	testdb.Exec(t, url, `ALTER TABLE child ADD CONSTRAINT up FOREIGN KEY (id) REFERENCES parent ON DELETE CASCADE;
		CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a := ''spoiled''; RETURN NEW; END';
		CREATE TRIGGER spoil BEFORE INSERT OR UPDATE ON child FOR EACH ROW EXECUTE FUNCTION spoil();
		CREATE TRIGGER always BEFORE DELETE ON child FOR EACH ROW EXECUTE FUNCTION spoil(); ALTER TABLE child ENABLE ALWAYS TRIGGER always`)
	must(t, write(t, s, children, true, inserts("2|x|X")...))
	must(t, write(t, s, parents, true, testRow{connector.Delete, "1|~|~"}))
	wantRows(t, url, "SELECT * FROM child ORDER BY 1", "1|1|A\n2|x|X")
	must(t, write(t, s, parents, true, inserts("2|p|P")...))
	parents = stored(t, s, connector.Target{Table: parent}, inserts("3|c|C")...) // a new copy, without the row that a child refers to
	wantRows(t, url, "SELECT * FROM parent", "3|c|C")
	wantRows(t, url, "SELECT * FROM child ORDER BY 1", "1|1|A\n2|x|X")
	must(t, write(t, s, parents, false, testRow{connector.Truncate, null}))
	wantRows(t, url, "SELECT count(*) FROM child", "2")
	again := plan(t, s, connector.Target{Table: child})
	if len(again.Notes) != 3 || !strings.Contains(again.Notes[0], "does not cascade") ||
		!strings.Contains(again.Notes[1], `"always" fires`) || !strings.Contains(again.Notes[2], `"spoil" does not fire`) {
		t.Errorf("notes %q", again.Notes)
	}
}

func TestForeignKeysNeedARoleThatMayWriteWithoutThem(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, `DO $$ BEGIN CREATE ROLE plain_writer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$;
		DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO plain_writer', current_database()); END $$; GRANT CREATE, USAGE ON SCHEMA public TO plain_writer`)
	s := openTestSink(t, strings.Replace(url, "postgres@", "plain_writer@", 1))
	target := stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A", "2|b|B")...)
	must(t, write(t, s, target, true, inserts("3|c|C")...))
	testdb.Exec(t, url, "ALTER TABLE t ADD CONSTRAINT one_a UNIQUE (a) DEFERRABLE")
	must(t, write(t, s, target, true, inserts("1|b|A", "2|a|B")...)) // each for a moment equal to the other
	wantRows(t, url, "SELECT id, a FROM t ORDER BY 1", "1|b\n2|a\n3|c")
	testdb.Exec(t, url, "CREATE TABLE theirs (id int REFERENCES t)")
	refusedWith(t, s, connector.Target{Table: plain("t")}, `foreign key "theirs_id_fkey"`, "plain_writer")
	if testdb.QueryText(t, url, "SELECT current_setting('server_version_num')::int >= 150000") == "t" {
		refusedWith(t, s, connector.Target{Table: plain("t")}, "GRANT SET ON PARAMETER session_replication_role TO plain_writer")
		testdb.Exec(t, url, "GRANT SET ON PARAMETER session_replication_role TO plain_writer")
		t.Cleanup(func() { testdb.Exec(t, url, "REVOKE SET ON PARAMETER session_replication_role FROM plain_writer") })
		plan(t, s, connector.Target{Table: plain("t")})
	}
}

func TestTableOfAnotherOwnerIsWrittenWithTheFourRights(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, `DO $$ BEGIN CREATE ROLE plain_writer LOGIN; EXCEPTION WHEN duplicate_object THEN END $$;
		DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO plain_writer', current_database()); END $$;
		CREATE TABLE t (id int PRIMARY KEY, a text, b text); INSERT INTO t VALUES (1), (2); GRANT SELECT, INSERT, UPDATE, DELETE ON t TO plain_writer`)
	s := openTestSink(t, strings.Replace(url, "postgres@", "plain_writer@", 1))
	target := stored(t, s, connector.Target{Table: plain("t"), Existing: connector.ReplaceExisting}, inserts("1|a|A")...)
	must(t, write(t, s, target, true, inserts("3|c|C")...))
	wantRows(t, url, "SELECT * FROM t ORDER BY 1", "1|a|A\n3|c|C")
}
