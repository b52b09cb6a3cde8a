package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

func TestSinkPassesTheSuite(t *testing.T) {
	connectortest.RunSink(t, connectortest.SinkHarness{
		New: func(t testing.TB) connectortest.SinkSystem { return newSuiteFile(t) },
		Skip: map[string]string{
			"change_adds_a_column": "a changed table is copied anew",
		},
	})
}

// suiteFile is one database file as a connectortest.SinkSystem.
type suiteFile struct {
	t    testing.TB
	path string
}

func newSuiteFile(t testing.TB) *suiteFile {
	return &suiteFile{t, filepath.Join(t.TempDir(), "sink.db")}
}

func (f *suiteFile) Open(_ context.Context, alloc memory.Allocator) (connector.Sink, error) {
	return OpenSink(&Config{Path: f.path}, connector.Env{Mirror: "suite", Alloc: alloc})
}

// other is a connection of another program.
func (f *suiteFile) other() *sqlite.Conn {
	f.t.Helper()
	conn, err := sqlite.OpenConn(f.path, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

// exec runs statements as another program.
func (f *suiteFile) exec(statements ...string) {
	f.t.Helper()
	conn := f.other()
	defer conn.Close()
	for _, sql := range statements {
		if err := query(conn, sql, func(*sqlite.Stmt) {}); err != nil {
			f.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// query returns the text of a query's rows, as another program reads them; NULL is connectortest.Null.
func (f *suiteFile) query(sql string) ([]connectortest.Row, error) {
	conn := f.other()
	defer conn.Close()
	rows := []connectortest.Row{}
	err := query(conn, sql, func(s *sqlite.Stmt) {
		row := make(connectortest.Row, s.ColumnCount())
		for c := range row {
			if row[c] = s.ColumnText(c); s.ColumnIsNull(c) {
				row[c] = connectortest.Null
			}
		}
		rows = append(rows, row)
	})
	return rows, err
}

func (f *suiteFile) mustQuery(sql string) []connectortest.Row {
	f.t.Helper()
	rows, err := f.query(sql)
	if err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

func (f *suiteFile) Rows(table schema.Name, columns []string) ([]connectortest.Row, error) {
	if rows, err := f.query("SELECT 1 FROM sqlite_schema WHERE name = '" + table.Table + "'"); err != nil || len(rows) == 0 {
		return nil, err
	}
	for _, c := range columns {
		if rows, err := f.query("SELECT 1 FROM pragma_table_info('" + table.Table + "') WHERE name = '" + c + "'"); err != nil || len(rows) == 0 {
			return nil, fmt.Errorf("there is no column %q: %w", c, err)
		}
	}
	return f.query("SELECT " + quoteList(columns) + " FROM " + quoteIdent(table.Table))
}

func (f *suiteFile) History(table schema.Name, columns []string) ([]connectortest.HistoryRow, error) {
	var rows []connectortest.HistoryRow
	found, err := f.query(`SELECT "_sluice_op", coalesce("_sluice_position", ''), coalesce("_sluice_seq", 0), ` + quoteList(columns) +
		" FROM " + quoteIdent(table.Table) + ` ORDER BY "_sluice_position", "_sluice_seq", ` + quoteIdent(columns[0]))
	for _, row := range found {
		h := connectortest.HistoryRow{Op: row[0], Position: connector.Position(row[1]), Row: row[3:]}
		if _, err := fmt.Sscan(row[2], &h.Seq); err != nil {
			return nil, err
		}
		rows = append(rows, h)
	}
	return rows, err
}

func (f *suiteFile) SoftRows(table schema.Name, columns []string) ([]connectortest.Row, error) {
	return f.Rows(table, append(slices.Clone(columns), connector.DeletedAt))
}

func (f *suiteFile) CreateForeign(table schema.Name, columns ...string) error {
	name := quoteIdent(table.Table)
	f.exec("CREATE TABLE "+name+" ("+strings.ReplaceAll(quoteList(columns), ",", " TEXT,")+" TEXT)", "INSERT INTO "+name+" DEFAULT VALUES")
	return nil
}
