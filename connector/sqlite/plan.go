package sqlite

import (
	"context"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	// ourColumns is how the names of columns that we add begin.
	ourColumns = "_sluice_"
	// ourTables is how the names of tables that are not for mirrored rows begin.
	ourTables = "sluice_"
	// defaultSchema is the source's schema whose tables keep their names.
	defaultSchema = "public"
)

// Plan tells how want would be stored; see connector.Sink. SQLite has no schemas: the name of a table of another schema
// than the default one begins with the schema's. Generated columns are left out, for the log does not carry them.
func (s *Sink) Plan(ctx context.Context, want connector.Target) (*connector.Target, error) {
	t := want
	t.Name = destinationOf(t.Name)
	t.Columns = storedColumns(&want)
	if err := checkTarget(&t); err != nil {
		return nil, err
	}
	nameColumns(&t)
	var found destination
	err := s.read(ctx, func(conn *sqlite.Conn) (err error) {
		t.Existing, t.Notes, t.UniqueBeyondKey = want.Existing, nil, false // it may be called twice
		if found, err = s.findDestination(conn, &t); err == nil {
			err = found.plan(conn, &t)
		}
		return err
	})
	if err != nil {
		return nil, wrapError(err, "plan", t.Name)
	}
	return &t, s.reserve(&t, found.exists)
}

// nameColumns fills in how the columns are stored.
func nameColumns(t *connector.Target) {
	t.SinkNames, t.SinkTypes, t.Misfits = nil, nil, nil
	for _, c := range t.Columns {
		declared, misfit := sinkType(t.Table.Columns[c].Type)
		t.SinkNames = append(t.SinkNames, t.Table.Columns[c].Name)
		t.SinkTypes = append(t.SinkTypes, declared)
		t.Misfits = append(t.Misfits, misfit)
	}
}

// hasUniqueBeyondKey reports whether rows with different keys can be refused beside each other. A unique index that holds
// all columns of the key cannot do that.
func hasUniqueBeyondKey(conn *sqlite.Conn, table string, key []string) (bool, error) {
	held := map[string][]string{} // columns by index; "" is the primary key where that is the row's number
	err := query(conn, `
		SELECT i.name, c.name FROM pragma_index_list(?1) AS i JOIN pragma_index_info(i.name) AS c WHERE i."unique"
		UNION ALL SELECT '', name FROM pragma_table_info(?1)
		WHERE pk > 0 AND NOT EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE origin = 'pk')`, func(row *sqlite.Stmt) {
		held[row.ColumnText(0)] = append(held[row.ColumnText(0)], foldName(row.ColumnText(1)))
	}, table)
	for _, columns := range held {
		for _, name := range key {
			if !slices.Contains(columns, foldName(name)) {
				return true, err
			}
		}
	}
	return false, err
}

func destinationOf(n schema.Name) schema.Name {
	if n.Schema == "" || n.Schema == defaultSchema {
		return schema.Name{Table: n.Table}
	}
	return schema.Name{Table: n.Schema + "_" + n.Table}
}

// storedColumns returns the columns asked for, all by default, less the generated ones.
func storedColumns(t *connector.Target) []int {
	columns := []int{}
	for c := range t.Table.Columns {
		if t.Columns == nil || slices.Contains(t.Columns, c) {
			columns = append(columns, c)
		}
	}
	if t.Columns != nil {
		columns = slices.Clone(t.Columns)
	}
	return slices.DeleteFunc(columns, func(c int) bool { return t.Table.Columns[c].Generated != "" })
}

// checkTarget refuses what cannot be stored, whatever the file holds.
func checkTarget(t *connector.Target) error {
	refuse := func(hint, format string, args ...any) error {
		return fault(connector.TableFault, "plan", t.Name, hint, format, args...)
	}
	if name := foldName(t.Name.Table); strings.HasPrefix(name, ourTables) || strings.HasPrefix(name, "sqlite_") {
		return refuse("choose another `destination`", "names that begin with %q or \"sqlite_\" are not for mirrored tables", ourTables)
	}
	seen := map[string]string{}
	for _, c := range t.Columns {
		name := t.Table.Columns[c].Name
		folded := foldName(name)
		if strings.HasPrefix(folded, ourColumns) {
			return refuse("rename the column or exclude it", "the name of column %s is one of those that sluice adds", quoteIdent(name))
		}
		if other, taken := seen[folded]; taken {
			return refuse("rename one of them or exclude it", "SQLite takes the names of columns %s and %s for the same", quoteIdent(other), quoteIdent(name))
		}
		seen[folded] = name
	}
	key := keyNames(t)
	if len(key) == 0 && !t.History {
		return refuse(t.Table.Keyless, "the table has no key")
	}
	for _, name := range key {
		c := t.Table.Column(name)
		switch generated := c >= 0 && t.Table.Columns[c].Generated != ""; {
		case generated && !t.History:
			return refuse("choose another key", "key column %s is generated, and so not in the log", quoteIdent(name))
		case !generated && !slices.Contains(t.Columns, c):
			return refuse("include the column", "key column %s is not among the stored columns", quoteIdent(name))
		}
	}
	return nil
}

// keyNames returns the names of the columns that identify a row in the sink.
func keyNames(t *connector.Target) []string {
	if t.Key != nil {
		return t.Key
	}
	return t.Table.KeyNames()
}

// destination is what the file holds under a target's name.
type destination struct {
	exists bool
	name   string // as it is spelled there, or was when it was claimed
	form   string // table, view, index
	sql    string // that made it
	rows   bool   // it has some
	owner  string // id of the mirror that writes it, "" if none does
	owned  bool   // by this mirror
	copy   int

	foreignMade bool // the table was made by somebody else, and is kept
}

