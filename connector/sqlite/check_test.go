package sqlite

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// checked returns what Check finds of a file, a line each, notes marked; the room on the disk is left out.
func checked(t *testing.T, path, id string, ts ...*schema.Table) string {
	t.Helper()
	s, err := OpenSink(&Config{Path: path}, connector.Env{Mirror: "m", ID: id})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	problems, err := s.Check(t.Context(), ts)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range problems {
		line := strings.ReplaceAll(p.Table+"|"+p.What+"|"+p.Fix, filepath.Dir(path), "DIR")
		if p.Note {
			line = "note " + line
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func wantChecked(t *testing.T, got, pattern string) {
	t.Helper()
	if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
		t.Errorf("found:\n%s\nwant: %s", got, pattern)
	}
}

// files lists a folder with the sizes and times of what is in it.
func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		list.WriteString(info.Name() + info.ModTime().String() + info.Mode().String() + "\n")
	}
	return list.String()
}

func TestCheckTellsWhatIsWrongWithThePathAndMakesNothing(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("text.db", strings.Repeat("no database at all ", 100))
	write("short.db", "SQLite format 3\x00")
	write("newer.db", "SQLite format 3\x00\x10\x00\x03\x03"+strings.Repeat("\x00", 100))
	write("damaged.db", "SQLite format 3\x00\x10\x00\x02\x02"+strings.Repeat("\xff", 5000))
	write("empty.db", "")
	(&suiteFile{t, filepath.Join(dir, "delete.db")}).exec("CREATE TABLE a (id INTEGER)")
	before := files(t, dir)
	for name, want := range map[string]string{
		"none.db":      ``,
		"empty.db":     ``,
		"no/folder.db": `\|the folder DIR does not exist\|make the folder.*`,
		"text.db/a.db": `\|the file cannot be reached: .*not a directory\|set .path.*\n\|DIR is no folder\|.*`,
		".":            `\|.* is no file .*\|set .path. to a file`,
		"text.db":      `\|the file DIR/text.db is no SQLite database\|set .path. to another file, or remove it`,
		"short.db":     `\|the file DIR/short.db is no SQLite database\|.*`,
		"newer.db":     `\|the file DIR/newer.db has a format that is newer.*`,
		"damaged.db":   `\|the file DIR/damaged.db cannot be used: .*`,
		"delete.db":    `note \|the file has a rollback journal: .*`,
	} {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			wantChecked(t, checked(t, filepath.Join(dir, name), "", itemsTable()), want)
		})
	}
	if after := files(t, dir); after != before {
		t.Errorf("check has changed the folder from\n%sto\n%s", before, after)
	}
}

func TestCheckTellsOfOtherMirrorsAndOfDestinationsThatAreNotOurs(t *testing.T) {
	s := newSinkTest(t)
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	id := s.sink.claim.id
	s.exec("CREATE TABLE theirs (x TEXT)", "INSERT INTO theirs VALUES ('a')", "CREATE TABLE empty (x TEXT)", "CREATE VIEW look AS SELECT 1",
		"INSERT INTO sluice_owner VALUES ('of_other', 'another id', 's', 1, 0, 0)")
	named := func(name string) *schema.Table { return &schema.Table{Name: schema.Name{Table: name}} }
	all := []*schema.Table{named("items"), named("theirs"), named("empty"), named("look"), named("of_other"), named("Theirs"), named("new")}
	wantChecked(t, checked(t, s.path, id, all...),
		`look\|something else of this name exists, a view\|.*\n`+
			`of_other\|another mirror writes the table\|choose another .destination., or tear the other mirror down\n`+
			`Theirs\|SQLite takes its name and that of "theirs" for the same\|.*`)
	wantChecked(t, checked(t, s.path, id, named("items")), ``)
	wantChecked(t, checked(t, s.path, ""), `note \|a mirror named "m" writes here already, and this one was never run.*`)
	wantChecked(t, checked(t, s.path, "other"), `\|another mirror named "m" already writes here\|give this mirror another name, or tear the other one down`)
	s.exec("INSERT INTO sluice_mirror VALUES ('n', 'id', 1, 99, '')")
	wantChecked(t, checked(t, s.path, id), `\|the tables sluice_... have format 99, newer than 1\|use the newer version.*`)
	if !s.sink.claimHolds(t) {
		t.Error("check has disturbed the mirror")
	}
}

// claimHolds reports whether the sink may still write.
func (s *Sink) claimHolds(t *testing.T) bool {
	x, err := s.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return x.Commit(t.Context(), nil) == nil
}

