package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Checker = (*Sink)(nil)

// Check finds what keeps the mirror from writing destinations of these names; see connector.Checker. What stands in a
// destination already is Plan's to judge.
func (s *Sink) Check(ctx context.Context, ts []*schema.Table) ([]connector.Problem, error) {
	c := &sinkCheck{sink: s, tables: ts}
	for _, look := range []func(context.Context) error{c.readFacts, c.checkServer, c.checkAccounts, c.checkMirror, c.checkSchemas, c.checkOwners} {
		if err := look(ctx); err != nil {
			return c.problems, wrapError(err, sinkSystem, "check the set-up", schema.Name{})
		}
	}
	return c.problems, nil
}

// sinkCheck is one Check under way.
type sinkCheck struct {
	sink   *Sink
	tables []*schema.Table
	facts  struct {
		role, database         string
		standby, create        bool
		accounts, usable, ours bool // our tables exist; our role may use them; and make tables beside them
	}
	problems []connector.Problem
}

func (c *sinkCheck) fault(table, fix, format string, args ...any) {
	c.problems = append(c.problems, connector.Problem{Table: table, What: fmt.Sprintf(format, args...), Fix: fix})
}

func (c *sinkCheck) readFacts(ctx context.Context) error {
	f := &c.facts
	return c.sink.pool.QueryRow(ctx, `
		WITH account AS (SELECT c.oid, c.relnamespace FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = 'sluice' AND c.relname IN ('mirror', 'entry', 'owner'))
		SELECT current_user::text, pg_catalog.current_database()::text,
		       pg_catalog.pg_is_in_recovery(),
		       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
		       (SELECT count(*) = 3 FROM account),
		       (SELECT coalesce(bool_and(pg_catalog.has_schema_privilege(relnamespace, 'USAGE') AND pg_catalog.has_table_privilege(oid, 'SELECT')
		           AND pg_catalog.has_table_privilege(oid, 'INSERT') AND pg_catalog.has_table_privilege(oid, 'UPDATE')
		           AND pg_catalog.has_table_privilege(oid, 'DELETE')), true) FROM account),
		       (SELECT coalesce(bool_and(pg_catalog.has_schema_privilege(oid, 'CREATE')), true) FROM pg_catalog.pg_namespace WHERE nspname = 'sluice')`).
		Scan(&f.role, &f.database, &f.standby, &f.create, &f.accounts, &f.usable, &f.ours)
}

func (c *sinkCheck) checkServer(context.Context) error {
	if c.facts.standby {
		c.fault("", "set `url` to the primary server", "the server is a standby, on which nothing can be written")
	}
	return nil
}

// checkAccounts looks at the schema in which we keep what we know of the mirror.
func (c *sinkCheck) checkAccounts(context.Context) error {
	role := quoteIdent(c.facts.role)
	if !c.facts.usable {
		c.fault("", "GRANT USAGE, CREATE ON SCHEMA sluice TO "+role+"; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA sluice TO "+role,
			"role %s may not use the tables of the schema sluice", role)
	} else if !c.facts.ours {
		c.fault("", "GRANT CREATE ON SCHEMA sluice TO "+role, "role %s may not make tables in the schema sluice, where copies are loaded", role)
	}
	return nil
}

// checkMirror looks for another mirror of our name.
func (c *sinkCheck) checkMirror(ctx context.Context) error {
	if !c.facts.accounts || !c.facts.usable {
		return nil
	}
	name, id := c.sink.env.Mirror, c.sink.env.ID
	rows, err := c.sink.pool.Query(ctx, "SELECT id, name = $1, format FROM sluice.mirror WHERE name = $1 OR format > $2", name, sinkFormat)
	if err != nil {
		return err
	}
	var stored string
	var named bool
	var format int
	_, err = pgx.ForEachRow(rows, []any{&stored, &named, &format}, func() error {
		switch {
		case format > sinkFormat:
			c.fault("", "use the newer version of sluice for this database", "the schema sluice has format %d, newer than %d", format, sinkFormat)
		case id == "":
			c.problems = append(c.problems, connector.Problem{
				What: fmt.Sprintf("a mirror named %q writes here already, and this one was never run with the present state: a run takes the other over", name),
				Fix:  "if that is another mirror, give this one another name", Note: true,
			})
		case stored != id:
			c.fault("", "give this mirror another name, or tear the other one down", "another mirror named %q already writes here", name)
		}
		return nil
	})
	return err
}

// checkSchemas looks at the schemas that the destinations, and our own tables, are or will be in.
func (c *sinkCheck) checkSchemas(ctx context.Context) error {
	var names []string
	for _, t := range c.tables {
		names = append(names, schemaOf(t.Name))
	}
	rows, err := c.sink.pool.Query(ctx, `
		SELECT w.name, n.oid IS NOT NULL, coalesce(pg_catalog.has_schema_privilege(n.oid, 'CREATE'), false)
		       AND coalesce(pg_catalog.has_schema_privilege(n.oid, 'USAGE'), false)
		FROM (SELECT DISTINCT unnest($1::text[]) AS name) w LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = w.name ORDER BY w.name`, names)
	if err != nil {
		return err
	}
	role := quoteIdent(c.facts.role)
	create := !c.facts.accounts
	var name string
	var exists, usable bool
	_, err = pgx.ForEachRow(rows, []any{&name, &exists, &usable}, func() error {
		switch {
		case !exists:
			create = true
		case !usable:
			c.fault("", "GRANT CREATE, USAGE ON SCHEMA "+quoteIdent(name)+" TO "+role, "role %s may not make tables in schema %s", role, quoteIdent(name))
		}
		return nil
	})
	if create && !c.facts.create {
		c.fault("", "GRANT CREATE ON DATABASE "+quoteIdent(c.facts.database)+" TO "+role, "role %s may not make the schemas that are missing", role)
	}
	return err
}

func schemaOf(n schema.Name) string {
	if n.Schema == "" {
		return "public"
	}
	return n.Schema
}

// checkOwners looks for destinations that exist and that our role does not own, so that it can neither replace nor alter them:
// rows can be written in them all the same, where it has the rights.
func (c *sinkCheck) checkOwners(ctx context.Context) error {
	var schemas, tables []string
	for _, t := range c.tables {
		schemas, tables = append(schemas, schemaOf(t.Name)), append(tables, t.Name.Table)
	}
	rows, err := c.sink.pool.Query(ctx, `
		SELECT w.schema, w.name, o.rolname::text,
		       pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
		       AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE')
		FROM unnest($1::text[], $2::text[]) w(schema, name) JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
		WHERE NOT pg_catalog.pg_has_role(c.relowner, 'USAGE') ORDER BY w.schema, w.name`, schemas, tables)
	if err != nil {
		return err
	}
	role := quoteIdent(c.facts.role)
	var name schema.Name
	var owner string
	var writable bool
	_, err = pgx.ForEachRow(rows, []any{&name.Schema, &name.Table, &owner, &writable}, func() error {
		if writable {
			c.problems = append(c.problems, connector.Problem{
				Table: name.String(), Note: true, What: fmt.Sprintf("role %s does not own it: rows are written, columns that the source gets cannot be added", role),
				Fix: "ALTER TABLE " + quoteName(name) + " OWNER TO " + role,
			})
			return nil
		}
		c.fault(name.String(), "ALTER TABLE "+quoteName(name)+" OWNER TO "+role+"; or GRANT "+quoteIdent(owner)+" TO "+role,
			"role %s does not own it", role)
		return nil
	})
	return err
}
