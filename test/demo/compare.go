package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/internal/testdb"
)

// compareEvery is how long a table that is not equal yet is given before it is read again.
const compareEvery = 300 * time.Millisecond

// content is what a table holds: its number of rows, and a sum over their values that does not depend on their order.
type content struct {
	rows int64
	sum  uint64
}

// add takes a row in, as the texts of its values; nil is NULL.
func (c *content) add(row []*string) {
	h := sha256.New()
	for _, v := range row {
		if v == nil {
			fmt.Fprint(h, "-;")
			continue
		}
		fmt.Fprintf(h, "%d:%s;", len(*v), *v)
	}
	c.rows++
	c.sum += binary.BigEndian.Uint64(h.Sum(nil))
}

// compare reads every row of every table from the shop and from the mirror's file, each with the system's own means, until
// they are equal, and returns a line for each table.
func compare(ctx context.Context, shopURL, file string, tables []string) ([]string, error) {
	conn, err := pgx.Connect(ctx, shopURL)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.PgConn().Exec(ctx, testdb.FixedOutput).ReadAll(); err != nil {
		return nil, err
	}
	mirror, err := sqlite.OpenConn(file, sqlite.OpenReadOnly)
	if err != nil {
		return nil, err
	}
	defer mirror.Close()
	var lines []string
	for _, t := range tables {
		line, err := compareTable(ctx, conn, mirror, t)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func compareTable(ctx context.Context, conn *pgx.Conn, mirror *sqlite.Conn, table string) (string, error) {
	columns, err := columnsOf(ctx, conn, table)
	if err != nil {
		return "", err
	}
	for {
		there, err := readShop(ctx, conn, table, columns)
		if err != nil {
			return "", err
		}
		here, err := readMirror(mirror, table, columns)
		if err == nil && there == here {
			return fmt.Sprintf("%-12s %9d rows in the shop %9d in the mirror   equal, every value", table, there.rows, here.rows), nil
		}
		if !sleep(ctx, compareEvery) {
			return "", fmt.Errorf("table %s is not equal: %d rows in the shop, %d in the mirror, %v", table, there.rows, here.rows, err)
		}
	}
}

// column is how a column's values are read as text that is the same on both sides.
type column struct{ inShop, inMirror string }

func columnsOf(ctx context.Context, conn *pgx.Conn, table string) ([]column, error) {
	rows, err := conn.Query(ctx, `SELECT quote_ident(attname), format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, "public."+table)
	if err != nil {
		return nil, err
	}
	var columns []column
	var name, kind string
	_, err = pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
		name := strings.Trim(name, `"`)
		c := column{inShop: `"` + name + `"::text`, inMirror: `"` + name + `"`}
		switch {
		case kind == "boolean":
			c.inShop = `"` + name + `"::int::text`
		case strings.HasSuffix(kind, "[]"):
			c.inShop, c.inMirror = `to_json("`+name+`")::text`, `json("`+name+`")`
		}
		columns = append(columns, c)
		return nil
	})
	return columns, err
}

func readShop(ctx context.Context, conn *pgx.Conn, table string, columns []column) (c content, err error) {
	var list []string
	row, into := make([]*string, len(columns)), []any{}
	for i, column := range columns {
		list, into = append(list, column.inShop), append(into, &row[i])
	}
	rows, err := conn.Query(ctx, "SELECT "+strings.Join(list, ", ")+" FROM public."+table)
	if err != nil {
		return c, err
	}
	_, err = pgx.ForEachRow(rows, into, func() error { c.add(row); return nil })
	return c, err
}

func readMirror(conn *sqlite.Conn, table string, columns []column) (c content, err error) {
	var list []string
	for _, column := range columns {
		list = append(list, column.inMirror)
	}
	row := make([]*string, len(columns))
	err = sqlitex.ExecuteTransient(conn, "SELECT "+strings.Join(list, ", ")+" FROM "+table, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error {
		for i := range row {
			row[i] = nil
			if !s.ColumnIsNull(i) {
				text := s.ColumnText(i)
				row[i] = &text
			}
		}
		c.add(row)
		return nil
	}})
	return c, err
}
