package postgres

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/schema"
)

// catalogTable is a table as the catalog has it now.
type catalogTable struct {
	*schema.Table // without its Version
	oid           uint32
	relation      catalogRelation
	types         []resolved        // by column
	columnStates  []string          // by column; see columnState
	leaves        []catalogRelation // of a partitioned table, by OID
	indexes       []catalogIndex
	storage       storage
	failure       string // why the columns could not be read
}

// catalogRelation is what pg_class says of a table, or of a leaf of a partitioned one.
type catalogRelation struct {
	oid         uint32
	name        schema.Name
	kind        byte // relkind
	persistence byte // relpersistence
	identity    byte // relreplident
	rows        float64
	live        int64
	bytes       int64
	indexes     []catalogIndex // of a leaf
}

// catalogIndex is an index that could be a key: unique and valid, over all rows, of columns and not of expressions.
type catalogIndex struct {
	name                        string
	primary, replica, immediate bool
	columns                     []string
}

// Tables returns every table of the database as it is now, and the views and foreign tables with the reason why they are
// not mirrored.
func (s *Source) Tables(ctx context.Context) ([]*schema.Table, error) {
	found, err := s.readCatalog(ctx, 0)
	if err != nil {
		return nil, err
	}
	tables := make([]*schema.Table, len(found))
	for i, t := range found {
		s.versions.assign(t.oid, t.Table)
		tables[i] = t.Table
	}
	return tables, nil
}

// table returns one table as it is now; one that was dropped, or made a partition of another, as it was last, with
// Refused set.
func (s *Source) table(ctx context.Context, oid uint32) (*schema.Table, error) {
	t, err := s.catalogTable(ctx, oid)
	if err != nil {
		return nil, err
	}
	if t != nil {
		return t.Table, nil
	}
	gone := &schema.Table{ID: tableID(oid), Rows: -1, RowBytes: -1}
	if last := s.versions.last(oid); last != nil {
		*gone = *last
	}
	gone.Refused = "the table was dropped, or made a partition of another table"
	s.versions.assign(oid, gone)
	return gone, nil
}

// catalogTable returns nil if there is no such table.
func (s *Source) catalogTable(ctx context.Context, oid uint32) (*catalogTable, error) {
	found, err := s.readCatalog(ctx, oid)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	s.versions.assign(oid, found[0].Table)
	return found[0], nil
}

func tableID(oid uint32) schema.ID { return schema.ID(strconv.FormatUint(uint64(oid), 10)) }

func tableOID(id schema.ID) (uint32, error) {
	n, err := strconv.ParseUint(string(id), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("table id %q is no OID", id)
	}
	return uint32(n), nil
}

// tableVersions gives tables their versions: counted by this process, from 1, one more at each change.
type tableVersions struct {
	mu    sync.Mutex
	known map[uint32]knownVersion
}

type knownVersion struct {
	fingerprint string
	table       *schema.Table
}

// assign sets t.Version. Estimates are no part of a version.
func (v *tableVersions) assign(oid uint32, t *schema.Table) {
	text := t.Describe()
	v.mu.Lock()
	defer v.mu.Unlock()
	k, ok := v.known[oid]
	switch {
	case !ok:
		t.Version = 1
	case k.fingerprint == text:
		t.Version = k.table.Version
	default:
		t.Version = k.table.Version + 1
	}
	if v.known == nil {
		v.known = map[uint32]knownVersion{}
	}
	v.known[oid] = knownVersion{text, t}
}

// last returns the version assigned last, nil if there is none.
func (v *tableVersions) last(oid uint32) *schema.Table {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known[oid].table
}

// readCatalog reads all tables, or one, by a fixed number of queries in one view of the catalog.
func (s *Source) readCatalog(ctx context.Context, only uint32) ([]*catalogTable, error) {
	var tables []*catalogTable
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		r := catalogReader{tx: tx, byOID: map[uint32]*catalogTable{}, leaves: map[uint32]*catalogRelation{}}
		if err := r.readRelations(ctx, only); err != nil {
			return err
		}
		for _, read := range []func(context.Context) error{r.readLeaves, r.readIndexes, r.readStorage, r.readColumns} {
			if err := read(ctx); err != nil {
				return err
			}
		}
		tables = r.tables
		for _, t := range tables {
			t.judge()
		}
		if s.given {
			return s.refuseUncovered(ctx, tx, tables)
		}
		return nil
	})
	if err != nil {
		return nil, wrapError(err, sourceSystem, "read the catalog", schema.Name{})
	}
	for _, t := range tables {
		t.describe()
	}
	return tables, nil
}

// catalogReader fills in the tables query by query.
type catalogReader struct {
	tx     pgx.Tx
	tables []*catalogTable
	byOID  map[uint32]*catalogTable
	leaves map[uint32]*catalogRelation
	oids   []uint32 // of those that have rows of their own or in leaves
}

// relationColumns are scanned by scanRelation. Sizes are those of the last vacuum: asking for the present ones would lock
// the table.
const relationColumns = `c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
	c.relreplident::text, c.reltuples::float8, pg_catalog.pg_stat_get_live_tuples(c.oid),
	c.relpages::int8 * pg_catalog.current_setting('block_size')::int8`

