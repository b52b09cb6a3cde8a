package postgres

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/schema"
)

// reservedColumns begins the names of the columns that we add to a destination.
const reservedColumns = "_sluice_"

// judge fills in what follows from the rest: estimates, whether the table can be mirrored, and its key.
func (t *catalogTable) judge() {
	t.estimate()
	if t.Refused = t.refusal(); t.Refused != "" {
		return
	}
	t.findUnique()
	key, why := t.findKey()
	if why != "" {
		t.Keyless = why
		return
	}
	for _, name := range key {
		t.Key = append(t.Key, t.Column(name))
	}
}

// estimate sums up the leaves, or takes the table itself. An analysis knows best; where there was none yet, or of an
// empty table, the statistics collector may know the number of rows.
func (t *catalogTable) estimate() {
	relations := t.leaves
	if t.relation.kind != 'p' {
		relations = []catalogRelation{t.relation}
	}
	t.Rows, t.RowBytes = -1, -1
	var rows, measured, bytes int64
	known := t.relation.kind == 'p' && len(relations) == 0
	for _, r := range relations {
		n := int64(r.rows)
		if n <= 0 && r.live > 0 {
			n = r.live
		}
		if n < 0 {
			continue
		}
		known = true
		rows += n
		if r.bytes > 0 && n > 0 {
			measured, bytes = measured+n, bytes+r.bytes
		}
	}
	if known {
		t.Rows = rows
	}
	if measured > 0 {
		t.RowBytes = bytes / measured
	}
}

func (t *catalogTable) refusal() string {
	switch t.relation.kind {
	case 'v':
		return "it is a view, whose changes are not in the log; mirror the tables below it"
	case 'm':
		return "it is a materialized view, whose changes are not in the log; mirror the tables below it"
	case 'f':
		return "it is a foreign table, whose changes are not in this server's log; mirror it from the server that stores it"
	}
	if t.failure != "" {
		return t.failure
	}
	if t.relation.persistence == 'u' {
		return unloggedRefusal("it", t.Name)
	}
	for _, leaf := range t.leaves {
		switch {
		case leaf.kind == 'f':
			return fmt.Sprintf("its partition %s is a foreign table, whose changes are not in this server's log; ALTER TABLE %s DETACH PARTITION %s",
				leaf.name, quoteName(t.Name), quoteName(leaf.name))
		case leaf.persistence == 'u':
			return unloggedRefusal("its partition "+leaf.name.String(), leaf.name)
		case t.relation.identity == 'f' && leaf.identity != 'f':
			// pgoutput marks old rows by the root's identity and fills them by the leaf's: NULLs would pass as values.
			return fmt.Sprintf("its replica identity is FULL and that of its partition %s is not; ALTER TABLE %s REPLICA IDENTITY FULL",
				leaf.name, quoteName(leaf.name))
		}
	}
	for _, c := range t.Columns {
		if strings.HasPrefix(c.Name, reservedColumns) {
			return fmt.Sprintf("its column %s has a name that is reserved for columns we add; ALTER TABLE %s RENAME COLUMN %s TO %s",
				c.Name, quoteName(t.Name), quoteIdent(c.Name), quoteIdent(strings.TrimPrefix(c.Name, "_")))
		}
	}
	return ""
}

func unloggedRefusal(what string, name schema.Name) string {
	return fmt.Sprintf("%s is unlogged, its changes are not in the log; ALTER TABLE %s SET LOGGED", what, quoteName(name))
}

// findKey returns the columns of the key, or why there is none and what would give one. Only columns that the replica
// identity sends with each update and delete can be a key: any other would leave old rows behind.
func (t *catalogTable) findKey() (key []string, why string) {
	index := t.identityIndex()
	if index == nil {
		return nil, t.keylessReason()
	}
	if t.relation.kind == 'p' && !t.givesIdentity() {
		return nil, fmt.Sprintf("it has no primary key that partitions made later would have as replica identity; ALTER TABLE %s ADD PRIMARY KEY (%s)",
			quoteName(t.Name), quoteList(index.columns))
	}
	for _, name := range index.columns {
		if c := t.Columns[t.Column(name)]; c.Generated != "" {
			return nil, fmt.Sprintf("column %s of its key is generated and not in the log; ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION",
				name, quoteName(t.Name), quoteIdent(name))
		}
	}
	for i := range t.leaves {
		if leaf := &t.leaves[i]; !leaf.sends(index.columns) {
			return nil, fmt.Sprintf("the replica identity of its partition %s does not send the key; ALTER TABLE %s REPLICA IDENTITY FULL",
				leaf.name, quoteName(leaf.name))
		}
	}
	return index.columns, ""
}

