package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	alterKills = 6
	alterAge   = 2500 * time.Millisecond // the age that a process reaches at most before it is killed
)

// TestSchemaChangesUnderKillsEndEqual changes tables, their columns and their rows at random while the process is killed
// again and again; at the end the source says what the sink must hold.
func TestSchemaChangesUnderKillsEndEqual(t *testing.T) {
	for _, sink := range []string{"postgres", "sqlite"} {
		t.Run(sink, func(t *testing.T) {
			seed := *seedFlag
			t.Logf("seed %d", seed)
			c := process.Config{
				Name: "alter_" + sink, Source: testServer.Database(t),
				Mirror: "dropped_columns: drop\ntables: {discover_interval: 1s}\nretry_paused: 2s",
			}
			if sink == "sqlite" {
				c.SinkFile = filepath.Join(t.TempDir(), "alter.db")
			} else {
				c.Sink = testServer.Database(t)
			}
			a := newAlterer(t, c.Source, seed)
			sluice := process.New(t, program, c)
			rng := rand.New(rand.NewPCG(seed, 1))
			followed := 0
			count := func(p *process.Process) {
				for _, line := range p.Log.All() {
					if strings.Contains(line, "destination was altered") {
						followed++
					}
				}
			}
			for range alterKills {
				p := sluice.Run(t)
				a.changeFor(random(rng, alterAge))
				select {
				case <-p.Exited():
					t.Fatalf("the process ended by itself, exit code %d\n%s", p.ExitCode(), p.Log.Tail(40))
				default:
				}
				p.Kill()
				count(p)
				a.changeFor(random(rng, alterAge/10)) // while nobody reads
			}
			p := sluice.Run(t)
			a.changeFor(alterAge)
			testdb.EventuallyWithin(t, catchUpLimit, func() error { return a.compare(c) })
			if code, err := p.Stop(stopLimit); err != nil || code != 0 {
				t.Fatalf("exit code %d, %v", code, err)
			}
			count(p)
			t.Logf("%d statements, of them %d changed the schema; %d changes were followed without a new copy", a.statements, a.changes, followed)
			if followed == 0 {
				t.Error("no change was followed")
			}
		})
	}
}

// alterer changes the source on one connection.
type alterer struct {
	t    *testing.T
	conn *pgx.Conn
	rng  *rand.Rand
	next int // for new names and values

	statements, changes int
}

// alteredTables are the names that tables have and exchange; parts is partitioned.
var alteredTables = []string{"one", "two", "parts"}

func newAlterer(t *testing.T, url string, seed uint64) *alterer {
	t.Helper()
	testdb.Exec(t, url, `CREATE TYPE mood AS ENUM ('sad', 'happy');
		CREATE TABLE one (id int PRIMARY KEY, v text, m mood); CREATE TABLE two (id int PRIMARY KEY, v varchar(8), w int);
		CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
		CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100);
		INSERT INTO one SELECT i, 'v' || i, 'sad' FROM generate_series(1, 50) i; INSERT INTO two SELECT i, 'v' || i, i FROM generate_series(1, 50) i;
		INSERT INTO parts SELECT i, 'v' || i FROM generate_series(1, 50) i`)
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return &alterer{t: t, conn: conn, rng: rand.New(rand.NewPCG(seed, 2))}
}

func (a *alterer) exec(sql string) {
	a.t.Helper()
	a.statements++
	if _, err := a.conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		a.t.Fatalf("%v, in %s", err, sql)
	}
}

// changeFor runs transactions for so long.
func (a *alterer) changeFor(d time.Duration) {
	a.t.Helper()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-pace.C {
		switch {
		case a.rng.IntN(20) > 0:
			a.write()
		case a.rng.IntN(3) > 0:
			a.alter()
		default:
			a.exec("BEGIN")
			for range 1 + a.rng.IntN(3) {
				a.write()
				a.alter()
			}
			a.write()
			a.exec("COMMIT")
		}
		if a.rng.IntN(400) == 0 {
			a.exec("VACUUM FULL " + a.table())
		}
	}
}

func (a *alterer) table() string { return alteredTables[a.rng.IntN(len(alteredTables))] }

type alteredColumn struct{ name, typ string }

