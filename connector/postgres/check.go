package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Checker = (*Source)(nil)

// Check finds what keeps the mirror from reading these tables, and what else its user should know of the server; see
// connector.Checker.
func (s *Source) Check(ctx context.Context, ts []*schema.Table) ([]connector.Problem, error) {
	c := &sourceCheck{source: s, tables: ts}
	for _, look := range []func(context.Context) error{
		c.readFacts, c.readObjects, c.checkServer, c.checkRole, c.checkPublications, c.checkSlot, c.checkRoom, c.checkReplication,
		c.checkLatency, c.checkTables, c.checkBroken,
	} {
		if err := look(ctx); err != nil {
			return c.problems, wrapError(err, sourceSystem, "check the set-up", schema.Name{})
		}
	}
	return c.problems, nil
}

// sourceCheck is one Check under way.
type sourceCheck struct {
	source   *Source
	tables   []*schema.Table
	facts    sourceFacts
	pubs     publications
	slot     *slot
	problems []connector.Problem
}

// sourceFacts is what the server says of itself and of our role.
type sourceFacts struct {
	role, walLevel, keepSize, idleTimeout string // a setting that the server does not know is ""
	standby, replication, create          bool
	slotsMax, slots, sendersMax, senders  int
	idleSlots                             string // names of those that nobody uses
}

func (c *sourceCheck) fault(table *schema.Table, fix, format string, args ...any) {
	c.add(table, false, fix, format, args...)
}

func (c *sourceCheck) note(table *schema.Table, fix, format string, args ...any) {
	c.add(table, true, fix, format, args...)
}

func (c *sourceCheck) add(table *schema.Table, note bool, fix, format string, args ...any) {
	p := connector.Problem{What: fmt.Sprintf(format, args...), Fix: fix, Note: note}
	if table != nil {
		p.Table = table.Name.String()
	}
	c.problems = append(c.problems, p)
}

// readFacts asks for everything that takes no table. Amazon RDS gives the right to replicate by a role of its own.
func (c *sourceCheck) readFacts(ctx context.Context) error {
	f := &c.facts
	return c.source.pool.QueryRow(ctx, `
		SELECT r.rolname::text, pg_catalog.current_setting('wal_level'), pg_catalog.current_setting('max_slot_wal_keep_size'),
		       coalesce(pg_catalog.current_setting('idle_replication_slot_timeout', true), ''),
		       pg_catalog.pg_is_in_recovery(),
		       r.rolsuper OR r.rolreplication OR EXISTS (
		           SELECT FROM pg_catalog.pg_roles x WHERE x.rolname = 'rds_replication' AND pg_catalog.pg_has_role(x.oid, 'USAGE')),
		       pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
		       pg_catalog.current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_catalog.pg_replication_slots)::int,
		       pg_catalog.current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_catalog.pg_stat_replication)::int,
		       coalesce((SELECT string_agg(s.slot_name::text, ', ' ORDER BY s.slot_name) FROM pg_catalog.pg_replication_slots s
		                 WHERE NOT s.active), '')
		FROM pg_catalog.pg_roles r WHERE r.rolname = current_user`).
		Scan(&f.role, &f.walLevel, &f.keepSize, &f.idleTimeout, &f.standby, &f.replication, &f.create,
			&f.slotsMax, &f.slots, &f.sendersMax, &f.senders, &f.idleSlots)
}

func (c *sourceCheck) readObjects(ctx context.Context) (err error) {
	if c.pubs, err = c.source.findPublications(ctx); err == nil {
		c.slot, err = c.source.readSlot(ctx)
	}
	return err
}