// findUnique lists the indexes that tell rows apart, with what keeps each from being a key that a user may choose.
func (t *catalogTable) findUnique() {
	for i := range t.indexes {
		x := &t.indexes[i]
		if !x.immediate || !t.isNotNull(x) {
			continue
		}
		u := schema.UniqueKey{Unfit: t.unfit(x)}
		for _, name := range x.columns {
			u.Columns = append(u.Columns, t.Column(name))
		}
		t.Unique = append(t.Unique, u)
	}
}

// unfit says why updates and deletes do not carry the columns of an index, and the statement that mends it; "" if they do.
func (t *catalogTable) unfit(x *catalogIndex) string {
	for _, name := range x.columns {
		if t.Columns[t.Column(name)].Generated != "" {
			return fmt.Sprintf("column %s is generated and not in the log; ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION",
				name, quoteName(t.Name), quoteIdent(name))
		}
	}
	if t.relation.kind != 'p' {
		own := t.relation
		own.indexes = t.indexes
		if !own.sends(x.columns) {
			return fmt.Sprintf("its replica identity does not send these columns; ALTER TABLE %s REPLICA IDENTITY USING INDEX %s",
				quoteName(t.Name), quoteIdent(x.name))
		}
		return ""
	}
	if !t.givesIdentity() {
		return fmt.Sprintf("the table has no primary key that partitions made later would have as replica identity; ALTER TABLE %s ADD PRIMARY KEY (%s)",
			quoteName(t.Name), quoteList(x.columns))
	}
	for i := range t.leaves {
		if leaf := &t.leaves[i]; !leaf.sends(x.columns) {
			return fmt.Sprintf("the replica identity of its partition %s does not send these columns; ALTER TABLE %s REPLICA IDENTITY FULL",
				leaf.name, quoteName(leaf.name))
		}
	}
	return ""
}

// identityIndex returns the index whose columns are the key, nil if there is none. A deferrable one identifies no row:
// the server does not take it as identity, and within a transaction its values may repeat.
func (t *catalogTable) identityIndex() *catalogIndex {
	for i := range t.indexes {
		x := &t.indexes[i]
		if !x.immediate {
			continue
		}
		switch t.relation.identity {
		case 'd':
			if x.primary {
				return x
			}
		case 'i':
			if x.replica {
				return x
			}
		case 'f':
			if x.primary || t.isNotNull(x) { // primary keys come first
				return x
			}
		}
	}
	return nil
}

// givesIdentity reports whether partitions made later will have a usable replica identity: theirs is the default one,
// whatever that of the table. Without it updates and deletes are not published (see membershipQuery).
func (t *catalogTable) givesIdentity() bool {
	return slices.ContainsFunc(t.indexes, func(x catalogIndex) bool { return x.primary && x.immediate })
}

func (t *catalogTable) isNotNull(x *catalogIndex) bool {
	return !slices.ContainsFunc(x.columns, func(name string) bool { return !t.Columns[t.Column(name)].NotNull })
}

// sends reports whether the old rows that this leaf logs hold these columns.
func (r *catalogRelation) sends(columns []string) bool {
	if r.identity == 'f' {
		return true
	}
	for _, x := range r.indexes {
		if x.immediate && (r.identity == 'd' && x.primary || r.identity == 'i' && x.replica) {
			return !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(x.columns, c) })
		}
	}
	return false
}

func (t *catalogTable) keylessReason() string {
	var reason string
	switch t.relation.identity {
	case 'n':
		reason = "its replica identity is NOTHING"
	case 'i':
		reason = "the index that was its replica identity is gone or deferrable"
	case 'f':
		reason = "it has neither a primary key nor a unique index over columns that are NOT NULL"
	default:
		reason = "it has no primary key"
	}
	table := quoteName(t.Name)
	for i := range t.indexes {
		x := &t.indexes[i]
		switch {
		case x.primary && !x.immediate:
			return fmt.Sprintf("its primary key is deferrable, which identifies no row; ALTER TABLE %s DROP CONSTRAINT %s, ADD PRIMARY KEY (%s)",
				table, quoteIdent(x.name), quoteList(x.columns))
		case x.primary:
			return fmt.Sprintf("%s; ALTER TABLE %s REPLICA IDENTITY DEFAULT", reason, table)
		case x.immediate && t.isNotNull(x):
			return fmt.Sprintf("%s; ALTER TABLE %s REPLICA IDENTITY USING INDEX %s", reason, table, quoteIdent(x.name))
		}
	}
	return fmt.Sprintf("%s; ALTER TABLE %s ADD PRIMARY KEY (the columns that tell its rows apart)", reason, table)
}
