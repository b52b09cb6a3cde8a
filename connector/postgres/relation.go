package postgres

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// relation is what a stream's reader knows of one table.
type relation struct {
	relationMessage // the last one
	chosen          *selection
	table           *schema.Table // the version that its rows are written under; nil: none is known, they are withheld
	settled         bool          // table agrees with the message
	resent          bool          // the message is not the first one of this stream: something in the catalog has changed
	announced       *schema.Table // the version of the last SchemaChange

	frames      *connector.Frames // pending rows
	inFrames    bool              // the last Commit of frames is the transaction that is being read
	transaction uint64            // the one that rows counts
	rows        int64             // row messages of this transaction so far
	lastBytes   int               // size of the last frames handed out
}

// choose takes a change of the selection over.
func (r *relation) choose(chosen *selection) {
	if r.chosen == chosen {
		return
	}
	r.chosen, r.settled = chosen, false
	if chosen == nil {
		r.table, r.announced = nil, nil
	}
}

// capacity guesses how many bytes the next frames will need, so that a busy table's are not grown step by step. A
// transaction may touch any number of tables: what is reserved for all of them together has a limit, of which left is left.
func (r *relation) capacity(row, left int) int {
	return max(min(r.lastBytes+r.lastBytes/8, left+flushBytes/8+row), 4+row)
}

// ready returns the relation of a row, settled; nil if the table is not selected.
func (st *stream) ready(ctx context.Context, oid uint32) (*relation, error) {
	r := st.relations[oid]
	if r == nil {
		return nil, damaged("a row of relation %d came before its description", oid)
	}
	if r.chosen == nil || uint64(st.tx.final) < r.chosen.after.Load() {
		return nil, nil
	}
	if r.settled {
		return r, nil
	}
	if err := st.settle(ctx, r); err != nil {
		return nil, err
	}
	r.settled, r.resent = true, false
	return r, nil
}

// settle finds the version of a table that agrees with its Relation message. The message holds names and types, but no
// column numbers, and the catalog is as it is now, which may be ahead of the log. So a version that is known and agrees is
// kept, unless the catalog agrees too and is another one. If neither agrees the rows cannot be read: they are withheld,
// and the table needs a new copy.
func (st *stream) settle(ctx context.Context, r *relation) error {
	known, err := st.knownVersion(ctx, r)
	if err != nil {
		return err
	}
	if known != nil && !r.resent && known.Name == r.name {
		st.setVersion(r, known)
		return nil
	}
	if known != nil && known.Name == r.name {
		if unchanged, err := st.holds(ctx, known); err != nil || unchanged {
			st.setVersion(r, known)
			return err
		}
	}
	before := known
	if before == nil {
		before = r.latest()
	}
	now, err := st.lookup(ctx, r.oid)
	if err != nil {
		return err
	}
	now = withKeyOf(now, r.chosen.table)
	gone := now.Refused != ""
	agrees := false
	if !gone {
		if agrees, err = st.agreesWithCatalog(ctx, r, now); err != nil {
			return err
		}
	}
	switch {
	case agrees && sameTable(before, now):
		st.setVersion(r, before)
	case agrees:
		rewrote, err := st.rewrote(ctx, r.oid, before, now)
		if err != nil {
			return err
		}
		st.change(r, now, rewrote)
		st.setVersion(r, now)
	case known != nil:
		st.setVersion(r, known) // the reader is behind: a later message will tell
	default:
		if r.table != nil || r.announced == nil || r.announced.Version != now.Version || r.announced.Refused != now.Refused {
			st.change(r, now, !gone)
		}
		st.setVersion(r, nil)
	}
	return nil
}

// latest is the newest version that was handed to us or by us.
func (r *relation) latest() *schema.Table {
	latest := r.chosen.table
	for _, t := range []*schema.Table{r.table, r.announced} {
		if t != nil && t.Version > latest.Version {
			latest = t
		}
	}
	return latest
}