func (c *sourceCheck) checkServer(context.Context) error {
	f, version := &c.facts, c.source.server.version
	if f.standby {
		c.fault(nil, "set `url` to the primary server", "the server is a standby, on which nothing can be published")
	}
	if f.walLevel != "logical" {
		c.fault(nil, "ALTER SYSTEM SET wal_level = logical, then restart the server", "wal_level is %s, not logical", f.walLevel)
	}
	if keepsOldPublication(version) {
		c.note(nil, "update the server to 14.18, 15.13, 16.9, 17.5 or later",
			"server %d.%d may leave out changes of transactions that run while a table joins; so each join waits for every transaction that is older, also those of other tables",
			version/10_000, version%10_000)
	}
	if f.keepSize == "-1" {
		c.note(nil, "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB', or what the disk allows, then SELECT pg_reload_conf()",
			"max_slot_wal_keep_size is unlimited: the log that the server keeps for a mirror that does not run can fill its disk")
	}
	if f.idleTimeout == "0" {
		c.note(nil, "ALTER SYSTEM SET idle_replication_slot_timeout = '7d', or longer than the mirror may be away, then SELECT pg_reload_conf()",
			"idle_replication_slot_timeout is off: a slot that is forgotten keeps log for ever")
	}
	return nil
}

func (c *sourceCheck) checkRole(context.Context) error {
	if !c.facts.replication {
		c.fault(nil, "ALTER ROLE "+quoteIdent(c.facts.role)+" REPLICATION", "role %s may not replicate", quoteIdent(c.facts.role))
	}
	if !c.facts.create && !c.source.given && !c.pubs.anyOurs() {
		c.fault(nil, "GRANT CREATE ON DATABASE "+quoteIdent(c.source.server.database)+" TO "+quoteIdent(c.facts.role),
			"role %s may not create publications in the database", quoteIdent(c.facts.role))
	}
	return nil
}

// idUnknown reports whether a publication is a mirror's, while this mirror knows no id of its own: its state may be lost,
// and its sink may know the id.
func (c *sourceCheck) idUnknown(p *publication) bool {
	return c.source.env.ID == "" && p.exists && strings.HasPrefix(p.mark, markPrefix)
}

func (c *sourceCheck) checkPublications(context.Context) error {
	if c.source.given && !c.pubs[0].exists {
		c.fault(nil, c.source.goneHint(), "%s", c.source.goneText())
		return nil
	}
	for _, note := range c.source.notesOn(c.pubs) {
		c.note(nil, "", "%s", note)
	}
	for i := range c.pubs {
		p := &c.pubs[i]
		drop := "if nothing needs it: DROP PUBLICATION " + quoteIdent(p.name) + "; else set `publication` to another name"
		switch {
		case c.idUnknown(p):
			c.note(nil, drop, "publication %q is there already, made by a mirror: if this mirror's state was lost, the sink may know the mirror's id, and a run takes it up", p.name)
		case p.given:
		case p.exists && !p.ours:
			c.fault(nil, drop, "publication %q exists and was not made by this mirror", p.name)
		case p.exists && !p.intact(i):
			c.fault(nil, hintNewCopies,
				"publication %q was altered and does not publish what it was made for, so changes are missing", p.name)
		case !p.exists && c.pubs.anyOurs():
			c.fault(nil, hintNewCopies,
				"publication %q was dropped, so changes are missing", p.name)
		}
	}
	return nil
}

