package postgres

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

func TestSourcePassesTheSuite(t *testing.T) {
	connectortest.RunSource(t, connectortest.SourceHarness{
		Schema: "public",
		New:    func(t testing.TB) connectortest.SourceSystem { return newSuiteDatabase(t) },
	})
}

func TestSinkPassesTheSuite(t *testing.T) {
	connectortest.RunSink(t, connectortest.SinkHarness{
		Schema: "public",
		New:    func(t testing.TB) connectortest.SinkSystem { return &suiteSink{newSuiteDatabase(t)} },
		Skip: map[string]string{
			"create_goes_on_with_a_copy": "Create begins a copy anew; each has a number of its own",
			"change_adds_a_column":       "a changed table is copied anew",
		},
	})
}

// suiteDatabase is one database as a connectortest.SourceSystem.
type suiteDatabase struct {
	t      testing.TB
	url    string
	mirror string // slots are the server's, so it is named after the database
}

func newSuiteDatabase(t testing.TB) *suiteDatabase {
	t.Helper()
	s := &suiteDatabase{t: t, url: testServer.Database(t)}
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	s.mirror = strings.TrimPrefix(u.Path, "/")
	return s
}

func (s *suiteDatabase) env(alloc memory.Allocator) connector.Env {
	return connector.Env{Mirror: s.mirror, ID: "id-" + s.mirror, Alloc: alloc}
}

func (s *suiteDatabase) Open(ctx context.Context, alloc memory.Allocator) (connector.Source, error) {
	return OpenSource(ctx, &Config{URL: s.url, Connections: 4}, s.env(alloc))
}

func (s *suiteDatabase) Create(spec connectortest.TableSpec) error {
	var parts []string
	for _, c := range spec.Columns {
		parts = append(parts, quoteIdent(c.Name)+" "+c.Type.Native)
	}
	for _, key := range spec.Key {
		parts = append(parts, "PRIMARY KEY ("+quoteIdent(key)+")")
	}
	sql := "CREATE TABLE " + quoteName(spec.Name) + " (" + strings.Join(parts, ", ") + ");"
	for _, c := range spec.Toasted {
		sql += "ALTER TABLE " + quoteName(spec.Name) + " ALTER COLUMN " + quoteIdent(c) + " SET STORAGE EXTERNAL;"
	}
	return s.run(sql)
}

func (s *suiteDatabase) AddColumn(table schema.Name, c schema.Column) error {
	return s.run("ALTER TABLE " + quoteName(table) + " ADD COLUMN " + quoteIdent(c.Name) + " " + c.Type.Native)
}

// PublishAll has the mirror's own publication publish a whole schema, as only 15 and later can.
func (s *suiteDatabase) PublishAll() (bool, error) {
	if testServer.Version(s.t) < 150000 {
		return false, nil
	}
	return true, s.run("ALTER PUBLICATION " + quoteIdent(objectName(s.mirror)) + " ADD TABLES IN SCHEMA public")
}

// run runs statements as one transaction.
func (s *suiteDatabase) run(sql string) error {
	return s.with(func(conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(s.t.Context(), sql).ReadAll()
		return err
	})
}

