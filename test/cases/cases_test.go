// Package cases runs the data cases: a folder each, see README.md.
package cases

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
	"github.com/sluicehq/sluice/test/process"
)

var (
	testServer *testdb.Postgres
	program    string // path of the built command
)

// runLimit is how long one `sluice run --once` may take.
const runLimit = time.Minute

func TestMain(m *testing.M) { process.Main(m, &program, &testServer) }

// settings is the file config.yaml of a case. A case without one has the zero value.
type settings struct {
	Only   string        `yaml:"only"`   // "copy" or "stream"; "": both
	Server int           `yaml:"server"` // the oldest major of PostgreSQL that can run it; 0: all
	Exit   int           `yaml:"exit"`   // exit code of each run
	Mirror yaml.MapSlice `yaml:"mirror"` // the block of this name in the mirror's configuration
}

func TestCases(t *testing.T) {
	folders, err := filepath.Glob("*/source.sql")
	if err != nil || folders == nil {
		t.Fatalf("no cases: %v", err)
	}
	sinkServer := testServer.Sink(t)
	for _, f := range folders {
		dir := filepath.Dir(f)
		s, err := readSettings(dir)
		if err != nil {
			t.Fatalf("case %s: %v", dir, err)
		}
		for _, way := range []string{"copy", "stream"} {
			if s.Only != "" && s.Only != way {
				continue
			}
			t.Run(dir+"/"+way, func(t *testing.T) {
				t.Parallel()
				runCase(t, sinkServer, dir, way, s)
			})
		}
	}
}

func readSettings(dir string) (settings, error) {
	var s settings
	b, err := os.ReadFile(filepath.Join(dir, "config.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	err = yaml.UnmarshalWithOptions(b, &s, yaml.DisallowUnknownField())
	if err == nil && !slices.Contains([]string{"", "copy", "stream"}, s.Only) {
		err = fmt.Errorf("config.yaml: only: %q is neither copy nor stream", s.Only)
	}
	return s, err
}

// runCase brings the changes through the copy, or through the stream: then a first run has copied what source.sql made.
func runCase(t *testing.T, sinkServer *testdb.Postgres, dir, way string, s settings) {
	if have := min(testServer.Version(t), sinkServer.Version(t)) / 10000; have < s.Server {
		t.Skipf("needs PostgreSQL %d, this is %d", s.Server, have)
	}
	source, sink := testServer.Database(t), sinkServer.Database(t)
	mirror, err := yaml.Marshal(s.Mirror)
	if err != nil {
		t.Fatal(err)
	}
	sluice := process.New(t, program, process.Config{Name: dir + "_" + way, Source: source, Sink: sink, Mirror: string(mirror)})
	psql(t, source, filepath.Join(dir, "source.sql"))
	if way == "stream" {
		sluice.Once(t, s.Exit, runLimit)
	}
	psql(t, source, filepath.Join(dir, "changes.sql"))
	sluice.Once(t, s.Exit, runLimit)
	checkExpected(t, dir, source, sink)
}

// psql runs a file, each statement in a transaction of its own unless the file says otherwise.
func psql(t *testing.T, url, file string) {
	t.Helper()
	program, err := testServer.Program("psql")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, url)
	cmd.Env = append(os.Environ(), "PGCLIENTENCODING=UTF8", "PGOPTIONS=-c client_min_messages=warning")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql -f %s: %v\n%s", file, err, out)
	}
}

func checkExpected(t *testing.T, dir, source, sink string) {
	t.Helper()
	tables := sourceTables(t, source)
	if b, err := os.ReadFile(filepath.Join(dir, "expected.tsv")); err == nil {
		if string(bytes.TrimSpace(b)) != "same" && len(tables) != 1 {
			t.Fatalf("expected.tsv holds rows, but the source has %d tables: write expected/<schema.table>.tsv", len(tables))
		}
		for _, name := range tables {
			checkTable(t, source, sink, name, b)
		}
		return
	}
	files, err := filepath.Glob(filepath.Join(dir, "expected", "*.tsv"))
	if err != nil || files == nil {
		t.Fatalf("the case has neither expected.tsv nor expected/*.tsv: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, err := schema.ParseName(strings.TrimSuffix(filepath.Base(file), ".tsv"))
		if err != nil {
			t.Fatal(err)
		}
		checkTable(t, source, sink, quoted(name), b)
	}
}

// sourceTables returns the tables of a case, quoted; partitions are no tables of their own.
func sourceTables(t *testing.T, source string) (names []string) {
	t.Helper()
	const query = `SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname !~ '^pg_|^information_schema$' ORDER BY 1`
	for _, row := range testdb.Query(t, source, query) {
		names = append(names, row[0])
	}
	return names
}

func quoted(n schema.Name) string {
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	return quote(n.Schema) + "." + quote(n.Table)
}

// checkTable compares a table of the sink with the content of a .tsv file: a marker, or a line of column names and the
// rows of these columns as COPY writes them, in any order.
func checkTable(t *testing.T, source, sink, name string, expected []byte) {
	t.Helper()
	text := string(bytes.TrimRight(expected, "\n"))
	if query, ok := strings.CutPrefix(text, "source: "); ok {
		want, got := lines(copyOut(t, source, query)), lines(copyOut(t, sink, "SELECT * FROM "+name))
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("table %s in the sink:\n%.2000s\nwant what the source gives:\n%.2000s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return
	}
	switch text {
	case "same":
		diff, err := testdb.OpenPair(t, source, sink).Compare(t.Context(), name, name)
		if err != nil || diff != "" {
			t.Errorf("%s %v", diff, err)
		}
	case "absent":
		if rows := testdb.Query(t, sink, "SELECT to_regclass('"+strings.ReplaceAll(name, "'", "''")+"')"); rows[0][0] != "∅" {
			t.Errorf("table %s is in the sink", name)
		}
	default:
		header, rest, _ := strings.Cut(text, "\n")
		want := lines(rest)
		columns := strings.Split(header, "\t")
		got := lines(copyOut(t, sink, fmt.Sprintf("SELECT %s FROM %s", strings.Join(columns, ", "), name)))
		if !slices.Equal(got, want) {
			t.Errorf("table %s in the sink:\n%s\nwant:\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	l := strings.Split(strings.TrimRight(text, "\n"), "\n")
	slices.Sort(l)
	return l
}