// knownVersion returns the newest version known that agrees with the message; nil: none does.
func (st *stream) knownVersion(ctx context.Context, r *relation) (*schema.Table, error) {
	for _, t := range []*schema.Table{r.latest(), r.chosen.table, r.table} {
		if t == nil {
			continue
		}
		if ok, err := st.agrees(ctx, r, t); ok || err != nil {
			return t, err
		}
	}
	return nil, nil
}

// setVersion makes t the version of the rows that follow.
func (st *stream) setVersion(r *relation, t *schema.Table) {
	if r.frames != nil && r.frames.Table != t {
		st.flush()
	}
	r.table = t
}

// change queues a SchemaChange behind all rows before it.
func (st *stream) change(r *relation, now *schema.Table, rewrote bool) {
	st.flush()
	first := int64(0)
	if r.transaction == st.transaction {
		first = r.rows
	}
	st.queue = append(st.queue, &connector.SchemaChange{Table: now, Commit: st.commit(first), Rewrote: rewrote})
	r.announced = now
}

// agrees reports whether rows as the message describes them can be read under t: the same columns in the same order, of
// the same types, and the key among what the replica identity sends.
func (st *stream) agrees(ctx context.Context, r *relation, t *schema.Table) (bool, error) {
	sent, ok := r.match(t)
	if !ok {
		return false, nil
	}
	if err := st.nameTypes(ctx, r.columns); err != nil {
		return false, err
	}
	for i, c := range r.columns {
		if st.typeNames[c.typ] != t.Columns[sent[i]].Type.Native {
			return false, nil
		}
	}
	return true, nil
}

// agreesWithCatalog is agrees for a version that was just read. It compares the types themselves and not their names,
// and learns what they are called.
func (st *stream) agreesWithCatalog(ctx context.Context, r *relation, now *schema.Table) (bool, error) {
	sent, ok := r.match(now)
	if !ok {
		return false, nil
	}
	rows, err := st.source.pool.Query(ctx, `SELECT attname::text, atttypid, atttypmod FROM pg_catalog.pg_attribute
		WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum`, r.oid)
	if err != nil {
		return false, wrapError(err, sourceSystem, "read the columns", now.Name)
	}
	var c relationColumn
	same, n := true, 0
	_, err = pgx.ForEachRow(rows, []any{&c.name, &c.typ.oid, &c.typ.modifier}, func() error {
		same = same && n < len(r.columns) && r.columns[n].name == c.name && r.columns[n].typ == c.typ
		n++
		return nil
	})
	if err != nil {
		return false, wrapError(err, sourceSystem, "read the columns", now.Name)
	}
	if !same || n != len(r.columns) {
		return false, nil
	}
	for i, c := range r.columns {
		st.typeNames[c.typ] = now.Columns[sent[i]].Type.Native
	}
	return true, nil
}

// match compares names and key, and returns the index in t of each column of the message.
func (r *relation) match(t *schema.Table) (sent []int, ok bool) {
	inKey := make([]bool, len(t.Columns))
	for i := range t.Columns {
		if t.Columns[i].Generated != "" {
			continue
		}
		at := len(sent)
		if at == len(r.columns) || r.columns[at].name != t.Columns[i].Name {
			return nil, false
		}
		inKey[i] = r.columns[at].key
		sent = append(sent, i)
	}
	for _, c := range t.Key {
		if !inKey[c] {
			return nil, false
		}
	}
	return sent, len(sent) == len(r.columns)
}

