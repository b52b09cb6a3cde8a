package sqlite

import (
	"fmt"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
)

// existingColumn is a column of a table that exists.
type existingColumn struct {
	name, typ                         string
	notNull, fills, generated, strict bool // fills: has a default, or is the row's number; strict: the table is
	key                               int  // place in the primary key, from 1; 0: not in it
}

// inspection looks at a destination that exists.
type inspection struct {
	conn   *sqlite.Conn
	target *connector.Target
	what   []string // that does not fit
	fixes  []string
}

func (c *inspection) misfit(fix, format string, args ...any) {
	c.what, c.fixes = append(c.what, fmt.Sprintf(format, args...)), append(c.fixes, fix)
}

// fit finds all that keeps a table that somebody else has made from storing the target.
func fit(conn *sqlite.Conn, t *connector.Target) error {
	c := &inspection{conn: conn, target: t}
	for _, look := range []func() error{c.fitColumns, c.fitKey} {
		if err := look(); err != nil {
			return err
		}
	}
	if c.what == nil {
		return nil
	}
	return fault(connector.TableFault, "plan", t.Name, strings.Join(c.fixes, "; "), "the table exists, is not of this mirror, and %s",
		strings.Join(c.what, ", "))
}

// fitColumns matches columns by name. SQLite changes a column by making its table anew, so that is left to the user.
func (c *inspection) fitColumns() error {
	var columns []existingColumn
	err := query(c.conn, `SELECT i.name, i.type, i."notnull", i.dflt_value IS NOT NULL, i.hidden > 1, l.strict, i.pk
		FROM pragma_table_list AS l JOIN pragma_table_xinfo(l.name) AS i WHERE l.name = ?1 COLLATE NOCASE AND l.schema = 'main'`, func(row *sqlite.Stmt) {
		columns = append(columns, existingColumn{
			name: row.ColumnText(0), typ: strings.ToUpper(row.ColumnText(1)), notNull: row.ColumnBool(2), fills: row.ColumnBool(3),
			generated: row.ColumnBool(4), strict: row.ColumnBool(5), key: row.ColumnInt(6),
		})
	}, c.target.Name.Table)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for i, want := range tableColumns(c.target) {
		wanted[foldName(want.name)] = true
		name := quoteIdent(want.name)
		n := slices.IndexFunc(columns, func(x existingColumn) bool { return foldName(x.name) == foldName(want.name) })
		if n < 0 {
			c.misfit("ALTER TABLE "+quoteIdent(c.target.Name.Table)+" ADD COLUMN "+name+" "+want.typ, "it has no column %s", name)
			continue
		}
		switch has := columns[n]; {
		case has.generated:
			c.misfit("make the table anew", "its column %s is generated", name)
		case !has.holds(want.typ):
			c.misfit("make the table anew with "+name+" "+want.typ, "its column %s has type %s", name, has.typ)
		case !has.notNull || want.key:
		case want.source < 0:
			c.misfit("make the table anew", "its column %s takes no NULL", name)
		case !c.target.Table.Columns[want.source].NotNull:
			c.target.Misfits[i] = strings.TrimPrefix(c.target.Misfits[i]+", NULL", ", ")
		}
	}
	for _, has := range columns {
		if !wanted[foldName(has.name)] && has.notNull && !has.fills && !has.generated {
			c.misfit("make the table anew", "its column %s, which the source does not have, needs a value", quoteIdent(has.name))
		}
	}
	return nil
}

// holds reports whether the column stores values of a type of ours as they are. In a table that is not STRICT it may turn
// them into others by its affinity (https://www.sqlite.org/datatype3.html, 3.1); it leaves BLOBs alone.
func (c *existingColumn) holds(want string) bool {
	if c.strict {
		return c.typ == want || c.typ == "ANY" || want == "INTEGER" && c.typ == "INT"
	}
	contains := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(c.typ, p) })
	}
	switch {
	case want == "BLOB":
		return true
	case contains("INT"):
		return want == "INTEGER"
	case contains("CHAR", "CLOB", "TEXT"):
		return want == "TEXT"
	case contains("BLOB"), c.typ == "":
		return true
	case contains("REAL", "FLOA", "DOUB"):
		return want == "REAL"
	}
	return want == "INTEGER" // numeric affinity
}

// uniqueSets returns the columns, by their folded names, of each unique index that compares bytes and covers all rows, and
// of a primary key that is the row's number.
func uniqueSets(conn *sqlite.Conn, table string) ([][]string, error) {
	held := map[string][]string{}
	err := query(conn, `
		SELECT i.name, c.name FROM pragma_index_list(?1) AS i JOIN pragma_index_xinfo(i.name) AS c WHERE i."unique" AND NOT i.partial AND c.key
		AND NOT EXISTS (SELECT 1 FROM pragma_index_xinfo(i.name) AS x WHERE x.key AND x.coll <> 'BINARY')
		UNION ALL SELECT '', name FROM pragma_table_info(?1)
		WHERE pk > 0 AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk')`, func(row *sqlite.Stmt) {
		held[row.ColumnText(0)] = append(held[row.ColumnText(0)], foldName(row.ColumnText(1)))
	}, table)
	var sets [][]string
	for _, columns := range held {
		slices.Sort(columns)
		sets = append(sets, columns)
	}
	return sets, err
}

// fitKey asks for the unique index by which a row finds the one that it replaces.
func (c *inspection) fitKey() error {
	sets, err := uniqueSets(c.conn, c.target.Name.Table)
	if err != nil {
		return err
	}
	var key []string
	for _, name := range sinkKey(c.target) {
		key = append(key, foldName(name))
	}
	slices.Sort(key)
	if !slices.ContainsFunc(sets, func(set []string) bool { return slices.Equal(set, key) }) {
		list := quoteList(sinkKey(c.target))
		c.misfit("CREATE UNIQUE INDEX ... ON "+quoteIdent(c.target.Name.Table)+" ("+list+")", "it has no unique index on (%s) that compares bytes", list)
	}
	return nil
}

// takeStock notes what at the destination may refuse or change rows.
func takeStock(conn *sqlite.Conn, t *connector.Target, d destination) error {
	note := func(format string, args ...any) { t.Notes = append(t.Notes, fmt.Sprintf(format, args...)) }
	err := query(conn, "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY name", func(row *sqlite.Stmt) {
		note("trigger %s fires for what the mirror writes, and may change rows", quoteIdent(row.ColumnText(0)))
	}, d.name)
	if err == nil {
		err = query(conn, `SELECT DISTINCT "table" FROM pragma_foreign_key_list(?)`, func(row *sqlite.Stmt) {
			note("its foreign key to %s is not enforced for what the mirror writes, and does not cascade", quoteIdent(row.ColumnText(0)))
		}, d.name)
	}
	if err == nil {
		t.UniqueBeyondKey, err = hasUniqueBeyondKey(conn, d.name, sinkKey(t))
		t.UniqueBeyondKey = t.UniqueBeyondKey && !t.History
	}
	if t.UniqueBeyondKey {
		note("a unique index beyond the key may refuse rows; a source that exchanges such values within one transaction breaks it")
	}
	if strings.Contains(strings.ToUpper(d.sql), "CHECK") {
		note("a CHECK of its declaration may refuse rows")
	}
	return err
}
