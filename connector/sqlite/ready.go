package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const exchangeOp = "exchange the table"

// Ready puts the rows of copy t.Copy in the place of the destination's; see connector.Sink. A crash at any point leaves
// either the old rows and the copy, or the new rows and the entries.
func (s *Sink) Ready(ctx context.Context, t *connector.Target, entries map[string]string) error {
	if t.History && sinkKey(t) != nil {
		// The index comes first, in a transaction of its own: the exchange then holds the file for a moment.
		if err := s.indexHistory(ctx, t); err != nil {
			return err
		}
	}
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	done := false
	err = x.do(ctx, exchangeOp, t.Name, func(w *writer) error {
		copied, err := w.isTable(copyName(t))
		if err != nil {
			return err
		}
		owned, ready, err := w.owner(t)
		switch {
		case err != nil:
			return err
		case !copied && owned && ready == t.Copy:
			done = true
			return w.checkReady(t, entries)
		case !copied:
			return fault(connector.TableFault, exchangeOp, t.Name, "`resync` the table", "the table that copy %d was loaded into is gone", t.Copy)
		case !owned:
			return fault(connector.TableFault, exchangeOp, t.Name, "`resync` the table", "this mirror does not own the table any more")
		}
		if err := w.place(t, ready == 0); err != nil {
			return err
		}
		return w.exec(`UPDATE sluice_owner SET copy = ?, loading = 0 WHERE "table" = ?`, t.Copy, t.Name.Table)
	})
	if err != nil || done {
		return err
	}
	return x.Commit(ctx, entries)
}

// owner tells whether this mirror owns the destination and which copy was last ready there.
func (w *writer) owner(t *connector.Target) (owned bool, ready int, err error) {
	err = w.query(`SELECT copy FROM sluice_owner WHERE "table" = ? AND mirror = ?`, func(s *sqlite.Stmt) {
		owned, ready = true, s.ColumnInt(0)
	}, t.Name.Table, w.claim.id)
	return owned, ready, err
}

// checkReady judges a Ready of a copy that is in place already.
func (w *writer) checkReady(t *connector.Target, entries map[string]string) error {
	for k, v := range entries {
		if w.entries[k] != v {
			return fault(connector.TableFault, exchangeOp, t.Name, "`resync` the table", "copy %d is in place already, with other entries", t.Copy)
		}
	}
	return nil
}