func (c *sourceCheck) checkSlot(ctx context.Context) error {
	if c.source.given {
		former, err := c.source.readSlotNamed(ctx, c.source.baseSlotName())
		if err != nil {
			return err
		}
		if former != nil {
			c.note(nil, "if the mirror used it before its publication was given: "+former.dropStatement(),
				"replication slot %q exists and is not used by this mirror: where the publication is given, its slot has the mirror's id in its name", former.name)
		}
	}
	s := c.slot
	if s == nil {
		if c.pubs.anyOurs() {
			c.fault(nil, hintNewCopies,
				"replication slot %q was dropped, so changes are missing", c.source.slotName())
		}
		return nil
	}
	known := c.source.ownsSlot(c.pubs) || slices.ContainsFunc(c.pubs, func(p publication) bool { return c.idUnknown(&p) })
	switch {
	case !known || !s.decodes(c.source.server.database):
		c.fault(nil, "if nothing needs it: "+s.dropStatement()+"; else set `slot` to another name",
			"replication slot %q (%s, plugin %q, database %q) exists and was not made by this mirror", s.name, s.kind, s.plugin, s.database)
		return nil
	case s.lost != "":
		c.fault(nil, hintNewCopies,
			"replication slot %q is invalid: %s", s.name, s.lost)
		return nil
	case s.pid != 0 && !c.source.isOurs(s.application):
		c.fault(nil, "stop what uses it, or set `slot` and `publication` to names of this mirror's own",
			"replication slot %q is in use by pid %d (application %q)", s.name, s.pid, s.application)
	}
	kept, err := c.source.Retained(ctx, "")
	if err != nil {
		return err
	}
	if s.pid != 0 {
		c.note(nil, "", "replication slot %q keeps %.1f MiB of log and is in use by pid %d (application %q)", s.name, mebibytes(kept.Bytes), s.pid, s.application)
		return nil
	}
	c.note(nil, "run the mirror; `sluice teardown` removes what it made", "replication slot %q keeps %.1f MiB of log and nobody uses it", s.name, mebibytes(kept.Bytes))
	return nil
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// checkRoom looks for a free slot and a free sender, which the mirror has already if it has been run or is running.
func (c *sourceCheck) checkRoom(context.Context) error {
	f := &c.facts
	if c.slot == nil && f.slots >= f.slotsMax {
		fix := fmt.Sprintf("ALTER SYSTEM SET max_replication_slots = %d, then restart the server", f.slotsMax+1)
		if f.idleSlots != "" {
			fix += "; or drop a slot that is not needed; nobody uses " + f.idleSlots
		}
		c.fault(nil, fix, "all %d replication slots are taken", f.slotsMax)
	}
	if (c.slot == nil || c.slot.pid == 0) && f.senders >= f.sendersMax {
		c.fault(nil, fmt.Sprintf("ALTER SYSTEM SET max_wal_senders = %d, then restart the server; or end a replication connection that is not needed", f.sendersMax+1),
			"all %d replication connections (max_wal_senders) are taken", f.sendersMax)
	}
	return nil
}

// checkReplication opens a replication connection, which a pooler or pg_hba.conf may refuse, unless a run has one or it is
// known to fail.
func (c *sourceCheck) checkReplication(ctx context.Context) error {
	f := &c.facts
	if !f.replication || f.senders >= f.sendersMax || c.slot != nil && c.slot.pid != 0 {
		return nil
	}
	conn, err := connectReplication(ctx, c.source.config, c.source.application())
	if err == nil {
		defer conn.Close(context.WithoutCancel(ctx))
		_, err = identifySystem(ctx, conn)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.fault(nil, "connect to the server itself and not to a pooler, and let pg_hba.conf admit the role for replication in this database",
			"no replication connection: %v", err)
	}
	return nil
}

// checkLatency looks for synchronous_commit = off. Our own sessions set it on, so a bare one tells what others have.
func (c *sourceCheck) checkLatency(ctx context.Context) error {
	const fix = "set synchronous_commit to on where commits are to be seen at once"
	config, err := pgconn.ParseConfig(c.source.config.URL)
	if err != nil {
		return badURL(sourceSystem)
	}
	config.ConnectTimeout = connectTimeout
	conn, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := readRows(ctx, conn, `
		SELECT 'for this role' WHERE pg_catalog.current_setting('synchronous_commit') = 'off'
		UNION
		SELECT coalesce('for role ' || pg_catalog.quote_ident(r.rolname), 'for the database ' || pg_catalog.quote_ident(d.datname))
		FROM pg_catalog.pg_db_role_setting s
		LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
		WHERE 'synchronous_commit=off' = ANY(s.setconfig) AND (s.setdatabase = 0 OR d.datname = pg_catalog.current_database())
		ORDER BY 1`)
	if err != nil {
		return err
	}
	for _, r := range rows {
		c.note(nil, fix, "synchronous_commit is off %s: its commits reach the log, and so the mirror, up to 3 times wal_writer_delay later", r[0])
	}
	return nil
}

// checkTables looks at the rights on each table, at its leaves where it is partitioned, and at its publication.
func (c *sourceCheck) checkTables(ctx context.Context) error {
	byOID := map[uint32]*schema.Table{}
	var oids []uint32
	for _, t := range c.tables {
		oid, err := tableOID(t.ID)
		if err != nil {
			return err
		}
		byOID[oid] = t
		oids = append(oids, oid)
	}
	if len(oids) == 0 {
		return nil
	}
	members, err := c.source.membershipOf(ctx, c.source.pool, oids)
	if err != nil {
		return err
	}
	rights, err := c.readRights(ctx, oids)
	if err != nil {
		return err
	}
	var schemas []string
	for _, r := range rights {
		t := byOID[r.oid]
		if !r.schema && !slices.Contains(schemas, t.Name.Schema) {
			schemas = append(schemas, t.Name.Schema)
			c.fault(nil, "GRANT USAGE ON SCHEMA "+quoteIdent(t.Name.Schema)+" TO "+quoteIdent(c.facts.role),
				"role %s may not use schema %s", quoteIdent(c.facts.role), quoteIdent(t.Name.Schema))
		}
		c.checkRights(t, r, members[r.oid])
		c.checkMembership(t, members[r.oid])
	}
	return nil
}

// tableRights is what our role may do with a table.
type tableRights struct {
	oid          uint32
	owner        string
	owns, schema bool     // schema: it may use the schema, or will when it owns the table
	unreadable   []string // the table, or leaves of it, quoted
	restricted   bool     // row security applies
	forced       bool     // to the owner too
}

func (c *sourceCheck) readRights(ctx context.Context, oids []uint32) ([]tableRights, error) {
	rows, err := c.source.pool.Query(ctx, `
		WITH RECURSIVE tree AS (
			SELECT c.oid AS root, c.oid FROM pg_catalog.pg_class c WHERE c.oid = ANY($1::oid[])
			UNION ALL
			SELECT t.root, i.inhrelid FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.relkind = 'p'
			JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending)
		SELECT root.oid, o.rolname::text, pg_catalog.pg_has_role(root.relowner, 'USAGE'),
		       pg_catalog.has_schema_privilege(root.relnamespace, 'USAGE') OR NOT pg_catalog.pg_has_role(root.relowner, 'USAGE')
		           AND pg_catalog.has_schema_privilege(root.relowner, root.relnamespace, 'USAGE'),
		       coalesce(array_agg(pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) ORDER BY n.nspname, c.relname)
		           FILTER (WHERE NOT pg_catalog.has_table_privilege(c.oid, 'SELECT')), '{}'),
		       bool_or(pg_catalog.row_security_active(c.oid)), bool_or(c.relrowsecurity AND c.relforcerowsecurity)
		FROM tree t JOIN pg_catalog.pg_class root ON root.oid = t.root JOIN pg_catalog.pg_roles o ON o.oid = root.relowner
		JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_namespace rn ON rn.oid = root.relnamespace
		GROUP BY root.oid, root.relowner, root.relnamespace, o.rolname, rn.nspname, root.relname ORDER BY rn.nspname, root.relname`, oids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r tableRights, err error) {
		err = row.Scan(&r.oid, &r.owner, &r.owns, &r.schema, &r.unreadable, &r.restricted, &r.forced)
		return r, err
	})
}

