package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

func TestPlanTellsUniqueIndexesBeyondTheKey(t *testing.T) {
	s := newSinkTest(t)
	if s.plan(itemsTable()).UniqueBeyondKey {
		t.Error("a table that does not exist has a unique index")
	}
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	for _, c := range []struct {
		make   string
		beyond bool
	}{
		{"CREATE INDEX i ON items (name)", false},
		{"CREATE UNIQUE INDEX i ON items (name, id)", false},
		{"CREATE UNIQUE INDEX i ON items (name)", true},
		{"CREATE UNIQUE INDEX i ON items (lower(name))", true},
		{"CREATE UNIQUE INDEX i ON items (name) WHERE big = 'x'", true},
	} {
		s.exec(c.make)
		if got := s.plan(itemsTable()).UniqueBeyondKey; got != c.beyond {
			t.Errorf("%s: unique beyond the key: %t", c.make, got)
		}
		s.exec("DROP INDEX i")
	}
}

// into copies rows into a destination under a setting.
func (s *sinkTest) into(want connector.Target, rows ...connectortest.Row) *connector.Target {
	s.t.Helper()
	want.Name = want.Table.Name
	target, err := s.sink.Plan(s.t.Context(), want)
	s.ok(err)
	target.Copy++
	s.ok(s.sink.Create(s.t.Context(), target))
	s.ok(s.load(target, rows...))
	s.ok(s.sink.Ready(s.t.Context(), target, nil))
	return target
}

func (s *sinkTest) refused(want connector.Target, parts ...string) {
	s.t.Helper()
	want.Name = want.Table.Name
	_, err := s.sink.Plan(s.t.Context(), want)
	s.kind(err, connector.TableFault)
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			s.t.Errorf("refused with %q, want %q", err, part)
		}
	}
}

// one writes a row as a set, or by itself.
func (s *sinkTest) one(target *connector.Target, distinct bool, op connector.Op, row connectortest.Row) error {
	tx, err := s.sink.Begin(s.t.Context())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	r := buildRows(s.t, target.Table, op, row)
	r.Distinct = distinct
	if err := tx.Write(s.t.Context(), target, r); err != nil {
		return err
	}
	return tx.Commit(s.t.Context(), nil)
}

func TestExistingRowsAreReplacedOrMerged(t *testing.T) {
	for _, c := range []struct {
		existing      connector.Existing
		first, second string
	}{
		{connector.ReplaceExisting, "1|one|∅|mine 4|four|D|∅", "1|uno|∅|mine"},
		{connector.MergeExisting, "1|one|∅|mine 2|old|B|∅ 4|four|D|∅", "1|uno|∅|mine 2|old|B|∅ 4|four|D|∅"},
	} {
		t.Run(c.existing.String(), func(t *testing.T) {
			s := newSinkTest(t)
			s.exec("CREATE TABLE items (big VARCHAR(5), extra TEXT, Id INTEGER, name TEXT, UNIQUE (id))",
				"INSERT INTO items VALUES ('A', 'mine', 1, 'old'), ('B', NULL, 2, 'old')")
			want := connector.Target{Table: itemsTable()}
			s.refused(want, "not of this mirror", "existing")
			want.Existing = c.existing
			s.into(want, connectortest.Row{"1", "one", connectortest.Null}, connectortest.Row{"4", "four", "D"})
			const all = "SELECT id, name, big, extra FROM items ORDER BY id"
			s.holds(all, c.first)

			want.Existing = connector.RefuseExisting // the table stays somebody else's making, also if the setting goes
			if again := s.plan(want.Table); again.Copy != 2 || again.Existing != connector.ReplaceExisting {
				t.Errorf("planned again with copy %d and existing %s", again.Copy, again.Existing)
			}
			want.Existing = c.existing
			target := s.into(want, connectortest.Row{"1", "uno", connectortest.Null})
			s.holds(all, c.second)
			s.holds("SELECT instr(sql, 'VARCHAR') > 0 FROM sqlite_schema WHERE name = 'items'", "1")
			s.ok(s.put(target, nil, connectortest.Row{"9", "i", "I"}))
			s.ok(s.one(target, true, connector.Delete, connectortest.Row{"9", connectortest.Unsent, connectortest.Unsent}))
			s.holds(all, c.second)
			err := s.one(target, false, connector.Truncate, nil)
			if c.existing == connector.MergeExisting {
				s.kind(err, connector.TableFault) // rows of others would go
				s.holds(all, c.second)
			} else {
				s.ok(err)
				s.holds(all, "")
			}
		})
	}
}

func TestSoftDeletesReplaceRowsOfOthersAndKeepTheirOwn(t *testing.T) {
	s := newSinkTest(t)
	s.exec("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, big TEXT, _sluice_deleted_at TEXT)", "INSERT INTO items (id) VALUES (1), (2)")
	want := connector.Target{Table: itemsTable(), Existing: connector.ReplaceExisting, SoftDelete: true}
	s.into(want, connectortest.Row{"1", "a", "A"}, connectortest.Row{"3", "c", "C"})
	s.into(want, connectortest.Row{"1", "a", "A"})
	s.holds("SELECT id, _sluice_deleted_at IS NULL FROM items ORDER BY id", "1|1 3|0")
}

