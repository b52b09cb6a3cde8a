package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Plan tells how want would be stored; see connector.Sink. A name that is too long for the server is cut and
// ends with a hash of itself, so that two that begin alike stay two.
func (s *Sink) Plan(ctx context.Context, want connector.Target) (*connector.Target, error) {
	t := want
	fillDefaults(&t)
	if err := checkTarget(&t); err != nil {
		return nil, err
	}
	if err := s.planTypes(ctx, &t); err != nil {
		return nil, err
	}
	found, err := s.findDestination(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	if found.owner != "" && !found.owned {
		return nil, sinkFault(connector.TableFault, "plan", t.Name, "choose another `destination`, or tear the other mirror down", "another mirror writes the table")
	}
	if !found.exists {
		t.Existing = connector.RefuseExisting
		return &t, nil
	}
	return &t, s.planInto(ctx, &t, found)
}

// planInto makes the target one that goes into a table that exists.
func (s *Sink) planInto(ctx context.Context, t *connector.Target, found destination) error {
	switch {
	case found.owned && found.copy > 0 && !found.foreign:
		t.Existing = connector.RefuseExisting
	case found.owned && found.copy > 0 && t.Existing == connector.RefuseExisting:
		return sinkFault(connector.TableFault, "plan", t.Name, "set `existing` as it was: replace or merge",
			"the table was made by somebody else, and it is not said what becomes of rows that are not the source's")
	case found.owned && found.copy > 0:
		if err := s.fit(ctx, t, found.oid); err != nil {
			return err
		}
	default:
		if err := s.checkAdoption(ctx, t, found); err != nil {
			return err
		}
	}
	t.Copy = found.copy
	beyond, err := s.query(ctx, fmt.Sprintf("SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = %d AND (i.indisunique OR i.indisexclusion) AND %s LIMIT 1",
		found.oid, beyondKey(sinkKey(t))))
	if err != nil {
		return wrapError(err, sinkSystem, "look at the destination", t.Name)
	}
	t.UniqueBeyondKey = len(beyond) > 0 && !t.History
	return s.takeStock(ctx, t, found.oid)
}

// beyondKey is the condition on a unique or exclusion index i that it can refuse rows with different keys beside each other.
// A unique index that holds all columns of the key cannot do that.
func beyondKey(key []string) string {
	return `i.indislive AND (i.indisexclusion OR NOT (SELECT coalesce(array_agg(a.attname::text), '{}') FROM pg_catalog.pg_attribute a
		WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) @> ` + quoteLiteral(string(textArray(key))) + `::text[])`
}

// fillDefaults sets what a wanted target may leave out: the schema, and the columns.
func fillDefaults(t *connector.Target) {
	if t.Name.Schema == "" {
		t.Name.Schema = "public"
	}
	t.Name.Schema = fitName(t.Name.Schema, t.Name.Schema, false)
	t.Name.Table = fitName(t.Name.Table, t.Name.Table, false)
	if t.Columns == nil {
		t.Columns = make([]int, len(t.Table.Columns))
		for i := range t.Columns {
			t.Columns[i] = i
		}
	}
}

// checkTarget refuses what cannot be stored, whatever the database holds.
func checkTarget(t *connector.Target) error {
	refuse := func(hint, format string, args ...any) error {
		return sinkFault(connector.TableFault, "plan", t.Name, hint, format, args...)
	}
	if t.Name.Schema == sinkSchema || t.Name.Schema == "information_schema" || strings.HasPrefix(t.Name.Schema, "pg_") {
		return refuse("choose another schema in `destination`", "schema %s is not for mirrored tables", quoteIdent(t.Name.Schema))
	}
	for _, c := range t.Columns {
		name := t.Table.Columns[c].Name
		if strings.HasPrefix(name, reservedColumns) {
			return refuse("rename the column or exclude it", "the name of column %s is one of those that sluice adds", quoteIdent(name))
		}
	}
	key := keyNames(t)
	if len(key) == 0 && !t.History {
		return refuse(t.Table.Keyless, "the table has no key")
	}
	for _, name := range key {
		c := t.Table.Column(name)
		if c < 0 || !slices.Contains(t.Columns, c) {
			return refuse("include the column", "key column %s is not among the stored columns", quoteIdent(name))
		}
		if t.Table.Columns[c].Generated != "" && !t.History {
			return refuse("choose another key", "key column %s is generated, and so not in the log", quoteIdent(name))
		}
	}
	return nil
}

// keyNames returns the names of the columns that identify a row in the sink, as the source has them.
func keyNames(t *connector.Target) []string {
	if t.Key != nil {
		return t.Key
	}
	return t.Table.KeyNames()
}

// sinkKey returns the names of the key's columns in the sink, of those that are stored: one of a history may be generated.
func sinkKey(t *connector.Target) []string {
	var names []string
	for _, name := range keyNames(t) {
		if i := slices.Index(t.Columns, t.Table.Column(name)); i >= 0 {
			names = append(names, t.SinkNames[i])
		}
	}
	return names
}

// planTypes fills in names, types and misfits: a column's native type where this server has it or can be given it, else
// the type that holds all values of its logical type.
func (s *Sink) planTypes(ctx context.Context, t *connector.Target) error {
	var texts []string
	for _, c := range t.Columns {
		texts = appendNatives(texts, &t.Table.Columns[c].Type)
	}
	found, err := s.resolveTypes(ctx, texts)
	if err != nil {
		return err
	}
	n := len(t.Columns)
	t.SinkNames, t.SinkTypes, t.Misfits = make([]string, n), make([]string, n), make([]string, n)
	for i, c := range t.Columns {
		column := &t.Table.Columns[c]
		t.SinkNames[i] = fitName(column.Name, column.Name, false)
		t.SinkTypes[i], t.Misfits[i] = sinkTypeOf(&column.Type, found)
	}
	return nil
}

func sinkTypeOf(t *schema.Type, found map[string]sinkType) (declared, misfit string) {
	native, exists := found[t.Native]
	if exists && accepts(*t, native) {
		return t.Native, ""
	}
	if !exists && canCreate(t, found) {
		return typeText(t), ""
	}
	declared = defaultType(*t)
	if text := strings.TrimSuffix(declared, "[]"); text == "text" && t.Kind != schema.Enum && t.Native != "" {
		misfit = fmt.Sprintf("type %s does not exist here; stored as %s", t.Native, declared)
	}
	return declared, misfit
}

// appendNatives appends the native names of a type and of everything that it is made of.
func appendNatives(texts []string, t *schema.Type) []string {
	if t.Native != "" {
		texts = append(texts, t.Native)
	}
	if t.Elem != nil {
		texts = appendNatives(texts, t.Elem)
	}
	for i := range t.Fields {
		texts = appendNatives(texts, &t.Fields[i].Type)
	}
	return texts
}

// canCreate reports whether Create can make a type that does not exist: an enum, or a composite of types that exist or
// can be made; or an array of one.
func canCreate(t *schema.Type, found map[string]sinkType) bool {
	user := userType(t)
	if user == nil {
		return false
	}
	for i := range user.Fields {
		f := &user.Fields[i].Type
		if native, exists := found[f.Native]; !(exists && accepts(*f, native)) && (exists || !canCreate(f, found)) {
			return false
		}
	}
	return true
}

// destination is what the database holds under a target's name.
type destination struct {
	exists bool
	oid    uint32
	kind   string // pg_class.relkind
	owner  string // id of the mirror that writes it, "" if none does
	owned  bool   // by this mirror
	copy   int

	foreign bool // the table was made by somebody else, and is kept
}

func (s *Sink) findDestination(ctx context.Context, name schema.Name) (destination, error) {
	const op = "look at the destination"
	s.mu.Lock()
	mirror, id := s.claim.mirror, s.claim.id
	s.mu.Unlock()
	if id == "" {
		mirror, id = s.env.Mirror, s.env.ID
	}
	owner := "(SELECT NULL::text AS mirror, 0 AS copy, false AS foreign_made, NULL::text AS id)"
	var kept bool
	err := s.pool.QueryRow(ctx, `SELECT pg_catalog.to_regclass('sluice.owner') IS NOT NULL
		AND pg_catalog.to_regclass('sluice.mirror') IS NOT NULL`).Scan(&kept)
	if err != nil {
		return destination{}, wrapError(err, sinkSystem, op, name)
	}
	if kept {
		owner = `(SELECT o.mirror, o.copy, o.foreign_made, m.id FROM (VALUES (1)) one
			LEFT JOIN sluice.owner o ON o.schema = ` + quoteLiteral(name.Schema) + ` AND o."table" = ` + quoteLiteral(name.Table) + `
			LEFT JOIN sluice.mirror m ON m.name = ` + quoteLiteral(mirror) + `)`
	}
	var d destination
	err = s.pool.QueryRow(ctx, `
		SELECT c.oid IS NOT NULL, coalesce(c.oid, 0), coalesce(c.relkind::text, ''), coalesce(o.mirror, ''),
		       coalesce(o.mirror = coalesce(nullif($3, ''), o.id), false), coalesce(o.copy, 0), coalesce(o.foreign_made, false)
		FROM `+owner+` o
		LEFT JOIN (pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace)
		       ON n.nspname = $1 AND c.relname = $2`, pgx.QueryExecModeExec, name.Schema, name.Table, id).
		Scan(&d.exists, &d.oid, &d.kind, &d.owner, &d.owned, &d.copy, &d.foreign)
	return d, wrapError(err, sinkSystem, op, name)
}

// checkAdoption refuses a table that is not ours, except an empty one that is just what we would make, or one that the user
// wants to be written and that takes the rows.
func (s *Sink) checkAdoption(ctx context.Context, t *connector.Target, d destination) error {
	refuse := func(hint, format string, args ...any) error {
		return sinkFault(connector.TableFault, "plan", t.Name, hint, format, args...)
	}
	if d.kind != "r" && d.kind != "p" {
		return refuse("choose another `destination`, or drop it", "something else of this name exists, not a table")
	}
	if t.Existing != connector.RefuseExisting && !t.History {
		return s.fit(ctx, t, d.oid)
	}
	const choose = ", choose another `destination`, or set `existing`"
	if t.History {
		t.Existing = connector.RefuseExisting // a history is appended to, and to no other table
	}
	differs, err := s.differs(ctx, t, d.oid)
	switch {
	case err != nil:
		return err
	case differs != "":
		return refuse("drop the table"+choose, "the table exists, is not of this mirror, and %s", differs)
	}
	rows, err := s.query(ctx, "SELECT 1 FROM "+quoteName(t.Name)+" LIMIT 1")
	switch {
	case err != nil:
		return wrapError(err, sinkSystem, "plan", t.Name)
	case len(rows) > 0:
		return refuse("empty the table"+choose, "the table exists, is not of this mirror, and holds rows")
	}
	return nil
}

// differs tells how an existing table differs from the one that we would make, "" if it does not.
func (s *Sink) differs(ctx context.Context, t *connector.Target, oid uint32) (string, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attgenerated <> '',
		       coalesce(pg_catalog.array_position(i.indkey::int2[], a.attnum), -1)
		FROM pg_catalog.pg_attribute a
		LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
		WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`, oid)
	if err != nil {
		return "", wrapError(err, sinkSystem, "plan", t.Name)
	}
	defer rows.Close()
	want := tableColumns(t)
	key := 0
	for i := 0; rows.Next(); i++ {
		var name, typ string
		var generated bool
		var position int
		if err := rows.Scan(&name, &typ, &generated, &position); err != nil {
			return "", wrapError(err, sinkSystem, "plan", t.Name)
		}
		if i >= len(want) || want[i].name != name || want[i].typ != typ || (want[i].generated != "") != generated {
			rows.Close()
			return "its columns differ at " + quoteIdent(name), nil
		}
		if (position >= 0) != want[i].key {
			return "its primary key is another one", nil
		}
		want[i].seen = true
		if position >= 0 {
			key++
		}
	}
	if err := rows.Err(); err != nil {
		return "", wrapError(err, sinkSystem, "plan", t.Name)
	}
	for _, c := range want {
		if !c.seen {
			return "it has no column " + quoteIdent(c.name), nil
		}
	}
	return "", nil
}

// tableColumn is a column of a destination as we declare it.
type tableColumn struct {
	name, typ string
	generated string
	key       bool // and so NOT NULL
	source    int  // index into Table.Columns, -1 for a column that we add
	seen      bool
}

// tableColumns returns the columns of the table that stores t.
func tableColumns(t *connector.Target) []tableColumn {
	var columns []tableColumn
	key := keyNames(t)
	for i, c := range t.Columns {
		columns = append(columns, tableColumn{
			name: t.SinkNames[i], typ: t.SinkTypes[i], generated: t.Table.Columns[c].Generated,
			key: !t.History && slices.Contains(key, t.Table.Columns[c].Name), source: c,
		})
	}
	if t.History {
		columns = append(columns, historyColumns...)
	}
	if t.SoftDelete {
		columns = append(columns, tableColumn{name: connector.DeletedAt, typ: "timestamp with time zone", source: -1})
	}
	return columns
}