func (s *suiteDatabase) with(do func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(s.t.Context(), s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return do(conn)
}

func (s *suiteDatabase) Exec(changes ...connectortest.Change) error {
	return s.with(func(conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(s.t.Context(), "BEGIN;"+s.statements(conn, changes)+"COMMIT").ReadAll()
		return err
	})
}

// Hold keeps its connection until the end of the transaction.
func (s *suiteDatabase) Hold(changes ...connectortest.Change) (func(...connectortest.Change) error, error) {
	conn, err := pgx.Connect(s.t.Context(), s.url)
	if err != nil {
		return nil, err
	}
	if _, err := conn.PgConn().Exec(s.t.Context(), "BEGIN;"+s.statements(conn, changes)).ReadAll(); err != nil {
		conn.Close(context.Background())
		return nil, err
	}
	return func(more ...connectortest.Change) error {
		defer conn.Close(context.Background())
		_, err := conn.PgConn().Exec(s.t.Context(), s.statements(conn, more)+"COMMIT").ReadAll()
		return err
	}, nil
}

// statements writes changes as SQL, over the columns that the table has now.
func (s *suiteDatabase) statements(conn *pgx.Conn, changes []connectortest.Change) string {
	var b strings.Builder
	columns := map[schema.Name][]string{}
	for _, c := range changes {
		if columns[c.Table] == nil {
			columns[c.Table] = s.columns(conn, c.Table)
		}
		writeStatement(&b, c, columns[c.Table])
	}
	return b.String()
}

func (s *suiteDatabase) columns(conn *pgx.Conn, table schema.Name) []string {
	rows, err := conn.Query(s.t.Context(), "SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 ORDER BY attnum", quoteName(table))
	if err != nil {
		s.t.Error(err)
		return nil
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Error(err)
	}
	return names
}

// writeStatement writes one change; the first column is the key.
func writeStatement(b *strings.Builder, c connectortest.Change, columns []string) {
	table := quoteName(c.Table)
	switch c.Op {
	case connector.Insert:
		values := make([]string, len(c.Values))
		for i, v := range c.Values {
			values[i] = suiteLiteral(v)
		}
		fmt.Fprintf(b, "INSERT INTO %s VALUES (%s);", table, strings.Join(values, ","))
	case connector.Update:
		var sets []string
		for i, v := range c.Values {
			if v != connectortest.Unsent {
				sets = append(sets, quoteIdent(columns[i])+"="+suiteLiteral(v))
			}
		}
		fmt.Fprintf(b, "UPDATE %s SET %s WHERE %s=%s;", table, strings.Join(sets, ","), quoteIdent(columns[0]), suiteLiteral(c.Key[0]))
	case connector.Delete:
		fmt.Fprintf(b, "DELETE FROM %s WHERE %s=%s;", table, quoteIdent(columns[0]), suiteLiteral(c.Key[0]))
	case connector.Truncate:
		fmt.Fprintf(b, "TRUNCATE %s;", table)
	}
}

func suiteLiteral(v string) string {
	if v == connectortest.Null {
		return "NULL"
	}
	return quoteLiteral(v)
}

func (s *suiteDatabase) StrangePosition() connector.Position {
	return position{system: 1, timeline: 1, lsn: 1}.Position()
}

func (s *suiteDatabase) Rows(table schema.Name) ([]connectortest.Row, error) {
	return s.query("SELECT * FROM " + quoteName(table) + " ORDER BY 1"), nil
}

func (s *suiteDatabase) query(sql string) []connectortest.Row {
	rows := []connectortest.Row{}
	for _, row := range testdb.Query(s.t, s.url, sql) {
		rows = append(rows, row)
	}
	return rows
}

// suiteSink is one database as a connectortest.SinkSystem.
type suiteSink struct{ *suiteDatabase }

func (s *suiteSink) Open(ctx context.Context, alloc memory.Allocator) (connector.Sink, error) {
	return OpenSink(ctx, &Config{URL: s.url, Connections: 6}, s.env(alloc))
}

func (s *suiteSink) exists(table schema.Name) bool {
	return testdb.QueryText(s.t, s.url, "SELECT to_regclass("+quoteLiteral(quoteName(table))+") IS NOT NULL") == "t"
}

func (s *suiteSink) list(columns []string) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = quoteIdent(c)
	}
	return strings.Join(names, ", ")
}

func (s *suiteSink) Rows(table schema.Name, columns []string) ([]connectortest.Row, error) {
	if !s.exists(table) {
		return nil, nil
	}
	for _, c := range columns {
		if s.query("SELECT count(*) FROM pg_attribute WHERE NOT attisdropped AND attname = " + quoteLiteral(c) +
			" AND attrelid = " + quoteLiteral(quoteName(table)) + "::regclass")[0][0] != "1" {
			return nil, fmt.Errorf("there is no column %q", c)
		}
	}
	return s.query("SELECT " + s.list(columns) + " FROM " + quoteName(table)), nil
}

func (s *suiteSink) History(table schema.Name, columns []string) ([]connectortest.HistoryRow, error) {
	var rows []connectortest.HistoryRow
	for _, row := range s.query(`SELECT "_sluice_op", coalesce("_sluice_position", ''), coalesce("_sluice_seq", 0), ` + s.list(columns) +
		" FROM " + quoteName(table) + ` ORDER BY "_sluice_position" COLLATE "C" NULLS FIRST, "_sluice_seq" NULLS FIRST, ` + quoteIdent(columns[0])) {
		h := connectortest.HistoryRow{Op: row[0], Position: connector.Position(row[1]), Row: row[3:]}
		if _, err := fmt.Sscan(row[2], &h.Seq); err != nil {
			return nil, err
		}
		rows = append(rows, h)
	}
	return rows, nil
}

func (s *suiteSink) SoftRows(table schema.Name, columns []string) ([]connectortest.Row, error) {
	return s.query("SELECT " + s.list(columns) + `, ("_sluice_deleted_at" AT TIME ZONE 'UTC')::text || '+00' FROM ` + quoteName(table)), nil
}

func (s *suiteSink) CreateForeign(table schema.Name, columns ...string) error {
	sql := "CREATE TABLE " + quoteName(table) + " (" + strings.ReplaceAll(s.list(columns), ",", " text,") + " text);"
	return s.run(sql + "INSERT INTO " + quoteName(table) + " DEFAULT VALUES")
}