// nameTypes finds the names of the columns' types that are not known yet, as the server writes them, of a domain those of
// the type below it.
func (st *stream) nameTypes(ctx context.Context, columns []relationColumn) error {
	var oids []uint32
	var modifiers []int32
	for _, c := range columns {
		if _, ok := st.typeNames[c.typ]; !ok {
			oids, modifiers = append(oids, c.typ.oid), append(modifiers, c.typ.modifier)
		}
	}
	if oids == nil {
		return nil
	}
	rows, err := st.source.pool.Query(ctx, `
		WITH RECURSIVE t(i, o, m) AS (
			SELECT i, o, m FROM unnest($1::oid[], $2::int4[]) WITH ORDINALITY u(o, m, i)
			UNION ALL
			SELECT t.i, d.typbasetype, d.typtypmod FROM t JOIN pg_catalog.pg_type d ON d.oid = t.o AND d.typtype = 'd')
		SELECT i, coalesce(pg_catalog.format_type(o, m), '') FROM t
		WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_type d WHERE d.oid = t.o AND d.typtype = 'd')`, oids, modifiers)
	if err != nil {
		return wrapError(err, sourceSystem, "read the types of columns", schema.Name{})
	}
	var i int64
	var name string
	_, err = pgx.ForEachRow(rows, []any{&i, &name}, func() error {
		st.typeNames[columnType{oids[i-1], modifiers[i-1]}] = name
		return nil
	})
	return wrapError(err, sourceSystem, "read the types of columns", schema.Name{})
}

// sameTable reports whether two versions differ in nothing that rows depend on.
func sameTable(a, b *schema.Table) bool {
	if a.Name != b.Name || len(a.Columns) != len(b.Columns) || !slices.Equal(a.Key, b.Key) {
		return false
	}
	for i := range a.Columns {
		x, y := &a.Columns[i], &b.Columns[i]
		if x.Number != y.Number || x.Name != y.Name || !reflect.DeepEqual(x.Type, y.Type) {
			return false
		}
	}
	return true
}

// rewrote reports whether stored values may have changed without changes in the log. A relation whose file is still its
// first one (relfilenode = oid) was never rewritten, which settles most cases; else a column's new type, or a default
// that was computed for each row, cannot be told from a rewrite. A column that was dropped and made again under the same
// name has lost its values, and the message does not show when.
func (st *stream) rewrote(ctx context.Context, oid uint32, before, now *schema.Table) (bool, error) {
	old := map[int32]*schema.Column{}
	names := map[string]bool{}
	for i := range before.Columns {
		old[before.Columns[i].Number] = &before.Columns[i]
		names[before.Columns[i].Name] = true
	}
	var retyped bool
	added := []int16{}
	for i := range now.Columns {
		c := &now.Columns[i]
		switch was := old[c.Number]; {
		case was == nil && names[c.Name]:
			return true, nil
		case was == nil:
			added = append(added, int16(c.Number))
		case was.Type.Native != c.Type.Native:
			retyped = true
		}
	}
	if !retyped && len(added) == 0 {
		return false, nil
	}
	var original, computed bool
	err := st.source.pool.QueryRow(ctx, leafTree+`
		SELECT coalesce((SELECT bool_and(c.relfilenode = c.oid) FROM pg_catalog.pg_class c
		                 WHERE c.relkind = 'r' AND (c.oid = ANY($1::oid[]) OR c.oid IN (SELECT member FROM tree))), true),
		       EXISTS (SELECT FROM pg_catalog.pg_attribute
		               WHERE attrelid = ANY($1::oid[]) AND attnum = ANY($2) AND (atthasdef AND NOT atthasmissing OR attidentity <> ''))`,
		[]uint32{oid}, added).Scan(&original, &computed)
	if err != nil {
		return false, wrapError(err, sourceSystem, fmt.Sprintf("read the file of relation %d", oid), now.Name)
	}
	return !original && (retyped || computed), nil
}

// withKeyOf returns now with the key of the version that was added, if that is still one: a user may have chosen another
// key than the first.
func withKeyOf(now, added *schema.Table) *schema.Table {
	key := make([]int, len(added.Key))
	for i, name := range added.KeyNames() {
		key[i] = now.Column(name)
	}
	if slices.Equal(key, now.Key) || !hasKey(now, key) {
		return now
	}
	next := *now
	next.Key = key
	return &next
}