func TestDeletesChangeBetweenHardAndSoft(t *testing.T) {
	s := newSinkTest(t)
	soft, hard := connector.Target{Table: itemsTable(), SoftDelete: true}, connector.Target{Table: itemsTable()}
	s.into(hard, connectortest.Row{"1", "a", "A"}, connectortest.Row{"2", "b", "B"})
	s.into(soft, connectortest.Row{"1", "a", "A"})
	const all = "SELECT id, _sluice_deleted_at IS NULL FROM items ORDER BY id"
	s.holds(all, "1|1 2|0")
	s.exec("CREATE INDEX i ON items (name)", "UPDATE items SET _sluice_deleted_at = 'x'")
	s.into(hard, connectortest.Row{"1", "a", "A"})
	s.holds(all, "1|1")
}

func TestExistingTableThatDoesNotFitIsRefused(t *testing.T) {
	s := newSinkTest(t)
	target := func(name string) connector.Target {
		table := itemsTable()
		table.Name.Table = name
		return connector.Target{Table: table, Existing: connector.MergeExisting}
	}
	s.exec("CREATE TABLE t (id TEXT, name NUMERIC, need INT NOT NULL, free INT NOT NULL DEFAULT 1)",
		"CREATE TABLE strict (id ANY PRIMARY KEY, name ANY, big BLOB) STRICT",
		"CREATE TABLE computed (id INTEGER PRIMARY KEY, name TEXT AS ('x'), big TEXT)",
		"CREATE TABLE partial (id INTEGER, name TEXT, big TEXT)", "CREATE UNIQUE INDEX p ON partial (id) WHERE id > 0",
		"CREATE TABLE loose (id TEXT COLLATE NOCASE PRIMARY KEY)",
		"CREATE TABLE fits (id INTEGER PRIMARY KEY, name TEXT NOT NULL, big CHECK (big <> ''), up INTEGER REFERENCES t)",
		"CREATE TRIGGER tr AFTER INSERT ON fits BEGIN SELECT 1; END", "CREATE UNIQUE INDEX u ON fits (name)")
	s.refused(target("t"), `"id" has type TEXT`, `"name" has type NUMERIC`, `no column "big"`, `"need", which the source does not have`, `no unique index on ("id")`, `ADD COLUMN "big" TEXT`)
	s.refused(target("strict"), `"big" has type BLOB`)
	s.refused(target("computed"), `"name" is generated`)
	s.refused(target("partial"), "no unique index")
	loose := tableOf(schema.Name{Schema: "public", Table: "loose"}, connectortest.Text("id"))
	s.refused(connector.Target{Table: loose, Existing: connector.ReplaceExisting}, "compares bytes")
	want := target("fits")
	want.Name = want.Table.Name
	fits, err := s.sink.Plan(t.Context(), want)
	s.ok(err)
	if fmt.Sprint(fits.Misfits) != "[ NULL ]" || len(fits.Notes) != 4 || !fits.UniqueBeyondKey {
		t.Errorf("misfits %q, notes %q", fits.Misfits, fits.Notes)
	}
	want.History = true
	s.refused(want, "declared in another way")
}

// TestForeignKeysDoNotActOnTheMirrorsRows brings a child before its parent and deletes a parent whose children would go.
func TestForeignKeysDoNotActOnTheMirrorsRows(t *testing.T) {
	s := newSinkTest(t)
	s.exec("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, big TEXT)",
		"CREATE TABLE child (id INTEGER PRIMARY KEY REFERENCES items ON DELETE CASCADE, name TEXT, big TEXT)")
	table := itemsTable()
	table.Name.Table = "child"
	parents := s.into(connector.Target{Table: itemsTable(), Existing: connector.ReplaceExisting}, connectortest.Row{"1", "a", "A"})
	children := s.into(connector.Target{Table: table, Existing: connector.ReplaceExisting}, connectortest.Row{"1", "x", "X"})
	s.ok(s.put(children, nil, connectortest.Row{"2", "x", "X"}))
	s.ok(s.one(parents, true, connector.Delete, connectortest.Row{"1", connectortest.Unsent, connectortest.Unsent}))
	s.holds("SELECT id FROM child ORDER BY id", "1 2")
	s.into(connector.Target{Table: itemsTable(), Existing: connector.ReplaceExisting}, connectortest.Row{"3", "a", "A"})
	s.holds("SELECT id FROM child ORDER BY id", "1 2")
	s.holds("SELECT id FROM items", "3")
}

func TestChangeRenamesNoColumnOfATableOfOthers(t *testing.T) {
	s := newSinkTest(t)
	s.exec("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, big TEXT, c TEXT)", "INSERT INTO items VALUES (1, 'x', 'x', 'theirs')")
	from := s.into(connector.Target{Table: itemsTable(), Existing: connector.MergeExisting}, connectortest.Row{"1", "a", "A"})
	to := itemsTable()
	to.Columns = append(to.Columns, connectortest.Text("c"))
	next, err := s.sink.Change(t.Context(), from, connector.Alteration{Want: connector.Target{Table: to, Name: to.Name, Existing: connector.MergeExisting}})
	s.ok(err)
	if next != nil {
		t.Error("a column of that name was there, and the sink has altered the table")
	}
	s.holds("SELECT id, name, c FROM items", "1|a|theirs")
}

func TestChangeKeepsWhetherTheTableIsOurs(t *testing.T) {
	s := newSinkTest(t)
	from := s.into(connector.Target{Table: itemsTable(), Existing: connector.MergeExisting}, connectortest.Row{"1", "a", "A"})
	to := itemsTable()
	to.Columns = append(to.Columns, connectortest.Text("c"))
	next, err := s.sink.Change(t.Context(), from, connector.Alteration{Want: connector.Target{Table: to, Name: to.Name, Existing: connector.MergeExisting}})
	s.ok(err)
	if next == nil || next.Existing != connector.RefuseExisting {
		t.Errorf("changed to %+v, want a table of ours", next)
	}
}