// columns returns those of a table, without its key.
func (a *alterer) columns(table string) []alteredColumn {
	a.t.Helper()
	rows, err := a.conn.Query(context.Background(), `SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attname <> 'id' ORDER BY attnum`, pgx.QueryExecModeExec, table)
	if err != nil {
		a.t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c alteredColumn, err error) {
		err = r.Scan(&c.name, &c.typ)
		return c, err
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return columns
}

// value is a constant of a type.
func (a *alterer) value(typ string) string {
	a.next++
	switch {
	case a.rng.IntN(6) == 0:
		return "NULL"
	case strings.HasPrefix(typ, "numeric"):
		return fmt.Sprintf("%d.%d", a.next%1000, a.rng.IntN(100))
	case typ == "integer", typ == "bigint":
		return fmt.Sprint(a.next)
	case typ == "mood":
		return []string{"'sad'", "'happy'"}[a.rng.IntN(2)]
	}
	return fmt.Sprintf("'t%d'", a.next%100000)
}

func (a *alterer) write() {
	table := a.table()
	id := 1 + a.rng.IntN(80)
	columns := a.columns(table)
	switch a.rng.IntN(5) {
	case 0:
		a.exec(fmt.Sprintf("DELETE FROM %s WHERE id = %d", table, id))
	case 1, 2:
		names, values := []string{"id"}, []string{fmt.Sprint(id)}
		for _, c := range columns {
			names, values = append(names, c.name), append(values, a.value(c.typ))
		}
		a.exec(fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT DO NOTHING", table, strings.Join(names, ", "), strings.Join(values, ", ")))
	default:
		if len(columns) > 0 {
			c := columns[a.rng.IntN(len(columns))]
			a.exec(fmt.Sprintf("UPDATE %s SET %s = %s WHERE id = %d", table, c.name, a.value(c.typ), id))
		}
	}
}

// alter changes a table.
func (a *alterer) alter() {
	a.changes++
	a.next++
	table := a.table()
	columns := a.columns(table)
	alter := func(format string, args ...any) { a.exec("ALTER TABLE " + table + " " + fmt.Sprintf(format, args...)) }
	name := fmt.Sprintf("c%d", a.rng.IntN(6))
	taken := slices.ContainsFunc(columns, func(c alteredColumn) bool { return c.name == name })
	var some alteredColumn
	if len(columns) > 0 {
		some = columns[a.rng.IntN(len(columns))]
	}
	// What leads to a new copy is rare: it would hide what the changes before it have done.
	switch n := a.rng.IntN(100); {
	case n < 40 && !taken:
		typ := []string{"integer", "text", "varchar(9)", "numeric(8,2)", "bigint"}[a.rng.IntN(5)]
		given := []string{"", " DEFAULT " + a.value(typ), " DEFAULT " + a.value(typ)}[a.rng.IntN(3)]
		if typ == "text" && a.rng.IntN(12) == 0 {
			given = " DEFAULT md5(random()::text)"
		}
		alter("ADD %s %s%s", name, typ, given)
	case n < 4:
		a.whole(table)
	case some.name == "":
	case n < 65:
		alter("DROP %s", some.name)
	case n < 90 && !taken:
		alter("RENAME %s TO %s", some.name, name)
	case n >= 97 && some.typ == "text":
		alter("ALTER %s TYPE text USING left(upper(%s), 20)", some.name, some.name)
	case n == 98:
		alter("DROP %s, ADD %s text DEFAULT %s", some.name, some.name, a.value("text"))
	case n == 99 && some.typ == "integer":
		alter("ALTER %s TYPE bigint USING %s + 1", some.name, some.name)
	case strings.HasPrefix(some.typ, "character varying"):
		alter("ALTER %s TYPE %s", some.name, []string{"varchar(40)", "text"}[a.rng.IntN(2)])
	case strings.HasPrefix(some.typ, "numeric"):
		alter("ALTER %s TYPE numeric(%d,2)", some.name, 10+a.rng.IntN(10))
	}
}

// whole changes a table as a whole.
func (a *alterer) whole(table string) {
	n := a.next
	switch a.rng.IntN(5) {
	case 0:
		a.exec("ALTER TABLE one RENAME TO other; ALTER TABLE two RENAME TO one; ALTER TABLE other RENAME TO two")
	case 1:
		a.exec("TRUNCATE " + table)
	case 2:
		if table != "parts" {
			a.exec(fmt.Sprintf("DROP TABLE %s; CREATE TABLE %[1]s (id int PRIMARY KEY, v text); INSERT INTO %[1]s VALUES (%d, 'again')", table, n%80+1))
		}
	case 3:
		a.exec(fmt.Sprintf("CREATE TABLE parts_%d PARTITION OF parts FOR VALUES FROM (%d) TO (%d)", n, n*100, n*100+100))
	case 4:
		a.exec(fmt.Sprintf(`CREATE TABLE parts_%d (LIKE parts INCLUDING ALL); INSERT INTO parts_%[1]d (id) VALUES (%[2]d);
			ALTER TABLE parts ATTACH PARTITION parts_%[1]d FOR VALUES FROM (%[2]d) TO (%[3]d)`, n, n*100, n*100+100))
	}
}

// compare returns how the sink differs from the source.
func (a *alterer) compare(c process.Config) error {
	for _, table := range alteredTables {
		columns := []string{"id"}
		for _, column := range a.columns(table) {
			columns = append(columns, column.name)
		}
		query := "SELECT " + strings.Join(columns, ", ") + " FROM " + table + " ORDER BY id"
		want, err := testdb.TryQuery(c.Source, query)
		if err != nil {
			return err
		}
		there := "SELECT count(*) FROM pg_attribute WHERE attrelid = '" + table + "'::regclass AND attnum > 0 AND NOT attisdropped"
		read := func(sql string) ([][]string, error) { return testdb.TryQuery(c.Sink, sql) }
		if c.SinkFile != "" {
			there = "SELECT count(*) FROM pragma_table_info('" + table + "')"
			read = func(sql string) ([][]string, error) { return readFile(c.SinkFile, sql) }
		}
		got, err := read(query)
		if err != nil {
			return err
		}
		if len(got) != len(want) {
			return fmt.Errorf("table %s has %d rows, not %d", table, len(got), len(want))
		}
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				return fmt.Errorf("table %s (%s) has row %q, not %q", table, strings.Join(columns, ", "), got[i], want[i])
			}
		}
		count, err := read(there)
		if err != nil {
			return err
		}
		if count[0][0] != fmt.Sprint(len(columns)) {
			return fmt.Errorf("table %s has %s columns, not %q", table, count[0][0], columns)
		}
	}
	return nil
}