// checkRights asks for ownership first, which brings the other rights with it. A table that is published already needs
// it no more.
func (c *sourceCheck) checkRights(t *schema.Table, r tableRights, m *membership) {
	role := quoteIdent(c.facts.role)
	needsOwner := !r.owns && !c.source.given && !m.settled(t)
	if needsOwner {
		c.fault(t, "GRANT "+quoteIdent(r.owner)+" TO "+role, "only its owner %s can publish it, which role %s is not", quoteIdent(r.owner), role)
	}
	if len(r.unreadable) > 0 && !needsOwner {
		c.fault(t, "GRANT SELECT ON "+strings.Join(r.unreadable, ", ")+" TO "+role, "role %s may not read it", role)
	}
	if r.restricted && (!needsOwner || r.forced) {
		c.fault(t, "ALTER ROLE "+role+" BYPASSRLS", "row security hides rows of it from role %s", role)
	}
}

func (c *sourceCheck) checkMembership(t *schema.Table, m *membership) {
	if m == nil || c.source.given { // where it was given, what a table lacks has refused it
		return
	}
	for which, filtered := range m.filtered {
		if filtered {
			c.fault(t, "restart the mirror: it publishes the whole table and copies it anew",
				"publication %q has a row filter or a column list for it, so changes are missing", c.source.publicationName(which))
		}
	}
	if m.keyLost(t) {
		e, _ := errors.AsType[*connector.Error](identityLost(t))
		c.fault(t, e.Hint, "%v", e.Err)
		return
	}
	if m.right(t) == insertPublication {
		c.note(t, t.Keyless, "only inserts and truncates of it are mirrored, for its updates and deletes are not published")
	}
	if c.slot != nil && c.pubs.anyOurs() && !m.in[m.right(t)] {
		c.note(t, "", "it is not in publication %q yet: the mirror adds it, and copies it then", c.source.publicationName(m.right(t)))
	}
}

