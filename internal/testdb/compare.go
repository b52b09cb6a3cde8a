package testdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// differencesShown bounds the differing rows that a report lists.
const differencesShown = 10

// FixedOutput gives a session one text form of each value, whatever the defaults of role and database.
const FixedOutput = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; " +
	"SET extra_float_digits = 3; SET bytea_output = 'hex'; SET lc_monetary = 'C'; SET row_security = off"

// Pair is two databases whose tables are compared by value. It is used by one goroutine at a time.
type Pair struct{ source, sink *pgx.Conn }

// OpenPair connects to both sides; the connections end with the test.
func OpenPair(t testing.TB, source, sink string) *Pair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := NewPair(ctx, source, sink)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewPair is [OpenPair] outside a test. The Pair is to be closed.
func NewPair(ctx context.Context, source, sink string) (*Pair, error) {
	var p Pair
	for _, side := range []struct {
		conn **pgx.Conn
		url  string
	}{{&p.source, source}, {&p.sink, sink}} {
		conn, err := pgx.Connect(ctx, side.url)
		if err != nil {
			p.Close()
			return nil, err
		}
		*side.conn = conn
		if _, err := conn.PgConn().Exec(ctx, FixedOutput).ReadAll(); err != nil {
			p.Close()
			return nil, err
		}
	}
	return &p, nil
}

// Close ends the connections.
func (p *Pair) Close() {
	for _, conn := range []*pgx.Conn{p.source, p.sink} {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}
}

// Compare returns "" if a table of the source and one of the sink hold the same rows, each as often: the same values in
// the server's text form, so that 1.50 is not 1.5 and NULL is not ”. Otherwise it returns what differs, row by row. The
// names are SQL, quoted where needed. The sink may have more columns than the source. An error means that one side could
// not be read: the sink's table may not be there yet.
func (p *Pair) Compare(ctx context.Context, sourceTable, sinkTable string) (string, error) {
	from, err := describe(ctx, p.source, sourceTable)
	if err != nil {
		return "", fmt.Errorf("source table %s: %w", sourceTable, err)
	}
	to, err := describe(ctx, p.sink, sinkTable)
	if err != nil {
		return "", fmt.Errorf("sink table %s: %w", sinkTable, err)
	}
	to.columns, to.key = from.columns, from.key
	a, err := from.checksum(ctx, p.source)
	if err != nil {
		return "", fmt.Errorf("source table %s: %w", sourceTable, err)
	}
	b, err := to.checksum(ctx, p.sink)
	if err != nil {
		return "", fmt.Errorf("sink table %s: %w", sinkTable, err)
	}
	if a == b {
		return "", nil
	}
	rows, err := p.differences(ctx, from, to)
	return fmt.Sprintf("table %s: rows and checksum %s at the source, %s at the sink\n%s", sourceTable, a, b, rows), err
}

// relation is a table as Compare reads it; its names are quoted.
type relation struct {
	from    string // what stands behind FROM
	columns []string
	key     []string // of the primary key; all columns if there is none
}

func describe(ctx context.Context, conn *pgx.Conn, table string) (relation, error) {
	const query = `SELECT c.relkind = 'p', quote_ident(n.nspname) || '.' || quote_ident(c.relname),
		(SELECT coalesce(array_agg(quote_ident(attname) ORDER BY attnum), '{}') FROM pg_attribute
			WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
		(SELECT coalesce(array_agg(quote_ident(attname) ORDER BY array_position(i.indkey::int2[], attnum)), '{}')
			FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::int2[])
			WHERE i.indrelid = c.oid AND i.indisprimary)
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::regclass`
	var r relation
	var partitioned bool
	if err := conn.QueryRow(ctx, query, table).Scan(&partitioned, &r.from, &r.columns, &r.key); err != nil {
		return r, err
	}
	if !partitioned {
		r.from = "ONLY " + r.from // rows of inheritance children are those of other tables
	}
	if len(r.key) == 0 {
		r.key = r.columns
	}
	return r, nil
}

// checksum returns "rows/sum", equal for equal multisets of rows whatever their order.
func (r relation) checksum(ctx context.Context, conn *pgx.Conn) (string, error) {
	query := fmt.Sprintf(`SELECT count(*) || '/' || coalesce(sum(('x' || left(md5(ROW(%s)::text), 15))::bit(60)::bigint), 0) FROM %s`,
		strings.Join(r.columns, ", "), r.from)
	var sum string
	err := conn.QueryRow(ctx, query).Scan(&sum)
	return sum, err
}

// rows returns the rows by key, a key's rows sorted; a row is its columns' values, each in the form of a one-column row,
// which unlike a cast keeps the padding of char(n) and tells NULL from ”.
func (r relation) rows(ctx context.Context, conn *pgx.Conn) (map[string][]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "SELECT ROW(%s)::text", strings.Join(r.key, ", "))
	for _, c := range r.columns {
		fmt.Fprintf(&b, ", ROW(%s)::text", c)
	}
	b.WriteString(" FROM " + r.from)
	results, err := conn.PgConn().Exec(ctx, b.String()).ReadAll()
	if err != nil {
		return nil, err
	}
	byKey := map[string][]string{}
	for _, row := range results[0].Rows {
		values := make([]string, len(row)-1)
		for i, v := range row[1:] {
			values[i] = string(v)
		}
		key := string(row[0])
		byKey[key] = append(byKey[key], strings.Join(values, "\x00"))
	}
	for _, rows := range byKey {
		slices.Sort(rows)
	}
	return byKey, nil
}

func (p *Pair) differences(ctx context.Context, from, to relation) (string, error) {
	a, err := from.rows(ctx, p.source)
	if err != nil {
		return "", err
	}
	b, err := to.rows(ctx, p.sink)
	if err != nil {
		return "", err
	}
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	var out strings.Builder
	n := 0
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if slices.Equal(a[key], b[key]) {
			continue
		}
		if n++; n <= differencesShown {
			fmt.Fprintf(&out, "  key %.200s: %s\n", key, explain(from.columns, a[key], b[key]))
		}
	}
	fmt.Fprintf(&out, "  %d keys differ, %d shown\n", n, min(n, differencesShown))
	return out.String(), nil
}

func explain(columns, source, sink []string) string {
	if len(source) != 1 || len(sink) != 1 {
		return fmt.Sprintf("%d rows at the source, %d at the sink", len(source), len(sink))
	}
	var parts []string
	a, b := strings.Split(source[0], "\x00"), strings.Split(sink[0], "\x00")
	for i, c := range columns {
		if a[i] != b[i] {
			parts = append(parts, fmt.Sprintf("%s is %.80s at the source, %.80s at the sink", c, a[i], b[i]))
		}
	}
	return strings.Join(parts, "; ")
}

// Missing reports whether an error of [Pair.Compare] says that a table is not there.
func Missing(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "42P01" || e.Code == "3F000") // undefined_table, invalid_schema_name
}
