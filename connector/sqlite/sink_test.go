package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// sinkTest is a claimed sink and its file.
type sinkTest struct {
	*suiteFile
	t    *testing.T
	sink *Sink
}

func newSinkTest(t *testing.T) *sinkTest {
	s := &sinkTest{suiteFile: newSuiteFile(t), t: t}
	s.sink = s.claimed()
	return s
}

// claimed opens the file as another process does.
func (s *sinkTest) claimed() *Sink {
	s.t.Helper()
	sink, err := OpenSink(&Config{Path: s.path}, connector.Env{Mirror: "m"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { sink.Close() })
	if _, err := sink.Claim(s.t.Context(), "m", ""); err != nil {
		s.t.Fatal(err)
	}
	return sink
}

func tableOf(name schema.Name, columns ...schema.Column) *schema.Table {
	t := &schema.Table{ID: schema.ID(name.String()), Version: 1, Name: name, Columns: columns, Key: []int{0}}
	for i := range t.Columns {
		t.Columns[i].Number = int32(i + 1)
	}
	return t
}

func itemsTable() *schema.Table {
	return tableOf(schema.Name{Schema: "public", Table: "items"}, connectortest.Int64("id"), connectortest.Text("name"), connectortest.Text("big"))
}

func (s *sinkTest) plan(t *schema.Table) *connector.Target {
	s.t.Helper()
	target, err := s.sink.Plan(s.t.Context(), connector.Target{Table: t, Name: t.Name})
	if err != nil {
		s.t.Fatal(err)
	}
	target.Copy++
	return target
}

// copy makes a new copy of a table out of rows.
func (s *sinkTest) copy(t *schema.Table, rows ...connectortest.Row) *connector.Target {
	s.t.Helper()
	target := s.plan(t)
	s.ok(s.sink.Create(s.t.Context(), target))
	s.ok(s.load(target, rows...))
	s.ok(s.sink.Ready(s.t.Context(), target, nil))
	return target
}

func (s *sinkTest) load(target *connector.Target, rows ...connectortest.Row) error {
	tx, err := s.sink.Begin(s.t.Context())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	r := buildRows(s.t, target.Table, connector.Insert, rows...)
	if err := tx.Load(s.t.Context(), target, r); err != nil {
		return err
	}
	return tx.Commit(s.t.Context(), nil)
}

func buildRows(t *testing.T, table *schema.Table, op connector.Op, rows ...connectortest.Row) *connector.Rows {
	t.Helper()
	b := connectortest.NewRowsBuilder(memory.DefaultAllocator, table)
	for _, row := range rows {
		if err := b.Append(op, row); err != nil {
			t.Fatal(err)
		}
	}
	return b.Rows()
}

// put upserts rows, with entries.
func (s *sinkTest) put(target *connector.Target, entries map[string]string, rows ...connectortest.Row) error {
	tx, err := s.sink.Begin(s.t.Context())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	r := buildRows(s.t, target.Table, connector.Insert, rows...)
	r.Distinct = true
	if err := tx.Write(s.t.Context(), target, r); err != nil {
		return err
	}
	return tx.Commit(s.t.Context(), entries)
}

func (s *sinkTest) ok(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *sinkTest) kind(err error, want connector.Kind) {
	s.t.Helper()
	if err == nil || connector.KindOf(err) != want {
		s.t.Fatalf("error %v of kind %s, want %s", err, connector.KindOf(err), want)
	}
}

func (s *sinkTest) holds(sql, want string) {
	s.t.Helper()
	var lines []string
	for _, row := range s.mustQuery(sql) {
		lines = append(lines, strings.Join(row, "|"))
	}
	if got := strings.Join(lines, " "); got != want {
		s.t.Fatalf("%s gives %q, want %q", sql, got, want)
	}
}

func TestLockedFileIsUnavailable(t *testing.T) {
	s := newSinkTest(t)
	target := s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	other := s.other()
	defer other.Close()
	s.ok(query(other, "BEGIN IMMEDIATE", nil))
	s.sink.busyWait = 50 * time.Millisecond
	s.kind(s.put(target, nil, connectortest.Row{"2", "a", "b"}), connector.Unavailable)
	_, err := s.sink.Claim(t.Context(), "m", "")
	s.kind(err, connector.Unavailable)
	if _, err := s.sink.Plan(t.Context(), connector.Target{Table: itemsTable(), Name: itemsTable().Name}); err != nil {
		t.Errorf("plan beside a writer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	s.sink.busyWait = time.Minute
	if _, err := s.sink.Claim(ctx, "m", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a claim that waits for the lock ends with %v", err)
	}
	s.ok(query(other, "ROLLBACK", nil))
	s.ok(s.put(target, nil, connectortest.Row{"2", "a", "b"}))
	s.holds("SELECT * FROM items", "1|a|b 2|a|b")
}

func TestReaderWithAnOpenTransactionHoldsNothingUp(t *testing.T) {
	s := newSinkTest(t)
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	other := s.other()
	defer other.Close()
	s.ok(query(other, "BEGIN", nil))
	if n, err := queryText(other, "SELECT count(*) FROM items"); n != "1" {
		t.Fatal(n, err)
	}
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"}, connectortest.Row{"2", "a", "b"})
	if n, err := queryText(other, "SELECT count(*) FROM items"); n != "1" {
		t.Errorf("the reader's transaction sees %s rows, %v", n, err)
	}
	s.ok(query(other, "COMMIT", nil))
	s.holds("SELECT count(*) FROM items", "2")
}

func TestEntriesChangedByAnotherAreNoticed(t *testing.T) {
	for name, change := range map[string]string{
		"changed": "UPDATE sluice_entry SET value = '7'", "deleted": "DELETE FROM sluice_entry", "added": "INSERT INTO sluice_entry VALUES ('m', 'new', '7')",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSinkTest(t)
			target := s.copy(itemsTable())
			s.ok(s.put(target, map[string]string{"at": "1"}, connectortest.Row{"1", "a", "b"}))
			s.exec(change)
			entries := map[string]string{"at": "2", "new": "1"}
			s.kind(s.put(target, entries, connectortest.Row{"2", "a", "b"}), connector.Fenced)
			s.holds("SELECT id FROM items", "1")
		})
	}
}

func TestViewsIndexesAndTriggersOutliveACopy(t *testing.T) {
	s := newSinkTest(t)
	table := itemsTable()
	s.copy(table, connectortest.Row{"1", "a", "b"}, connectortest.Row{"2", "a", "b"})
	s.exec("CREATE VIEW names AS SELECT id, name FROM items", "CREATE VIEW broken AS SELECT * FROM nowhere")
	s.copy(table, connectortest.Row{"1", "a", "b"}, connectortest.Row{"3", "c", "b"})
	s.holds("SELECT * FROM names ORDER BY id", "1|a 3|c")
	s.exec("CREATE INDEX by_name ON items (name)", "CREATE TABLE seen (what TEXT)",
		"CREATE TRIGGER ins AFTER INSERT ON items BEGIN INSERT INTO seen VALUES ('+' || new.id); END",
		"CREATE TRIGGER upd AFTER UPDATE ON items BEGIN INSERT INTO seen VALUES ('=' || new.id); END",
		"CREATE TRIGGER del AFTER DELETE ON items BEGIN INSERT INTO seen VALUES ('-' || old.id); END")
	s.copy(table, connectortest.Row{"1", "a", "b"}, connectortest.Row{"3", connectortest.Null, "b"}, connectortest.Row{"4", "d", "b"})
	s.holds("SELECT * FROM items ORDER BY id", "1|a|b 3|∅|b 4|d|b")
	s.holds("SELECT group_concat(what, ' ') FROM (SELECT what FROM seen ORDER BY what)", "+4 =3")
	s.holds("SELECT name FROM sqlite_schema WHERE name IN ('by_name', 'ins', 'upd', 'del', 'names') ORDER BY name", "by_name del ins names upd")
	s.holds("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'sluice_copy%'", "0")
}

func TestTableThatIsKeptGetsNewColumnsAndNoOtherTypes(t *testing.T) {
	s := newSinkTest(t)
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	s.exec("CREATE INDEX by_name ON items (name)")
	wider := itemsTable()
	wider.Columns = append(wider.Columns, connectortest.Int64("n"))
	s.copy(wider, connectortest.Row{"1", "a", "b", "5"})
	s.holds("SELECT * FROM items", "1|a|b|5")
	other := itemsTable()
	other.Columns[1].Type = schema.Type{Kind: schema.Int64, Native: "bigint"}
	target := s.plan(other)
	s.ok(s.sink.Create(t.Context(), target))
	s.kind(s.sink.Ready(t.Context(), target, nil), connector.TableFault)
	s.holds("SELECT * FROM items", "1|a|b|5")
	s.exec("DROP INDEX by_name")
	s.ok(s.sink.Ready(t.Context(), target, nil))
	s.ok(s.sink.Ready(t.Context(), target, nil)) // repeatable
	s.holds("SELECT count(*), (SELECT type FROM pragma_table_info('items') WHERE name = 'name') FROM items", "0|INTEGER")
}

func TestNamesThatDifferOnlyInCaseAreRefused(t *testing.T) {
	s := newSinkTest(t)
	named := func(schemaName, table string) connector.Target {
		n := schema.Name{Schema: schemaName, Table: table}
		return connector.Target{Table: tableOf(n, connectortest.Int64("id")), Name: n}
	}
	s.copy(named("public", "items").Table)
	for _, c := range []struct {
		want   connector.Target
		stored string
	}{
		{named("public", "items"), "items"}, {named("shop", "items"), "shop_items"}, {named("", "plain"), "plain"}, {named("public", "Ä"), "Ä"}, {named("public", "ä"), "ä"},
		{named("public", "ITEMS"), ""}, {named("SHOP", "Items"), ""}, {named("public", "Shop_items"), ""},
		{named("public", "sluice_x"), ""}, {named("sqlite", "stat"), ""}, {named("Sluice", "entry"), ""},
	} {
		target, err := s.sink.Plan(t.Context(), c.want)
		switch {
		case c.stored == "":
			s.kind(err, connector.TableFault)
		case err != nil || target.Name != schema.Name{Table: c.stored}:
			t.Errorf("%s is stored as %v, %v, want %s", c.want.Name, target, err, c.stored)
		}
	}
	twice := named("public", "columns")
	twice.Table.Columns = append(twice.Table.Columns, connectortest.Text("ID"))
	_, err := s.sink.Plan(t.Context(), twice)
	s.kind(err, connector.TableFault)
	again := s.claimed()
	_, err = again.Plan(t.Context(), named("public", "Items"))
	s.kind(err, connector.TableFault)
}

func TestPlanMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.db")
	sink, err := OpenSink(&Config{Path: "none.db"}, connector.Env{Dir: filepath.Dir(path), Mirror: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if _, err := sink.Plan(t.Context(), connector.Target{Table: itemsTable(), Name: itemsTable().Name}); err != nil {
		t.Error(err)
	}
	if exists(path) {
		t.Error("plan has made the file")
	}
	if _, err := sink.Claim(t.Context(), "m", ""); err != nil || !exists(path) {
		t.Error("the file is not beside the config", err)
	}
}

func TestFilesThatCannotBeUsedAreSetupFaults(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.db")
	if err := os.WriteFile(text, []byte(strings.Repeat("no database at all", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	newer := &suiteFile{t, filepath.Join(dir, "newer.db")}
	newer.exec(sinkTables[0], "INSERT INTO sluice_mirror VALUES ('m', 'id', 1, 99, '')")
	for _, path := range []string{text, newer.path, filepath.Join(dir, "no", "folder.db"), dir} {
		sink, err := OpenSink(&Config{Path: path}, connector.Env{Mirror: "m"})
		if err == nil {
			_, err = sink.Claim(t.Context(), "m", "")
		}
		if err == nil || connector.KindOf(err) != connector.Setup {
			t.Errorf("%s: error %v of kind %s, want setup", filepath.Base(path), err, connector.KindOf(err))
		}
		sink.Close()
	}
}

func TestFileThatIsRemovedIsNotWrittenOn(t *testing.T) {
	s := newSinkTest(t)
	target := s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	for _, suffix := range []string{"", "-wal", "-shm"} {
		s.ok(os.Remove(s.path + suffix))
	}
	s.kind(s.put(target, nil, connectortest.Row{"2", "a", "b"}), connector.Unavailable)
	claim, err := s.sink.Claim(t.Context(), "m", "the id")
	if err != nil || !claim.New || claim.ID != "the id" {
		t.Errorf("the next claim is %+v, %v", claim, err)
	}
}

func TestNullInAKeyIsABadRow(t *testing.T) {
	s := newSinkTest(t)
	target := s.copy(itemsTable())
	s.kind(s.put(target, nil, connectortest.Row{connectortest.Null, "a", "b"}), connector.BadRow)
	s.holds("SELECT count(*) FROM items", "0")
}

func TestTextKeepsNULAndBytesThatAreNoText(t *testing.T) {
	s := newSinkTest(t)
	s.copy(itemsTable(), connectortest.Row{"1", "a\x00b", "\xff\xfe"})
	s.holds("SELECT hex(name), hex(big), typeof(name) FROM items", "610062|FFFE|text")
}

func TestUniqueIndexOfTheUserNamesTheRow(t *testing.T) {
	s := newSinkTest(t)
	target := s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	s.exec("CREATE UNIQUE INDEX one_name ON items (name)")
	rows := []connectortest.Row{{"2", "c", "b"}, {"3", "a", "b"}}
	s.kind(s.put(target, nil, rows...), connector.Constraint)
	tx, err := s.sink.Begin(t.Context())
	s.ok(err)
	err = tx.Write(t.Context(), target, buildRows(t, target.Table, connector.Insert, rows...))
	s.kind(err, connector.BadRow)
	if e, ok := errors.AsType[*connector.Error](err); !ok || e.Row != 1 {
		t.Errorf("%v does not name row 1", err)
	}
	s.ok(tx.Rollback())
	s.holds("SELECT id FROM items", "1")
}

// TestKilledProcessLeavesWholeTransactions kills a writer again and again; whatever it has reported is there, rows and
// entries agree, and the next process claims the file at once.
func TestKilledProcessLeavesWholeTransactions(t *testing.T) {
	s := newSinkTest(t)
	target := s.copy(itemsTable())
	for round := range 5 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWriter$", "-test.v")
		cmd.Env = append(os.Environ(), "SLUICE_TEST_SQLITE="+s.path, fmt.Sprintf("SLUICE_TEST_FIRST=%d", round*1_000_000))
		out, err := cmd.StdoutPipe()
		s.ok(err)
		s.ok(cmd.Start())
		last := -1
		for n := 0; n < 10+round; { // acknowledged commits before the kill
			var line string
			if _, err := fmt.Fscanln(out, &line); err != nil && line == "" && !strings.Contains(err.Error(), "newline") {
				t.Fatal("the writer ended: ", err)
			}
			if _, err := fmt.Sscanf(line, "committed:%d", &last); err == nil {
				n++
			}
		}
		s.ok(cmd.Process.Kill())
		_ = cmd.Wait() // killed
		s.sink = s.claimed()
		s.holds("PRAGMA integrity_check", "ok")
		s.holds(fmt.Sprintf("SELECT max(id) >= %d, max(id) = (SELECT value FROM sluice_entry WHERE key = 'last') + 1, count(*) %% 2 FROM items", last), "1|1|0")
	}
	s.ok(s.put(target, map[string]string{"last": ""}, connectortest.Row{"-1", "a", "b"}))
}

// TestKilledWriter is the process that [TestKilledProcessLeavesWholeTransactions] kills: it writes two rows and an entry
// in each transaction.
func TestKilledWriter(t *testing.T) {
	path := os.Getenv("SLUICE_TEST_SQLITE")
	if path == "" {
		t.Skip("runs as a child of another test")
	}
	var first int
	if _, err := fmt.Sscan(os.Getenv("SLUICE_TEST_FIRST"), &first); err != nil {
		t.Fatal(err)
	}
	s := &sinkTest{suiteFile: &suiteFile{t, path}, t: t}
	s.sink = s.claimed()
	target := s.plan(itemsTable())
	for n := first; ; n += 2 {
		rows := []connectortest.Row{{fmt.Sprint(n), "a", strings.Repeat("b", 5000)}, {fmt.Sprint(n + 1), "a", "b"}}
		s.ok(s.put(target, map[string]string{"last": fmt.Sprint(n)}, rows...))
		fmt.Printf("\ncommitted:%d\n", n)
	}
}