func TestCheckComparesTheRoomWithWhatIsStillToBeCopied(t *testing.T) {
	table := func(rows int64) *schema.Table { return &schema.Table{Rows: rows, RowBytes: 1 << 20} }
	for _, c := range []struct {
		free int64
		ts   []*schema.Table
		want string
	}{
		{-1, []*schema.Table{table(1000)}, ""},
		{leastFree, []*schema.Table{table(64), {Rows: -1, RowBytes: -1}}, ""},
		{leastFree, []*schema.Table{table(60), table(5)}, "note the disk has 64.0 MiB left, and the tables to be copied take about 65.0 MiB at the source"},
		{leastFree - 1<<20, nil, "the disk has 63.0 MiB left, less than the 64 MiB of the write-ahead log"},
	} {
		check, got := &fileCheck{free: c.free}, ""
		check.lookForRoom(c.ts)
		for _, p := range check.problems {
			if got += p.What; p.Note {
				got = "note " + got
			}
		}
		if got != c.want {
			t.Errorf("%d bytes free: %q, want %q", c.free, got, c.want)
		}
	}
	if free, _, err := readDisk(t.TempDir()); err != nil || free <= 0 {
		t.Errorf("the disk has %d bytes left, %v", free, err)
	}
}

// TestCheckTellsWhatMayNotBeWritten looks as a user without rights; root, who may do everything, gives them up meanwhile.
func TestCheckTellsWhatMayNotBeWritten(t *testing.T) {
	s := newSinkTest(t)
	dir := filepath.Dir(s.path)
	s.ok(s.sink.Close())
	s.ok(os.Chmod(s.path, 0o444))
	s.ok(os.Chmod(filepath.Dir(dir), 0o755)) // for another user to get there
	s.ok(os.Chmod(dir, 0o555))
	defer os.Chmod(dir, 0o755)
	if os.Geteuid() == 0 {
		s.ok(syscall.Seteuid(65534))
		defer syscall.Seteuid(0)
	}
	const folder = `\|in the folder DIR no file can be made: .*permission denied\|make the folder writable for this user`
	const ours = `\nnote \|a mirror named "m" writes here already.*`
	wantChecked(t, checked(t, s.path, ""), `\|DIR/sink.db cannot be written: .*permission denied\|make the file writable for this user\n`+folder+ours)
	wantChecked(t, checked(t, filepath.Join(dir, "none.db"), ""), folder)
}

func TestRemovedMirrorLeavesOnlyItsDestinations(t *testing.T) {
	s := newSinkTest(t)
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	other, err := OpenSink(&Config{Path: s.path}, connector.Env{Mirror: "n"})
	s.ok(err)
	defer other.Close()
	_, err = other.Claim(t.Context(), "n", "")
	s.ok(err)
	theirs := &sinkTest{suiteFile: s.suiteFile, t: t, sink: other}
	table := itemsTable()
	table.Name.Table = "theirs"
	target := theirs.copy(table, connectortest.Row{"1", "a", "b"})
	s.ok(theirs.put(target, map[string]string{"at": "1"}))
	target.Copy++
	s.ok(other.Create(t.Context(), target)) // a copy under way
	unfinished := s.plan(itemsTable())
	s.ok(s.sink.Create(t.Context(), unfinished))
	s.ok(s.load(unfinished, connectortest.Row{"2", "a", "b"}))
	s.ok(s.put(unfinished, map[string]string{"at": "1"}))

	s.ok(s.sink.Remove(t.Context()))
	s.holds("SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM theirs)", "1|1")
	s.holds(`SELECT (SELECT group_concat(name) FROM sluice_mirror), (SELECT group_concat("table") FROM sluice_owner), (SELECT count(*) FROM sluice_entry)`, "n|theirs|1")
	s.holds("SELECT name FROM sqlite_schema WHERE name LIKE 'sluice_copy%' AND type = 'table'", copyName(target))
	s.kind(s.put(unfinished, nil, connectortest.Row{"3", "a", "b"}), connector.Fenced)
	s.ok(other.Remove(t.Context()))
	s.holds("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name", "items theirs")
	s.kind(theirs.put(target, nil, connectortest.Row{"3", "a", "b"}), connector.Setup)
	claim, err := s.sink.Claim(t.Context(), "m", "")
	if err != nil || !claim.New {
		t.Errorf("the next claim is %+v, %v", claim, err)
	}
}

func TestRemoveIsRefusedToOneWhoLostTheMirror(t *testing.T) {
	s := newSinkTest(t)
	s.copy(itemsTable())
	s.claimed()
	s.kind(s.sink.Remove(t.Context()), connector.Fenced)
	s.holds("SELECT (SELECT count(*) FROM sluice_mirror), (SELECT count(*) FROM sluice_owner)", "1|1")
}
