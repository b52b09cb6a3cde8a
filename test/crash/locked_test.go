package crash

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

// lockedLimit is longer than a transaction waits for the file, twice.
const lockedLimit = 40 * time.Second

func TestSQLiteFileLockedByAnotherProgramIsAFaultOfTheSinkAndOfNoTable(t *testing.T) {
	source, file := testServer.Database(t), filepath.Join(t.TempDir(), "mirror.db")
	testdb.Exec(t, source, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
	sluice := process.New(t, program, process.Config{Name: "locked", Source: source, SinkFile: file, Mirror: "max_table_failures: 1"})
	p := sluice.Run(t)
	holds := func(rows string) func() error {
		return func() error {
			if got := rowsOfFile(file); got != rows {
				return fmt.Errorf("the file holds %q, want %q", got, rows)
			}
			return nil
		}
	}
	testdb.EventuallyWithin(t, lockedLimit, holds("1 1"))
	for _, table := range []string{"a", "b"} {
		if !p.Log.Await("table is streaming\" mirror=locked table=public."+table, lockedLimit) {
			t.Fatalf("table %s is not streaming", table)
		}
	}
	other, err := sqlite.OpenConn(file, sqlite.OpenReadWrite)
	if err == nil {
		err = sqlitex.ExecuteTransient(other, "BEGIN IMMEDIATE", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, source, "INSERT INTO a VALUES (2); INSERT INTO b VALUES (2)")
	gaveWay := p.Log.Await("trying again", lockedLimit)
	other.Close()
	if !gaveWay {
		t.Fatal("the run does not tell that the file is locked")
	}
	testdb.EventuallyWithin(t, lockedLimit, holds("2 2"))
	for _, line := range p.Log.All() {
		if strings.Contains(line, "paused") || strings.Contains(line, "failed") {
			t.Errorf("a table was blamed: %s", line)
		}
	}
	if code, err := p.Stop(stopLimit); err != nil || code != exitOK {
		t.Errorf("after SIGTERM: exit code %d, %v", code, err)
	}
}

// rowsOfFile returns how many rows the tables a and b have, or why that cannot be told.
func rowsOfFile(path string) (counts string) {
	file, err := sqlite.OpenConn(path, sqlite.OpenReadOnly)
	if err == nil {
		defer file.Close()
		err = sqlitex.ExecuteTransient(file, "SELECT (SELECT count(*) FROM a) || ' ' || (SELECT count(*) FROM b)",
			&sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error { counts = s.ColumnText(0); return nil }})
	}
	if err != nil {
		return err.Error()
	}
	return counts
}