// readFile returns the text of a query's rows, NULL as testdb writes it.
func readFile(path, sql string) (rows [][]string, err error) {
	file, err := sqlite.OpenConn(path, sqlite.OpenReadOnly)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	err = sqlitex.ExecuteTransient(file, sql, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		row := make([]string, s.ColumnCount())
		for c := range row {
			if row[c] = s.ColumnText(c); s.ColumnIsNull(c) {
				row[c] = "∅"
			}
		}
		rows = append(rows, row)
		return nil
	}})
	return rows, err
}

// started returns a running mirror of a table t with one row, whose copy is in place.
func started(t *testing.T, mirror string) (c process.Config, sluice *process.Sluice, p *process.Process) {
	t.Helper()
	c = process.Config{Name: "alter", Source: testServer.Database(t), Sink: testServer.Database(t), Mirror: mirror}
	testdb.Exec(t, c.Source, "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
	sluice = process.New(t, program, c)
	p = sluice.Run(t)
	holds(t, c, "SELECT id, v FROM t", "1|a")
	return c, sluice, p
}

// holds waits until a query of the sink gives these rows.
func holds(t *testing.T, c process.Config, query, want string) {
	t.Helper()
	testdb.EventuallyWithin(t, catchUpLimit, func() error {
		rows, err := testdb.TryQuery(c.Sink, query)
		if err != nil {
			return err
		}
		lines := make([]string, len(rows))
		for i, row := range rows {
			lines[i] = strings.Join(row, "|")
		}
		if got := strings.Join(lines, "\n"); got != want {
			return fmt.Errorf("%s: %q, not %q", query, got, want)
		}
		return nil
	})
}

func TestTableTakenOutOfThePublicationIsCopiedAgain(t *testing.T) {
	c, _, p := started(t, "tables: {discover_interval: 1s}")
	testdb.Exec(t, c.Source, "ALTER PUBLICATION sluice_alter DROP TABLE t; INSERT INTO t VALUES (2, 'unseen')")
	holds(t, c, "SELECT id, v FROM t ORDER BY id", "1|a\n2|unseen")
	if !p.Log.Await("it was taken out of the publication", lateAge) {
		t.Error("the log does not say why the table was copied")
	}
	testdb.Exec(t, c.Source, "ALTER TABLE t ADD w int; UPDATE t SET w = id") // seen again
	holds(t, c, "SELECT id, v, w FROM t ORDER BY id", "1|a|1\n2|unseen|2")
}

func TestPolicyPausesATableWithTheDifference(t *testing.T) {
	c, sluice, p := started(t, "schema_changes: pause\nretry_paused: 1s")
	testdb.Exec(t, c.Source, "INSERT INTO t VALUES (2, 'b'); ALTER TABLE t ADD w int; INSERT INTO t VALUES (3, 'c', 3)")
	if !p.Log.Await(`column \"w\" integer is new`, lateAge) {
		t.Fatal("the table does not pause with the difference")
	}
	holds(t, c, "SELECT id, v FROM t ORDER BY id", "1|a\n2|b")
	p.Kill()
	file := filepath.Join(filepath.Dir(sluice.Config), "mirror.yaml")
	c.Mirror = "schema_changes: follow"
	if path, err := c.Write(filepath.Dir(sluice.Config)); err != nil || path != file {
		t.Fatal(path, err)
	}
	sluice.Once(t, 0, catchUpLimit)
	holds(t, c, "SELECT id, v, w FROM t ORDER BY id", "1|a|∅\n2|b|∅\n3|c|3")
}

func TestIdleTableIsAlteredByDiscovery(t *testing.T) {
	c, _, _ := started(t, "tables: {discover_interval: 1s}")
	testdb.Exec(t, c.Source, "ALTER TABLE t ADD w text DEFAULT 'x'; ALTER TABLE t RENAME v TO u")
	holds(t, c, "SELECT id, u, w FROM t", "1|a|x")
	testdb.Exec(t, c.Source, "ALTER TABLE t ALTER u TYPE text USING upper(u)")
	holds(t, c, "SELECT id, u, w FROM t", "1|A|x")
}
