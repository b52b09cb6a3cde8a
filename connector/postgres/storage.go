package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Rewriter = (*Source)(nil)

// storage is what schema.Table.Layout holds as JSON: by what a statement that changes stored values without a row in the
// log can be told from one that only moves the rows.
//
// A rewrite makes new files, but so do VACUUM FULL, CLUSTER, TRUNCATE and a change of the tablespace. A change of a column
// also writes the column's row in pg_attribute anew. Both together are a rewrite of values.
type storage struct {
	Relations map[uint32]storedRelation `json:"relations"` // the table and, where it is partitioned, all below it, by OID
	Columns   map[int32]string          `json:"columns"`   // by number; see columnState
	// Published are the OIDs of the rows of the catalog by which a publication that was given holds the table.
	Published []uint32 `json:"published,omitempty"`
}

type storedRelation struct {
	Parent uint32 `json:"parent,omitempty"` // that it is a partition of; 0 for the table itself
	File   uint32 `json:"file,omitempty"`   // pg_class.relfilenode; 0 for one that is partitioned itself
	Name   string `json:"name"`
	Made   bool   `json:"made,omitempty"` // as a partition, without rows; else attached, perhaps with rows
}

// The state of a column is the transaction that last wrote its row in pg_attribute, and one of these.
const (
	columnMissing = "m" // rows that are older than the column have its missing value (atthasmissing)
	columnCleared = "c" // what was written is that a rewrite of the table has put that value into all rows
)

// columnState is the expression of a column's state. A rewrite that changes no value (VACUUM FULL, CLUSTER) clears the
// missing values at its very end (finish_heap_swap in cluster.c), behind the new file's entry in pg_class; ALTER TABLE
// writes the columns before it makes the file. Where the table's row in pg_class has been written since, the two cannot be
// told apart, and the column counts as changed.
const columnState = `a.xmin::text || CASE WHEN a.atthasmissing THEN 'm' WHEN a.xmin = c.xmin AND a.cmin::text::int8 > c.cmin::text::int8 THEN 'c' ELSE '' END`

// readStorage reads where the tables' rows are, and the missing values of the leaves of partitioned ones.
func (r *catalogReader) readStorage(ctx context.Context) error {
	for _, t := range r.tables {
		t.storage = storage{Relations: map[uint32]storedRelation{}, Columns: map[int32]string{}}
	}
	// A column's row that nobody has written since the relation was made shows that it was made as a partition: ATTACH
	// PARTITION writes all of them (MergeAttributesIntoExisting in tablecmds.c).
	rows, err := r.tx.Query(ctx, `WITH RECURSIVE tree AS (
			SELECT c.oid AS root, c.oid AS member, 0::oid AS parent FROM pg_catalog.pg_class c WHERE c.oid = ANY($1::oid[])
			UNION ALL
			SELECT t.root, i.inhrelid, i.inhparent FROM tree t JOIN pg_catalog.pg_class p ON p.oid = t.member AND p.relkind = 'p'
			JOIN pg_catalog.pg_inherits i ON i.inhparent = t.member AND NOT i.inhdetachpending)
		SELECT t.root, t.member, t.parent, c.relfilenode, n.nspname::text, c.relname::text, EXISTS (
			SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type y ON y.typrelid = a.attrelid
			WHERE a.attrelid = t.member AND a.attnum > 0 AND a.attinhcount > 0 AND a.xmin = y.xmin AND a.cmin = y.cmin)
		FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.member JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace`, r.oids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var root, member uint32
		var name schema.Name
		var s storedRelation
		if err := rows.Scan(&root, &member, &s.Parent, &s.File, &name.Schema, &name.Table, &s.Made); err != nil {
			return err
		}
		s.Name, s.Made = name.String(), s.Made && s.Parent != 0
		r.byOID[root].storage.Relations[member] = s
	}
	return rows.Err()
}

// describe makes the table's Layout of what was read.
func (t *catalogTable) describe() {
	for i := range t.columnStates {
		t.storage.Columns[t.Columns[i].Number] = t.columnStates[i]
	}
	text, err := json.Marshal(t.storage)
	if err != nil {
		panic("postgres: a table's storage cannot be written as JSON: " + err.Error())
	}
	t.Layout = string(text)
}

// Rewrote tells by the catalog whether stored values may have changed without rows in the log; see connector.Rewriter.
func (s *Source) Rewrote(from, to *schema.Table) string { return rewrote(from, to) }

func rewrote(from, to *schema.Table) string {
	for i := range to.Columns {
		// The log does not show from which row on the name means the new column.
		if c := &to.Columns[i]; !c.Unread && from.Same(c) < 0 && from.Column(c.Name) >= 0 && to.Same(&from.Columns[from.Column(c.Name)]) < 0 {
			return fmt.Sprintf("column %q was dropped and made again", c.Name)
		}
	}
	var before, now storage
	if json.Unmarshal([]byte(from.Layout), &before) != nil || json.Unmarshal([]byte(to.Layout), &now) != nil {
		return "where its rows were stored is not known"
	}
	if takenOut(before.Published, now.Published) {
		return "it was taken out of the publication and put back, and changes between are missing"
	}
	if names := before.attached(now); names != nil {
		return "partitions were attached: " + strings.Join(names, ", ")
	}
	if !before.moved(now) {
		return ""
	}
	for i := range to.Columns {
		c := &to.Columns[i]
		if c.Generated != "" || c.Unread {
			continue // its values do not come from there
		}
		switch was, known := before.Columns[c.Number]; {
		case !known:
			return fmt.Sprintf("column %q is new, and the table was rewritten: which value its rows have cannot be told", c.Name)
		case changedState(was, now.Columns[c.Number]):
			return fmt.Sprintf("the table was rewritten, and the values of column %q with it", c.Name)
		}
	}
	return ""
}

// changedState reports whether a column was altered between two states of it.
func changedState(was, now string) bool {
	cleared := strings.HasSuffix(was, columnMissing) && strings.HasSuffix(now, columnCleared)
	return strings.TrimRight(was, columnMissing+columnCleared) != strings.TrimRight(now, columnMissing+columnCleared) && !cleared
}

// moved reports whether a relation that is still there has another file.
func (s storage) moved(now storage) bool {
	for oid, was := range s.Relations {
		if is, there := now.Relations[oid]; there && is.File != was.File {
			return true
		}
	}
	return false
}

// attached returns the names of the relations with rows of their own that now holds beyond s and that may have brought
// rows with them.
func (s storage) attached(now storage) []string {
	var names []string
	for oid, r := range now.Relations {
		if r.File == 0 {
			continue
		}
		if !s.madeSince(now, oid) {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}

// madeSince reports whether a relation was there before, or was made, with all above it that are new, as a partition.
func (s storage) madeSince(now storage, oid uint32) bool {
	for {
		if _, there := s.Relations[oid]; there {
			return true
		}
		r, there := now.Relations[oid]
		if !there || !r.Made {
			return false
		}
		oid = r.Parent
	}
}
