package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// relation is what a stream's reader knows of one table.
type relation struct {
	relationMessage // the last one
	chosen          *selection
	table           *schema.Table // the version that its rows are written under; nil: none is known
	unreadable      *schema.Table // in its place where none is known; nil: the table is gone, and its rows are withheld
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
		r.table, r.unreadable, r.announced = nil, nil, nil
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
// kept, unless the catalog agrees too and is another one. If neither agrees, the version may be one between the two; if
// that cannot be proven the rows cannot be read, and the table needs a new copy.
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
	var columns []catalogAttribute
	if !gone {
		if columns, err = st.attributes(ctx, now); err != nil {
			return err
		}
		agrees = st.agreesWithCatalog(r, now, columns)
	}
	switch {
	case agrees && alike(before, now):
		st.setVersion(r, before)
	case agrees:
		st.change(r, now, false)
		st.setVersion(r, now)
	case known != nil:
		st.setVersion(r, known) // the reader is behind: a later message will tell
	case !gone && st.between(r, before, now, columns):
	default:
		if r.table != nil || r.announced == nil || r.announced.Version != now.Version || r.announced.Refused != now.Refused {
			st.change(r, now, !gone)
		}
		st.setVersion(r, nil)
		if !gone {
			r.unreadable = unreadable(now)
		}
	}
	return nil
}

// unreadable stands for a version that is not known. Rows under it are handed out nevertheless: a destination that has them
// already must meet them.
func unreadable(now *schema.Table) *schema.Table {
	return &schema.Table{
		ID: now.ID, Version: -1, Log: now.Log, Name: now.Name, Rows: -1, RowBytes: -1,
		Refused: "its columns, as they were when these rows were written, are not known any more",
	}
}

// alike reports whether rows of two versions are read and stored in the same way, and no stored value may have changed
// otherwise. That rows lie elsewhere, as after a TRUNCATE, is left to discovery to find.
func alike(before, now *schema.Table) bool {
	known := *before
	known.Columns = readColumns(before)
	d := schema.Compare(&known, now)
	return d.Empty() && rewrote(&known, now) == ""
}

// between makes a version of the message if it can only be one between before and the catalog, and reports whether it is.
func (st *stream) between(r *relation, before, now *schema.Table, columns []catalogAttribute) bool {
	chosen := r.columnsBetween(before, now)
	if chosen == nil || columns == nil {
		return false
	}
	v := *now
	v.Name, v.Columns, v.Key = r.name, nil, nil
	sent := 0
	for _, i := range chosen {
		c := now.Columns[i]
		if c.Generated == "" {
			if r.columns[sent].typ != columns[i].typ {
				return false
			}
			c.Name = r.columns[sent].name
			sent++
		}
		v.Columns = append(v.Columns, c)
	}
	for _, k := range now.Key {
		v.Key = append(v.Key, slices.Index(chosen, k))
	}
	if slices.Contains(v.Key, -1) {
		return false
	}
	if _, whole := r.match(&v); !whole {
		return false
	}
	st.source.versions.assign(r.oid, &v)
	for i, c := range r.columns {
		st.typeNames[c.typ] = v.Columns[v.Column(r.columns[i].name)].Type.Native
	}
	st.change(r, &v, false)
	st.setVersion(r, &v)
	return true
}

// columnsBetween returns which of now's columns the message has, where that is certain; else nil. Columns come in the
// order of their numbers, whatever they were called.
//
// Those that before and now share were there all the time: if there are as many in the message, it is these. Where before
// has lost none and none came and went, numbers only grew: the message has the first ones.
func (r *relation) columnsBetween(before, now *schema.Table) []int {
	var shared, first []int
	sharedSent, firstSent := 0, 0
	last, holes := int32(0), false
	for i := range before.Columns {
		last = max(last, before.Columns[i].Number)
	}
	for i := range now.Columns {
		c := &now.Columns[i]
		old := before.Same(c) >= 0
		holes = holes || !old && c.Number != last+1
		last = max(last, c.Number)
		count := 0
		if c.Generated == "" {
			count = 1
		}
		if old {
			shared, sharedSent = append(shared, i), sharedSent+count
		}
		if old || firstSent < len(r.columns) {
			first, firstSent = append(first, i), firstSent+count
		}
	}
	switch {
	case sharedSent == len(r.columns):
		return shared
	case len(shared) == len(before.Columns) && !holes && firstSent == len(r.columns):
		return first
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
	r.table, r.unreadable = t, nil
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

// catalogAttribute is a column's type as the catalog has it, before domains are looked through.
type catalogAttribute struct {
	name      string
	typ       columnType
	generated bool
}

// attributes reads the types of now's columns, in their order; nil if the columns are others by now.
func (st *stream) attributes(ctx context.Context, now *schema.Table) ([]catalogAttribute, error) {
	rows, err := st.source.pool.Query(ctx, `SELECT attname::text, atttypid, atttypmod, attgenerated <> '' FROM pg_catalog.pg_attribute
		WHERE attrelid = $1::text::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum`, string(now.ID))
	if err != nil {
		return nil, wrapError(err, sourceSystem, "read the columns", now.Name)
	}
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c catalogAttribute, err error) {
		err = row.Scan(&c.name, &c.typ.oid, &c.typ.modifier, &c.generated)
		return c, err
	})
	if err != nil {
		return nil, wrapError(err, sourceSystem, "read the columns", now.Name)
	}
	same := slices.EqualFunc(columns, now.Columns, func(a catalogAttribute, c schema.Column) bool {
		return a.name == c.Name && a.generated == (c.Generated != "")
	})
	if !same {
		return nil, nil
	}
	return columns, nil
}

// agreesWithCatalog is agrees for a version that was just read. It compares the types themselves and not their names,
// and learns what they are called.
func (st *stream) agreesWithCatalog(r *relation, now *schema.Table, columns []catalogAttribute) bool {
	sent, ok := r.match(now)
	if !ok || columns == nil {
		return false
	}
	for i, c := range r.columns {
		if columns[sent[i]].typ != c.typ {
			return false
		}
	}
	for i, c := range r.columns {
		st.typeNames[c.typ] = now.Columns[sent[i]].Type.Native
	}
	return true
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
