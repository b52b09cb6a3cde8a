package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// copyPrefix is how the names of the tables that copies of a destination are loaded into begin; the copy's number follows.
func copyPrefix(destination schema.Name) string {
	sum := sha256.Sum256([]byte(quoteName(destination)))
	return "copy_" + hex.EncodeToString(sum[:8]) + "_"
}

// copyName is the table that copy number n is loaded into.
func copyName(t *connector.Target) schema.Name {
	return schema.Name{Schema: sinkSchema, Table: fmt.Sprintf("%s%d", copyPrefix(t.Name), t.Copy)}
}

// Create makes the table for copy t.Copy, without rows, in the schema sluice; see connector.Sink.
func (s *Sink) Create(ctx context.Context, t *connector.Target) error {
	const op = "create the table"
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	steps := []func() error{
		func() error { return x.own(ctx, t) },
		func() error { return x.createTypes(ctx, t) },
		func() error { return x.createCopy(ctx, t) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return wrapError(err, sinkSystem, op, t.Name)
		}
	}
	return x.Commit(ctx, nil)
}

// own notes that this mirror writes the destination and which copy is under way.
func (x *tx) own(ctx context.Context, t *connector.Target) error {
	results, err := x.exec(ctx, fmt.Sprintf(`SELECT pg_catalog.pg_advisory_xact_lock(%d);
		INSERT INTO sluice.owner AS o (schema, "table", mirror, source, loading, foreign_made) VALUES (%s, %s, %s, %s, %d, %t)
		ON CONFLICT (schema, "table") DO UPDATE SET source = excluded.source, loading = excluded.loading, foreign_made = excluded.foreign_made
		WHERE o.mirror = excluded.mirror`, ddlLock, quoteLiteral(t.Name.Schema), quoteLiteral(t.Name.Table),
		quoteLiteral(x.claim.id), quoteLiteral(t.Table.Name.String()), t.Copy, t.Existing != connector.RefuseExisting))
	if err == nil && results[1].CommandTag.RowsAffected() != 1 {
		return sinkFault(connector.TableFault, "create the table", t.Name,
			"choose another `destination`, or tear the other mirror down", "another mirror writes the table")
	}
	return err
}

// createCopy makes the destination's schema and an empty table for this copy, and drops what earlier copies left.
func (x *tx) createCopy(ctx context.Context, t *connector.Target) error {
	if err := x.createSchema(ctx, t.Name.Schema); err != nil {
		return err
	}
	var sql strings.Builder
	left, err := x.query(ctx, fmt.Sprintf(`SELECT relname FROM pg_catalog.pg_class
		WHERE relnamespace = 'sluice'::regnamespace AND relkind = 'r' AND relname ~ '^%s[0-9]+$'`, copyPrefix(t.Name)))
	if err != nil {
		return err
	}
	for _, r := range left {
		fmt.Fprintf(&sql, "DROP TABLE %s;", quoteName(schema.Name{Schema: sinkSchema, Table: r[0]}))
	}
	sql.WriteString(createTable(copyName(t), tableColumns(t)))
	_, err = x.exec(ctx, sql.String())
	return err
}

// createSchema makes a schema unless it exists; IF NOT EXISTS asks for the right to create one in any case.
func (x *tx) createSchema(ctx context.Context, name string) error {
	missing, err := x.query(ctx, "SELECT 1 WHERE pg_catalog.to_regnamespace("+quoteLiteral(quoteIdent(name))+") IS NULL")
	if err == nil && len(missing) > 0 {
		if _, err = x.exec(ctx, "CREATE SCHEMA "+quoteIdent(name)); err != nil {
			config := x.conn.Conn().Config()
			return needsSchemaRight(err, "create schema "+quoteIdent(name), schema.Name{}, config.Database, config.User)
		}
	}
	return err
}

func createTable(name schema.Name, columns []tableColumn) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = quoteIdent(c.name) + " " + c.typ
		if c.generated != "" {
			parts[i] += " GENERATED ALWAYS AS (" + c.generated + ") STORED"
		}
		if c.key {
			parts[i] += " NOT NULL"
		}
	}
	return "CREATE TABLE " + quoteName(name) + " (" + strings.Join(parts, ", ") + ")"
}