func (s *Sink) findDestination(conn *sqlite.Conn, t *connector.Target) (destination, error) {
	var d destination
	err := query(conn, "SELECT name, type, sql FROM sqlite_schema WHERE name = ? COLLATE NOCASE AND type <> 'trigger'", func(row *sqlite.Stmt) {
		d.exists, d.name, d.form, d.sql = true, row.ColumnText(0), row.ColumnText(1), row.ColumnText(2)
	}, t.Name.Table)
	if err != nil {
		return d, err
	}
	kept, err := queryText(conn, "SELECT count(*) FROM sqlite_schema WHERE name IN ('sluice_owner', 'sluice_mirror')")
	if err == nil && kept == "2" {
		mirror, id := s.mirrorIDs()
		err = query(conn, `SELECT "table", o.mirror, o.copy, o.mirror = coalesce(nullif(?2, ''), m.id), o.foreign_made FROM sluice_owner o
			LEFT JOIN sluice_mirror m ON m.name = ?3 WHERE "table" = ?1`, func(row *sqlite.Stmt) {
			d.owner, d.copy, d.owned, d.foreignMade = row.ColumnText(1), row.ColumnInt(2), row.ColumnBool(3), row.ColumnBool(4)
			if !d.exists {
				d.name = row.ColumnText(0)
			}
		}, t.Name.Table, id, mirror)
	}
	if err == nil && d.exists && d.form == "table" && !d.owned {
		var one string
		one, err = queryText(conn, "SELECT 1 FROM "+quoteIdent(d.name)+" LIMIT 1")
		d.rows = one != ""
	}
	return d, err
}

// plan refuses a destination that is not ours, except an empty table that is just what we would make, or one that the user
// wants to be written and that takes the rows.
func (d *destination) plan(conn *sqlite.Conn, t *connector.Target) error {
	ours := d.owned && d.copy > 0 && !d.foreignMade
	what, fix := d.foreign(t.Name.Table)
	switch {
	case what != "":
	case !d.exists || ours:
		t.Existing = connector.RefuseExisting
	case d.owned && d.copy > 0 && t.Existing == connector.RefuseExisting:
		what = "the table was made by somebody else, and it is not said what becomes of rows that are not the source's"
		fix = "set `existing` as it was: replace or merge"
	case d.owned && d.copy > 0:
		if err := fit(conn, t); err != nil {
			return err
		}
	case t.Existing != connector.RefuseExisting && !t.History:
		if err := fit(conn, t); err != nil {
			return err
		}
	default:
		t.Existing = connector.RefuseExisting // a history is appended to, and to no other table
		what, fix = d.occupied(t)
	}
	switch {
	case what != "":
		return fault(connector.TableFault, "plan", t.Name, fix, "%s", what)
	case !d.exists:
		return nil
	case d.owned:
		t.Copy = d.copy
	}
	return takeStock(conn, t, *d)
}

// occupied says what keeps a table of somebody else from being taken for one of ours, and what to do; "" if nothing does.
func (d *destination) occupied(t *connector.Target) (what, fix string) {
	const choose = ", choose another `destination`, or set `existing`"
	switch {
	case d.owned: // whether it is still empty is for Ready
		return "", ""
	case d.rows:
		return "the table exists, is not of this mirror, and holds rows", "empty the table" + choose
	case d.sql != createTable(t.Name.Table, t):
		return "the table exists, is not of this mirror, and is declared in another way", "drop the table" + choose
	}
	return "", ""
}

// foreign says what makes it somebody else's, however a table of this name is to be declared, and what to do; "" if
// nothing does.
func (d *destination) foreign(name string) (what, fix string) {
	const other = "choose another `destination`"
	switch {
	case d.owner != "" && !d.owned:
		return "another mirror writes the table", other + ", or tear the other mirror down"
	case d.name != "" && d.name != name:
		return "SQLite takes its name and that of " + quoteIdent(d.name) + " for the same", other + ", or drop it"
	case d.exists && d.form != "table":
		return "something else of this name exists, a " + d.form, other + ", or drop it"
	}
	return "", ""
}

// reserve keeps the name for the table that was planned with it first, or is stored already, where SQLite takes two names
// for one.
func (s *Sink) reserve(t *connector.Target, stored bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	folded := foldName(t.Name.Table)
	if other, taken := s.planned[folded]; taken && !stored && other != t.Name.Table {
		return fault(connector.TableFault, "plan", t.Name, "choose another `destination` for one of them",
			"SQLite takes its name and that of %s for the same", quoteIdent(other))
	}
	s.planned[folded] = t.Name.Table
	return nil
}

// tableColumn is a column of a destination as we declare it.
type tableColumn struct {
	name, typ string
	key       bool // and so NOT NULL
	source    int  // index into Table.Columns, -1 for a column that we add
}

// tableColumns returns the columns of the table that stores t.
func tableColumns(t *connector.Target) []tableColumn {
	var columns []tableColumn
	key := keyNames(t)
	for i, c := range t.Columns {
		columns = append(columns, tableColumn{
			name: t.SinkNames[i], typ: t.SinkTypes[i], source: c, key: !t.History && slices.Contains(key, t.Table.Columns[c].Name),
		})
	}
	if t.History {
		columns = append(columns, historyColumns...)
	}
	if t.SoftDelete {
		columns = append(columns, tableColumn{name: connector.DeletedAt, typ: "TEXT", source: -1})
	}
	return columns
}