// checkBroken finds the tables of the database, mirrored or not, whose UPDATE or DELETE statements fail because of a
// publication: they have no replica identity, and it publishes such statements (CheckCmdReplicaIdentity in
// execReplication.c). A publication of all tables does that to tables that nobody has thought of.
func (c *sourceCheck) checkBroken(ctx context.Context) error {
	rows, err := c.source.pool.Query(ctx, `
		WITH RECURSIVE tree AS (
			SELECT DISTINCT p.oid AS publication, c.oid
			FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_tables t ON t.pubname = p.pubname
			JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
			JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
			WHERE p.pubupdate OR p.pubdelete
			UNION
			SELECT t.publication, i.inhrelid FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.relkind = 'p'
			JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid)
		SELECT p.pubname::text, p.puballtables, n.nspname::text, leaf.relname::text
		FROM tree t JOIN pg_catalog.pg_publication p ON p.oid = t.publication
		JOIN pg_catalog.pg_class leaf ON leaf.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = leaf.relnamespace
		WHERE leaf.relkind = 'r' AND NOT `+usableIdentity+`
		ORDER BY n.nspname, leaf.relname, p.pubname`)
	if err != nil {
		return err
	}
	var publication string
	var all bool
	var name schema.Name
	_, err = pgx.ForEachRow(rows, []any{&publication, &all, &name.Schema, &name.Table}, func() error {
		what := "publication %q publishes"
		if all {
			what = "publication %q, of all tables, publishes"
		}
		table, ours := quoteName(name), slices.Contains(c.source.publicationNames(), publication)
		fix := fmt.Sprintf("ALTER TABLE %[1]s ADD PRIMARY KEY (...), or ALTER TABLE %[1]s REPLICA IDENTITY FULL", table)
		if !ours || !c.source.given { // else the mirror needs what it publishes
			fix += fmt.Sprintf("; or ALTER PUBLICATION %s SET (publish = 'insert, truncate')", quoteIdent(publication))
		}
		c.add(&schema.Table{Name: name}, !ours, fix, what+" its updates and deletes, and it has no replica identity: its UPDATE and DELETE statements fail at the source", publication)
		return nil
	})
	return err
}
