package sqlite

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
)

// nameHash stands for a destination in the names of what we make for it.
func nameHash(table string) string {
	sum := sha256.Sum256([]byte(foldName(table)))
	return hex.EncodeToString(sum[:8])
}

// copyPrefix is how the names of the tables that copies of a destination are loaded into begin; the copy's number follows.
func copyPrefix(table string) string { return "sluice_copy_" + nameHash(table) + "_" }

// copyName is the table that the target's copy is loaded into.
func copyName(t *connector.Target) string {
	return fmt.Sprintf("%s%d", copyPrefix(t.Name.Table), t.Copy)
}

// Create makes the table for copy t.Copy; see connector.Sink. It goes on with the table of the same number if that is there.
func (s *Sink) Create(ctx context.Context, t *connector.Target) error {
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	err = x.do(ctx, "create the table", t.Name, func(w *writer) error {
		if err := w.own(t); err != nil {
			return err
		}
		return w.createCopy(t)
	})
	if err != nil {
		return err
	}
	return x.Commit(ctx, nil)
}

// own notes that this mirror writes the destination and which copy is under way.
func (w *writer) own(t *connector.Target) error {
	err := w.exec(`INSERT INTO sluice_owner ("table", mirror, source, loading, foreign_made) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT ("table") DO UPDATE SET source = excluded.source, loading = excluded.loading, foreign_made = excluded.foreign_made
		WHERE mirror = excluded.mirror AND "table" = excluded."table" COLLATE BINARY`, t.Name.Table, w.claim.id, t.Table.Name.String(), t.Copy, t.Existing != connector.RefuseExisting)
	if err == nil && w.conn.Changes() != 1 {
		return fault(connector.TableFault, "create the table", t.Name, "choose another `destination`, or tear the other mirror down",
			"another mirror writes the table, or another table's name differs only in case")
	}
	return err
}

// createCopy makes an empty table for this copy and drops what other copies left.
func (w *writer) createCopy(t *connector.Target) error {
	name := copyName(t)
	sql, there := createTable(name, t), false
	var left []string
	err := w.query("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, ?2) = ?1", func(row *sqlite.Stmt) {
		if row.ColumnText(0) == name && row.ColumnText(1) == sql {
			there = true
		} else {
			left = append(left, row.ColumnText(0))
		}
	}, copyPrefix(t.Name.Table), len(copyPrefix(t.Name.Table)))
	for _, table := range left {
		if err == nil {
			err = w.exec("DROP TABLE " + quoteIdent(table))
		}
	}
	if err == nil && !there {
		err = w.exec(sql)
	}
	return err
}

// createTable returns the statement that makes the table that stores t. The key is there from the beginning, for SQLite
// cannot add one. A key of one INTEGER column is the row's number itself; any other one has an index beside the rows: a
// table WITHOUT ROWID keeps whole rows in the key's tree, and becomes slow with large ones.
func createTable(name string, t *connector.Target) string {
	var parts, key []string
	columns := tableColumns(t)
	for _, c := range columns {
		part := quoteIdent(c.name) + " " + c.typ
		if c.key {
			part += " NOT NULL"
		}
		parts = append(parts, part)
	}
	if !t.History {
		key = sinkKey(t)
	}
	if key != nil {
		parts = append(parts, "PRIMARY KEY ("+quoteList(key)+")")
	}
	return "CREATE TABLE " + quoteIdent(name) + " (" + strings.Join(parts, ", ") + ") STRICT"
}

// sinkKey returns the names of the key's columns in the sink, in key order; nil if one of them is not stored.
func sinkKey(t *connector.Target) []string {
	var key []string
	for _, name := range keyNames(t) {
		found := false
		for i, c := range t.Columns {
			if t.Table.Columns[c].Name == name {
				key, found = append(key, t.SinkNames[i]), true
			}
		}
		if !found {
			return nil
		}
	}
	return key
}