func (w *writer) isTable(name string) (bool, error) {
	found, err := queryText(w.conn, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", name)
	return found != "", err
}

// indexHistory makes the index of a history's copy, unless it is there or the copy is not.
func (s *Sink) indexHistory(ctx context.Context, t *connector.Target) error {
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	err = x.do(ctx, "build the index", t.Name, func(w *writer) error {
		there, err := w.isTable(copyName(t))
		if err != nil || !there {
			return err
		}
		if _, ready, err := w.owner(t); err != nil || ready > 0 {
			return err // its rows are added to a table that has the index
		}
		name := fmt.Sprintf("%s%d", historyIndex(t.Name.Table), t.Copy)
		return w.exec("CREATE INDEX IF NOT EXISTS " + quoteIdent(name) + " ON " + quoteIdent(copyName(t)) +
			" (" + quoteList(append(sinkKey(t), "_sluice_position", "_sluice_seq")) + ")")
	})
	if err != nil {
		return err
	}
	return x.Commit(ctx, nil)
}

// place brings the copy's rows into the destination: by renaming the table if that loses nothing, else row by row. Views
// go by the table's name, and so need nothing. adopted: no copy of ours was ever ready there.
func (w *writer) place(t *connector.Target, adopted bool) error {
	dest := quoteIdent(t.Name.Table)
	var form string
	if err := w.query("SELECT type FROM sqlite_schema WHERE name = ? COLLATE NOCASE AND type <> 'trigger'", func(s *sqlite.Stmt) {
		form = s.ColumnText(0)
	}, t.Name.Table); err != nil {
		return err
	}
	switch {
	case form == "":
		return w.rename(t)
	case form != "table":
		return fault(connector.TableFault, exchangeOp, t.Name, "drop it, or choose another `destination`", "something else of this name exists, a %s", form)
	case adopted && t.Existing == connector.RefuseExisting:
		if some, err := queryText(w.conn, "SELECT 1 FROM "+dest+" LIMIT 1"); err != nil || some != "" {
			if err != nil {
				return err
			}
			return fault(connector.TableFault, exchangeOp, t.Name, "empty the table, or choose another `destination`",
				"somebody has written rows to the table before its first copy was ready")
		}
	}
	bound, err := queryText(w.conn, `SELECT 1 FROM sqlite_schema
		WHERE tbl_name = ? COLLATE NOCASE AND type IN ('index', 'trigger') AND sql IS NOT NULL`, t.Name.Table)
	switch {
	case err != nil:
		return err
	case t.History && (!adopted || bound != ""):
		return w.appendCopy(t, adopted)
	case bound != "", t.SoftDelete, t.Existing != connector.RefuseExisting:
		return w.merge(t, adopted)
	}
	if err := w.exec("DROP TABLE " + dest); err != nil {
		return err
	}
	return w.rename(t)
}

func (w *writer) rename(t *connector.Target) error {
	return w.exec("ALTER TABLE " + quoteIdent(copyName(t)) + " RENAME TO " + quoteIdent(t.Name.Table))
}

// merge makes the destination's rows those of the copy, touching only rows that differ, so that indexes and triggers that
// somebody has made go on. What the copy lacks goes, or stays as the target says.
func (w *writer) merge(t *connector.Target, adopted bool) error {
	key := sinkKey(t)
	if t.Existing == connector.RefuseExisting { // else Plan has seen that both fit
		if err := w.addColumns(t); err != nil {
			return err
		}
		if err := w.checkKey(t, key); err != nil {
			return err
		}
	}
	var names, sets, same, match []string
	for _, c := range tableColumns(t) {
		q := quoteIdent(c.name)
		// A table of somebody else may have columns that take texts for equal which differ.
		names, same = append(names, q), append(same, "d."+q+" COLLATE BINARY IS c."+q)
		if c.key {
			match = append(match, "d."+q+" COLLATE BINARY = c."+q)
		} else {
			sets = append(sets, q+" = excluded."+q)
		}
	}
	action := "NOTHING"
	if sets != nil {
		action = "UPDATE SET " + strings.Join(sets, ", ")
	}
	dest, from, list, found := quoteIdent(t.Name.Table), quoteIdent(copyName(t)), strings.Join(names, ", "), strings.Join(match, " AND ")
	lacking := "NOT EXISTS (SELECT 1 FROM " + from + " AS c WHERE " + found + ")"
	var statements []string
	switch deleted := quoteIdent(connector.DeletedAt); {
	case t.Existing == connector.MergeExisting: // which of them were the source's is not known
	case t.SoftDelete && !(adopted && t.Existing == connector.ReplaceExisting): // else it was somebody else's
		now := string(schema.AppendTimestampTZ(nil, time.Now().UnixMicro()-year2000))
		statements = append(statements, "UPDATE "+dest+" AS d SET "+deleted+" = '"+now+"' WHERE d."+deleted+" IS NULL AND "+lacking)
	default:
		statements = append(statements, "DELETE FROM "+dest+" AS d WHERE "+lacking)
	}
	for _, sql := range append(statements,
		"INSERT INTO "+dest+" ("+list+") SELECT "+list+" FROM "+from+" AS c WHERE NOT EXISTS (SELECT 1 FROM "+dest+
			" AS d WHERE "+strings.Join(same, " AND ")+") ON CONFLICT ("+quoteList(key)+") DO "+action,
		"DROP TABLE "+from,
	) {
		err := w.exec(sql)
		if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultConstraint {
			return fault(connector.TableFault, exchangeOp, t.Name, "drop the index or trigger that refuses them, then `resync` the table",
				"the new rows are refused: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// column is a column as SQLite describes it.
type column struct {
	name, typ string
	key       int // place in the primary key, from 1; 0: not in it
}

func (w *writer) columnsOf(table string) ([]column, error) {
	var columns []column
	err := w.query("SELECT name, type, pk FROM pragma_table_info(?)", func(s *sqlite.Stmt) {
		columns = append(columns, column{s.ColumnText(0), s.ColumnText(1), s.ColumnInt(2)})
	}, table)
	return columns, err
}

// addColumns gives a table that is kept the columns that it lacks. A column of another type needs a new table, and so the
// end of what depends on this one.
func (w *writer) addColumns(t *connector.Target) error {
	stored, err := w.columnsOf(t.Name.Table)
	if err != nil {
		return err
	}
	for _, c := range tableColumns(t) {
		i := slices.IndexFunc(stored, func(s column) bool { return foldName(s.name) == foldName(c.name) })
		switch {
		case i < 0:
			if err := w.exec("ALTER TABLE " + quoteIdent(t.Name.Table) + " ADD COLUMN " + quoteIdent(c.name) + " " + c.typ); err != nil {
				return err
			}
		case stored[i].typ != c.typ:
			return fault(connector.TableFault, exchangeOp, t.Name, keptHint(t), "the type of column %s has changed from %s to %s, and the table is kept",
				quoteIdent(c.name), stored[i].typ, c.typ)
		}
	}
	if !t.SoftDelete && slices.ContainsFunc(stored, func(s column) bool { return s.name == connector.DeletedAt }) {
		deleted := quoteIdent(connector.DeletedAt) // its deletes were soft once
		return w.exec("UPDATE " + quoteIdent(t.Name.Table) + " SET " + deleted + " = NULL WHERE " + deleted + " IS NOT NULL")
	}
	return nil
}

// keptHint says what keeps a table from being replaced.
func keptHint(t *connector.Target) string {
	switch {
	case t.History:
		return "rename the history's table; a new one begins"
	case t.SoftDelete:
		return "rename the table, then `resync` it; a new one begins"
	}
	return "drop the indexes and triggers of the table, then `resync` it"
}

func (w *writer) checkKey(t *connector.Target, key []string) error {
	stored, err := w.columnsOf(t.Name.Table)
	if err != nil {
		return err
	}
	var now []string
	for place := 1; ; place++ {
		i := slices.IndexFunc(stored, func(c column) bool { return c.key == place })
		if i < 0 {
			break
		}
		now = append(now, stored[i].name)
	}
	if !slices.EqualFunc(now, key, func(a, b string) bool { return foldName(a) == foldName(b) }) {
		return fault(connector.TableFault, exchangeOp, t.Name, keptHint(t), "the key has changed, and the table is kept")
	}
	return nil
}
