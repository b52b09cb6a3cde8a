package crash

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/testdb"
)

// historyOfAudited is the table audited as a history; the sink's text is read into the types of PostgreSQL.
const historyOfAudited = `CREATE TABLE audited (id int, v bigint, note text, big text, _sluice_op text, _sluice_position text,
	_sluice_seq bigint, _sluice_committed_at timestamptz, _sluice_unsent text, _sluice_old_key jsonb);`

// unload brings the rows of the mirror's file into the database that stands beside it, so that both kinds of sinks are
// compared in the same way.
func (m *mirror) unload(ctx context.Context) error {
	var b strings.Builder
	for _, tab := range tables {
		fmt.Fprintf(&b, "DROP TABLE IF EXISTS %s;", tab.name)
		if tab.name == "audited" {
			b.WriteString(historyOfAudited)
			continue
		}
		fmt.Fprintf(&b, "CREATE TABLE %s (%s, v bigint NOT NULL, note text, big text);\n", tab.name, strings.Join(tab.key, ", "))
	}
	conn, err := pgx.Connect(ctx, m.sink)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	if _, err := conn.PgConn().Exec(ctx, b.String()).ReadAll(); err != nil {
		return err
	}
	file, err := sqlite.OpenConn(m.file, sqlite.OpenReadOnly)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, tab := range tables {
		columns := append(tab.keyNames(), "v", "note", "big")
		if tab.name == "audited" {
			columns = append(columns, "_sluice_op", "_sluice_position", "_sluice_seq", "_sluice_committed_at", "_sluice_unsent", "_sluice_old_key")
		}
		if err := unloadTable(ctx, conn, file, tab.name, strings.Join(columns, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// copyText escapes a value for COPY's text format.
var copyText = strings.NewReplacer(`\`, `\\`, "\t", `\t`, "\n", `\n`, "\r", `\r`)

func unloadTable(ctx context.Context, conn *pgx.Conn, file *sqlite.Conn, name, columns string) error {
	var b strings.Builder
	err := sqlitex.ExecuteTransient(file, "SELECT "+columns+" FROM "+name, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		for c := range s.ColumnCount() {
			if c > 0 {
				b.WriteByte('\t')
			}
			if s.ColumnIsNull(c) {
				b.WriteString(`\N`)
			} else {
				b.WriteString(copyText.Replace(s.ColumnText(c)))
			}
		}
		b.WriteByte('\n')
		return nil
	}})
	if err != nil {
		return err
	}
	_, err = conn.PgConn().CopyFrom(ctx, strings.NewReader(b.String()), "COPY "+name+" ("+columns+") FROM STDIN")
	return err
}

// lockFile holds the file's lock until release is called.
func (m *mirror) lockFile(t *testing.T) (release func()) {
	t.Helper()
	file, err := sqlite.OpenConn(m.file, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err == nil {
		err = sqlitex.ExecuteTransient(file, "BEGIN IMMEDIATE", nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() { file.Close() }
}

// tablesInSink is how many of the tables the sink has.
func (m *mirror) tablesInSink(t *testing.T) string {
	t.Helper()
	var names []string
	for _, tab := range tables {
		names = append(names, "'"+tab.name+"'")
	}
	if m.file == "" {
		return testdb.QueryText(t, m.sink, "SELECT count(to_regclass('public.' || name)) FROM unnest(ARRAY["+strings.Join(names, ", ")+"]) name")
	}
	file, err := sqlite.OpenConn(m.file, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var n string
	err = sqlitex.ExecuteTransient(file, "SELECT count(*) FROM sqlite_schema WHERE name IN ("+strings.Join(names, ", ")+")",
		&sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error { n = s.ColumnText(0); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