func scanRelation(rows pgx.Rows, first ...any) (catalogRelation, error) {
	var r catalogRelation
	var kind, persistence, identity string
	err := rows.Scan(append(first, &r.oid, &r.name.Schema, &r.name.Table, &kind, &persistence, &identity, &r.rows, &r.live, &r.bytes)...)
	if err == nil {
		r.kind, r.persistence, r.identity = kind[0], persistence[0], identity[0]
	}
	return r, err
}

// readRelations leaves out what is the server's own, temporary, or a sink's, partitions, which belong to their root, and
// views that an extension brought.
func (r *catalogReader) readRelations(ctx context.Context, only uint32) error {
	rows, err := r.tx.Query(ctx, `
		SELECT `+relationColumns+`
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND NOT c.relispartition AND c.relpersistence <> 't'
		  AND n.nspname NOT IN ('information_schema', 'sluice') AND n.nspname NOT LIKE 'pg\_%'
		  AND ($1::oid = 0 OR c.oid = $1::oid)
		  AND (c.relkind IN ('r', 'p') OR NOT EXISTS (
			SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
			  AND d.objid = c.oid AND d.deptype = 'e'))
		ORDER BY n.nspname, c.relname`, only)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		rel, err := scanRelation(rows)
		if err != nil {
			return err
		}
		t := &catalogTable{oid: rel.oid, relation: rel, Table: &schema.Table{ID: tableID(rel.oid), Name: rel.name}}
		r.tables = append(r.tables, t)
		r.byOID[rel.oid] = t
		if rel.kind == 'r' || rel.kind == 'p' {
			r.oids = append(r.oids, rel.oid)
		}
	}
	return rows.Err()
}

// leafTree finds the leaves of the partitioned tables in $1, whatever the depth, without locking any.
const leafTree = `WITH RECURSIVE tree AS (
		SELECT c.oid AS root, c.oid AS member FROM pg_catalog.pg_class c WHERE c.oid = ANY($1::oid[]) AND c.relkind = 'p'
		UNION ALL
		SELECT t.root, i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.member AND NOT i.inhdetachpending)`

func (r *catalogReader) readLeaves(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, leafTree+`
		SELECT t.root, `+relationColumns+`
		FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.member JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind <> 'p' ORDER BY t.root, c.oid`, r.oids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var root uint32
		leaf, err := scanRelation(rows, &root)
		if err != nil {
			return err
		}
		r.byOID[root].leaves = append(r.byOID[root].leaves, leaf)
	}
	for _, t := range r.tables {
		for i := range t.leaves {
			r.leaves[t.leaves[i].oid] = &t.leaves[i]
		}
	}
	return rows.Err()
}

// readIndexes reads primary keys first, then the others in the order of their making.
func (r *catalogReader) readIndexes(ctx context.Context) error {
	relations := r.oids
	for oid := range r.leaves {
		relations = append(relations, oid)
	}
	rows, err := r.tx.Query(ctx, `
		SELECT i.indrelid, c.relname::text, i.indisprimary, i.indisreplident, i.indimmediate, ARRAY(
			SELECT a.attname::text FROM pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
			JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
			WHERE k.place <= i.indnkeyatts ORDER BY k.place)
		FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = ANY($1::oid[]) AND i.indisunique AND i.indisvalid AND NOT i.indisexclusion
		  AND i.indpred IS NULL AND i.indexprs IS NULL
		ORDER BY i.indrelid, i.indisprimary DESC, i.indexrelid`, relations)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var relation uint32
		var x catalogIndex
		if err := rows.Scan(&relation, &x.name, &x.primary, &x.replica, &x.immediate, &x.columns); err != nil {
			return err
		}
		if t := r.byOID[relation]; t != nil {
			t.indexes = append(t.indexes, x)
		} else {
			r.leaves[relation].indexes = append(r.leaves[relation].indexes, x)
		}
	}
	return rows.Err()
}

// catalogColumn is a row of pg_attribute.
type catalogColumn struct {
	schema.Column
	table  uint32
	typ    uint32
	mod    int32
	native string
	state  string
}

func (r *catalogReader) readColumns(ctx context.Context) error {
	columns, err := r.queryColumns(ctx)
	if err != nil {
		return err
	}
	seen := map[uint32]bool{}
	for _, c := range columns {
		seen[c.typ] = true
	}
	types, err := r.readTypes(ctx, seen)
	if err != nil {
		return err
	}
	for _, c := range columns {
		t := r.byOID[c.table]
		typ, err := types.typeOf(c.typ, c.mod, c.native)
		if err != nil {
			t.failure = fmt.Sprintf("column %s: %v", c.Name, err)
			continue
		}
		c.Type = typ.Type
		t.Columns, t.types, t.columnStates = append(t.Columns, c.Column), append(t.types, typ), append(t.columnStates, c.state)
	}
	return nil
}