// createTypes makes the enums and composites that the target's columns are declared with, and gives existing enums the
// labels that they lack: a new label can be used only once it is committed.
func (x *tx) createTypes(ctx context.Context, t *connector.Target) error {
	for i, c := range t.Columns {
		typ := &t.Table.Columns[c].Type
		if t.SinkTypes[i] == defaultType(*typ) {
			continue // stored as something else
		}
		if err := x.createType(ctx, t, typ); err != nil {
			return err
		}
	}
	return nil
}

func (x *tx) createType(ctx context.Context, t *connector.Target, typ *schema.Type) error {
	user := userType(typ)
	if user == nil {
		return nil
	}
	for i := range user.Fields {
		if err := x.createType(ctx, t, &user.Fields[i].Type); err != nil {
			return err
		}
	}
	name, err := schema.ParseName(user.Native)
	if err != nil {
		return err
	}
	found, err := x.query(ctx, fmt.Sprintf(`SELECT t.typtype, t.oid, t.typrelid FROM pg_catalog.pg_type t
		JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
		WHERE n.nspname = %s AND t.typname = %s`, quoteLiteral(name.Schema), quoteLiteral(name.Table)))
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return x.createNewType(ctx, name, user)
	case user.Kind == schema.Enum && found[0][0] == "e":
		return x.addLabels(ctx, name, found[0][1], user.Labels)
	case user.Fields != nil && found[0][0] == "c":
		return x.checkComposite(ctx, t, name, found[0][2], user.Fields)
	}
	return sinkFault(connector.TableFault, "create types", t.Name, "drop or rename it", "type %s exists and is of another sort", quoteName(name))
}

func (x *tx) createNewType(ctx context.Context, name schema.Name, typ *schema.Type) error {
	var parts []string
	form := " AS "
	if typ.Kind == schema.Enum {
		form = " AS ENUM "
		for _, l := range typ.Labels {
			parts = append(parts, quoteLiteral(l))
		}
	}
	for _, f := range typ.Fields {
		declared := f.Type.Native
		if userType(&f.Type) != nil {
			declared = typeText(&f.Type)
		}
		parts = append(parts, quoteIdent(f.Name)+" "+declared)
	}
	if err := x.createSchema(ctx, name.Schema); err != nil {
		return err
	}
	_, err := x.exec(ctx, fmt.Sprintf("CREATE TYPE %s%s(%s)", quoteName(name), form, strings.Join(parts, ", ")))
	return err
}

func (x *tx) addLabels(ctx context.Context, name schema.Name, oid string, labels []string) error {
	rows, err := x.query(ctx, "SELECT enumlabel FROM pg_catalog.pg_enum WHERE enumtypid = "+oid+" ORDER BY enumsortorder")
	if err != nil {
		return err
	}
	var present []string
	for _, r := range rows {
		present = append(present, r[0])
	}
	var sql []string
	for i, l := range labels {
		if slices.Contains(present, l) {
			continue
		}
		place := ""
		if i > 0 {
			place = " AFTER " + quoteLiteral(labels[i-1])
		} else if len(present) > 0 {
			place = " BEFORE " + quoteLiteral(present[0])
		}
		sql = append(sql, "ALTER TYPE "+quoteName(name)+" ADD VALUE IF NOT EXISTS "+quoteLiteral(l)+place)
	}
	if sql == nil {
		return nil
	}
	_, err = x.exec(ctx, strings.Join(sql, "; "))
	return err
}

func (x *tx) checkComposite(ctx context.Context, t *connector.Target, name schema.Name, relation string, fields []schema.Field) error {
	rows, err := x.query(ctx, `SELECT attname FROM pg_catalog.pg_attribute
		WHERE attrelid = `+relation+` AND attnum > 0 AND NOT attisdropped ORDER BY attnum`)
	if err != nil {
		return err
	}
	same := len(rows) == len(fields)
	for i := range min(len(rows), len(fields)) {
		same = same && rows[i][0] == fields[i].Name
	}
	if !same {
		return sinkFault(connector.TableFault, "create types", t.Name, "drop the type or give it the source's attributes",
			"the attributes of type %s differ from the source's", quoteName(name))
	}
	return nil
}