// queryColumns reads the columns of all tables, by table and number. A missing value (pg_attribute.attmissingval) is what
// rows have that are older than their column; it is an array of one. Of a partitioned table the leaves have it: those that
// the column was added to have the same one, unless their rows were written anew since.
func (r *catalogReader) queryColumns(ctx context.Context) ([]catalogColumn, error) {
	rows, err := r.tx.Query(ctx, leafTree+`, missing AS (
			SELECT DISTINCT ON (t.root, own.attnum) t.root, own.attnum, (a.attmissingval::text::text[])[1] AS value
			FROM tree t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.member AND a.attnum > 0 AND a.atthasmissing
			JOIN pg_catalog.pg_attribute own ON own.attrelid = t.root AND own.attname = a.attname AND NOT own.attisdropped
			ORDER BY t.root, own.attnum, t.member)
		SELECT a.attrelid, a.attnum::int4, a.attname::text, a.atttypid, a.atttypmod, f.native, a.attnotnull,
		       CASE WHEN a.attgenerated <> '' THEN pg_catalog.pg_get_expr(d.adbin, d.adrelid) ELSE '' END,
		       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] ELSE missing.value END, `+columnState+`
		FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
		CROSS JOIN LATERAL (SELECT pg_catalog.format_type(a.atttypid, a.atttypmod) AS native) f
		LEFT JOIN pg_catalog.pg_attrdef d ON a.attgenerated <> '' AND d.adrelid = a.attrelid AND d.adnum = a.attnum
		LEFT JOIN missing ON missing.root = a.attrelid AND missing.attnum = a.attnum
		WHERE a.attrelid = ANY($1::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY a.attrelid, a.attnum`, r.oids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c catalogColumn, err error) {
		err = row.Scan(&c.table, &c.Number, &c.Name, &c.typ, &c.mod, &c.native, &c.NotNull, &c.Generated, &c.Missing, &c.state)
		return c, err
	})
}

// readTypes reads these types and all that they are made of.
func (r *catalogReader) readTypes(ctx context.Context, of map[uint32]bool) (nativeTypes, error) {
	var oids []uint32
	for oid := range of {
		oids = append(oids, oid)
	}
	rows, err := r.tx.Query(ctx, `
		WITH RECURSIVE want(oid) AS (
			SELECT pg_catalog.unnest($1::oid[])
			UNION
			SELECT x.oid FROM want w JOIN pg_catalog.pg_type t ON t.oid = w.oid CROSS JOIN LATERAL (
				SELECT t.typbasetype UNION ALL SELECT t.typelem UNION ALL
				SELECT a.atttypid FROM pg_catalog.pg_attribute a
				WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) x(oid)
			WHERE x.oid <> 0)
		SELECT t.oid, t.typtype::text, t.typbasetype, t.typtypmod,
		       CASE WHEN t.typbasetype <> 0 THEN pg_catalog.format_type(t.typbasetype, t.typtypmod) ELSE '' END,
		       CASE WHEN t.typtype = 'b' AND t.typoutput = 'pg_catalog.array_out'::pg_catalog.regproc AND t.typdelim = ','
		            THEN t.typelem ELSE 0 END,
		       pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(p.proname)
		FROM want w JOIN pg_catalog.pg_type t ON t.oid = w.oid
		JOIN pg_catalog.pg_proc p ON p.oid = t.typoutput JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace`, oids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	types, all := nativeTypes{}, []uint32{}
	for rows.Next() {
		t := &nativeType{}
		var kind string
		if err := rows.Scan(&t.oid, &kind, &t.base, &t.baseMod, &t.baseNative, &t.elem, &t.output); err != nil {
			return nil, err
		}
		t.kind = kind[0]
		types[t.oid] = t
		all = append(all, t.oid)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if err := r.readLabels(ctx, types, all); err != nil {
		return nil, err
	}
	return types, r.readAttributes(ctx, types, all)
}

func (r *catalogReader) readLabels(ctx context.Context, types nativeTypes, oids []uint32) error {
	rows, err := r.tx.Query(ctx, `
		SELECT enumtypid, enumlabel::text FROM pg_catalog.pg_enum
		WHERE enumtypid = ANY($1::oid[]) ORDER BY enumtypid, enumsortorder`, oids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var typ uint32
		var label string
		if err := rows.Scan(&typ, &label); err != nil {
			return err
		}
		types[typ].labels = append(types[typ].labels, label)
	}
	return rows.Err()
}

func (r *catalogReader) readAttributes(ctx context.Context, types nativeTypes, oids []uint32) error {
	rows, err := r.tx.Query(ctx, `
		SELECT t.oid, a.attname::text, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod)
		FROM pg_catalog.pg_type t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid
		WHERE t.oid = ANY($1::oid[]) AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
		ORDER BY t.oid, a.attnum`, oids)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var typ uint32
		var a nativeAttribute
		if err := rows.Scan(&typ, &a.name, &a.typ, &a.mod, &a.native); err != nil {
			return err
		}
		types[typ].attributes = append(types[typ].attributes, a)
	}
	return rows.Err()
}
