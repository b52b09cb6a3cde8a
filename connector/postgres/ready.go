package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	// indexMemory is what the server may use at least to build the key of a copy, in bytes.
	indexMemory = 256 << 20
	// exchangeLock is how long an exchange waits for its lock, and so keeps new readers waiting behind it.
	exchangeLock = time.Second
	// exchangeTries and exchangePause bound how often and how fast it is tried before it is a Conflict.
	exchangeTries = 10
	exchangePause = 500 * time.Millisecond
)

// Ready puts the rows of copy t.Copy in the place of the destination's; see connector.Sink. A crash at any point leaves
// either the old rows and the copy, or the new rows and the entries.
func (s *Sink) Ready(ctx context.Context, t *connector.Target, entries map[string]string) error {
	done, err := s.indexCopy(ctx, t)
	if err != nil {
		return wrapError(err, sinkSystem, "build the key", t.Name)
	}
	if done {
		return s.checkReady(t, entries)
	}
	return s.patiently(ctx, func() error {
		return wrapError(s.exchange(ctx, t, entries), sinkSystem, "exchange the table", t.Name)
	})
}

// patiently repeats what needs the table for itself while others hold it. It waits between two tries, so that readers
// never queue behind us for long.
func (s *Sink) patiently(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if err == nil || connector.KindOf(err) != connector.Conflict || n == exchangeTries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(exchangePause):
		}
	}
}

// checkReady judges a Ready of a copy that is in place already.
func (s *Sink) checkReady(t *connector.Target, entries map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range entries {
		if s.entries[k] != v {
			return sinkFault(connector.TableFault, "exchange the table", t.Name, "`resync` the table",
				"copy %d is in place already, with other entries", t.Copy)
		}
	}
	return nil
}

// indexCopy builds the key of the table that was loaded, or the index of a history. It reports whether the copy is in
// the destination already.
func (s *Sink) indexCopy(ctx context.Context, t *connector.Target) (done bool, err error) {
	x, err := s.begin(ctx)
	if err != nil {
		return false, err
	}
	defer x.Rollback()
	found, err := x.query(ctx, fmt.Sprintf(`SELECT to_regclass(%s) IS NOT NULL,
		EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = to_regclass(%[1]s)),
		coalesce((SELECT copy FROM sluice.owner WHERE schema = %s AND "table" = %s AND mirror = %s), 0) = %d`,
		quoteLiteral(quoteName(copyName(t))), quoteLiteral(t.Name.Schema), quoteLiteral(t.Name.Table), quoteLiteral(x.claim.id), t.Copy))
	if err != nil {
		return false, err
	}
	exists, indexed, ready := found[0][0] == "t", found[0][1] == "t", found[0][2] == "t"
	switch {
	case !exists && ready:
		return true, nil
	case !exists:
		return false, sinkFault(connector.TableFault, "build the key", t.Name, "`resync` the table", "the table that copy %d was loaded into is gone", t.Copy)
	case indexed, len(sinkKey(t)) == 0:
		return false, nil
	}
	_, err = x.exec(ctx, fmt.Sprintf(`SELECT set_config('maintenance_work_mem',
		greatest(pg_size_bytes(current_setting('maintenance_work_mem')), %d) / 1024 || 'kB', true); %s`, indexMemory, indexStatement(t)))
	if isState(err, "23505") {
		return false, sinkFault(connector.TableFault, "build the key", t.Name, "`resync` the table", "the copy holds a key twice")
	}
	if err != nil {
		return false, err
	}
	return false, x.Commit(ctx, nil)
}

func indexStatement(t *connector.Target) string {
	list, table := quoteList(sinkKey(t)), quoteName(copyName(t))
	if t.History {
		return "CREATE INDEX ON " + table + " (" + list + `, "_sluice_position", "_sluice_seq")`
	}
	return "ALTER TABLE " + table + " ADD PRIMARY KEY (" + list + ")"
}

// exchange is one try of the transaction that makes a copy visible, together with the entries.
func (s *Sink) exchange(ctx context.Context, t *connector.Target, entries map[string]string) error {
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	schemaName, table := quoteLiteral(t.Name.Schema), quoteLiteral(t.Name.Table)
	found, err := x.query(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d;
		SELECT o.copy, coalesce(to_regclass(%s)::oid, 0) FROM sluice.owner o
		WHERE o.schema = %s AND o."table" = %s AND o.mirror = %s FOR UPDATE`,
		exchangeLock.Milliseconds(), quoteLiteral(quoteName(t.Name)), schemaName, table, quoteLiteral(x.claim.id)))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return sinkFault(connector.TableFault, "exchange the table", t.Name, "`resync` the table", "this mirror does not own the table any more")
	}
	adopted, oid := found[0][0] == "0", found[0][1]
	if err := x.place(ctx, t, oid, adopted); err != nil {
		return err
	}
	if _, err := x.exec(ctx, fmt.Sprintf(`UPDATE sluice.owner SET copy = %d, loading = 0 WHERE schema = %s AND "table" = %s`,
		t.Copy, schemaName, table)); err != nil {
		return err
	}
	return x.Commit(ctx, entries)
}

// place brings the copy's rows into the destination: by moving the table there if that loses nothing, else row by row.
func (x *tx) place(ctx context.Context, t *connector.Target, oid string, adopted bool) error {
	if oid == "0" {
		return x.move(ctx, t)
	}
	if adopted || t.Existing != connector.RefuseExisting {
		// Who is writing to it now comes first, and nobody can after it was seen to be empty.
		if _, err := x.exec(ctx, "LOCK TABLE "+quoteName(t.Name)+" IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			return err
		}
	}
	if adopted && t.Existing == connector.RefuseExisting {
		rows, err := x.query(ctx, "SELECT 1 FROM "+quoteName(t.Name)+" LIMIT 1")
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			return sinkFault(connector.TableFault, "exchange the table", t.Name, "empty the table, or choose another `destination`",
				"somebody has written rows to the table before its first copy was ready")
		}
	}
	switch {
	case t.History:
		return x.appendCopy(ctx, t, adopted)
	case t.SoftDelete, t.Existing != connector.RefuseExisting:
		return x.merge(ctx, t, oid, adopted)
	}
	bound, err := x.isBound(ctx, oid)
	if err == nil && !bound {
		// What depends on the table may have come until the lock was held.
		if _, err = x.exec(ctx, "LOCK TABLE "+quoteName(t.Name)+" IN ACCESS EXCLUSIVE MODE"); err == nil {
			bound, err = x.isBound(ctx, oid)
		}
	}
	if err != nil {
		return err
	}
	if bound {
		return x.merge(ctx, t, oid, adopted)
	}
	if _, err := x.exec(ctx, "DROP TABLE "+quoteName(t.Name)); err != nil {
		return err
	}
	return x.move(ctx, t)
}

// isBound reports whether anything hangs on the table that a new table in its place would lose.
func (x *tx) isBound(ctx context.Context, oid string) (bool, error) {
	rows, err := x.query(ctx, `
		SELECT c.relkind <> 'r' OR c.relispartition OR c.relpersistence <> 'p' OR c.relreplident <> 'd'
		    OR c.relacl IS NOT NULL OR c.relrowsecurity OR c.reloptions IS NOT NULL OR c.reltablespace <> 0
		    OR c.relowner <> (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)
		    OR EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = c.oid AND NOT indisprimary)
		    OR EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE conrelid = c.oid AND contype NOT IN ('p', 'n') OR confrelid = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid AND NOT tgisinternal)
		    OR EXISTS (SELECT FROM pg_catalog.pg_policy WHERE polrelid = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_rewrite WHERE ev_class = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_inherits WHERE inhrelid = c.oid OR inhparent = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_publication_rel WHERE prrelid = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_statistic_ext WHERE stxrelid = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_description WHERE classoid = 'pg_class'::regclass AND objoid = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_seclabel WHERE classoid = 'pg_class'::regclass AND objoid = c.oid)
		    OR EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		               AND (a.attacl IS NOT NULL OR a.attoptions IS NOT NULL OR a.attidentity <> '' OR a.atthasdef AND a.attgenerated = ''))
		    OR EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.deptype = 'n'
		               AND (d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
		                    OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN
		                       (SELECT y.oid FROM pg_catalog.pg_type y WHERE y.oid = c.reltype OR y.typelem = c.reltype AND c.reltype <> 0))
		               AND NOT (d.classid = 'pg_class'::regclass AND d.objid = c.oid)
		               AND NOT (d.classid = 'pg_attrdef'::regclass
		                        AND d.objid IN (SELECT f.oid FROM pg_catalog.pg_attrdef f WHERE f.adrelid = c.oid)))
		FROM pg_catalog.pg_class c WHERE c.oid = `+oid)
	if err != nil {
		return false, err
	}
	return len(rows) == 0 || rows[0][0] == "t", nil
}

// move makes the copy's table the destination, with the grants that a table made there would have, and gives its index
// the name that the server would have given it.
func (x *tx) move(ctx context.Context, t *connector.Target) error {
	from := copyName(t)
	moved := schema.Name{Schema: t.Name.Schema, Table: from.Table}
	if _, err := x.exec(ctx, fmt.Sprintf("ALTER TABLE %s SET SCHEMA %s; ALTER TABLE %s RENAME TO %s",
		quoteName(from), quoteIdent(t.Name.Schema), quoteName(moved), quoteIdent(t.Name.Table))); err != nil {
		return err
	}
	if err := x.grantDefaults(ctx, t.Name); err != nil {
		return err
	}
	suffix := "_pkey"
	if t.History {
		suffix = "_sluice_idx"
	}
	index := cutName(t.Name.Table, maxNameLength-len(suffix)) + suffix
	rows, err := x.query(ctx, fmt.Sprintf(`SELECT c.relname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
		WHERE i.indrelid = %s::regclass AND to_regclass(%s) IS NULL`, quoteLiteral(quoteName(t.Name)),
		quoteLiteral(quoteName(schema.Name{Schema: t.Name.Schema, Table: index}))))
	if err != nil || len(rows) != 1 {
		return err
	}
	_, err = x.exec(ctx, fmt.Sprintf("ALTER INDEX %s RENAME TO %s", quoteName(schema.Name{Schema: t.Name.Schema, Table: rows[0][0]}), quoteIdent(index)))
	return err
}

// grantDefaults grants what ALTER DEFAULT PRIVILEGES IN SCHEMA says, which the server does only for tables made there.
func (x *tx) grantDefaults(ctx context.Context, name schema.Name) error {
	rows, err := x.query(ctx, fmt.Sprintf(`
		SELECT 'GRANT ' || a.privilege_type || ' ON ' || %s || ' TO ' || CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END ||
		       CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
		FROM pg_catalog.pg_default_acl d CROSS JOIN LATERAL aclexplode(d.defaclacl) a LEFT JOIN pg_catalog.pg_roles r ON r.oid = a.grantee
		WHERE d.defaclobjtype = 'r' AND d.defaclnamespace = to_regnamespace(%s)
		  AND d.defaclrole = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user)`,
		quoteLiteral(quoteName(name)), quoteLiteral(quoteIdent(name.Schema))))
	if err != nil || len(rows) == 0 {
		return err
	}
	grants := make([]string, len(rows))
	for i, r := range rows {
		grants[i] = r[0]
	}
	_, err = x.exec(ctx, strings.Join(grants, "; "))
	return err
}

// merge makes the destination's rows those of the copy, touching only rows that differ. What the copy lacks goes, or stays as
// the target says. Rows are compared by the text of all their values, for some types have no equality.
func (x *tx) merge(ctx context.Context, t *connector.Target, oid string, adopted bool) error {
	if err := x.addColumns(ctx, t, oid); err != nil {
		return err
	}
	var names, sets, match, mine, theirs []string
	for _, c := range tableColumns(t) {
		if c.generated != "" {
			continue
		}
		q := quoteIdent(c.name)
		names, sets = append(names, q), append(sets, q+" = excluded."+q)
		mine, theirs = append(mine, "d."+q), append(theirs, "c."+q)
		if c.key {
			match = append(match, "d."+q+" = c."+q)
		}
	}
	dest, from, list := quoteName(t.Name), quoteName(copyName(t)), strings.Join(names, ", ")
	lacking := " d WHERE NOT EXISTS (SELECT FROM " + from + " c WHERE " + strings.Join(match, " AND ") + ")"
	var statements []string
	switch deleted := quoteIdent(connector.DeletedAt); {
	case t.Existing == connector.MergeExisting: // which of them were the source's is not known
	case t.SoftDelete && !(adopted && t.Existing == connector.ReplaceExisting): // else it was somebody else's
		statements = append(statements, "UPDATE "+dest+strings.Replace(lacking, " d WHERE ", " d SET "+deleted+" = clock_timestamp() WHERE d."+deleted+" IS NULL AND ", 1))
	default:
		statements = append(statements, "DELETE FROM "+dest+lacking)
	}
	_, err := x.exec(ctx, strings.Join(append(statements,
		"INSERT INTO "+dest+" ("+list+") SELECT "+strings.Join(theirs, ", ")+" FROM "+from+" c WHERE NOT EXISTS (SELECT FROM "+
			dest+" d WHERE "+strings.Join(match, " AND ")+" AND ROW("+strings.Join(mine, ", ")+")::text = ROW("+strings.Join(theirs, ", ")+
			")::text) ON CONFLICT ("+quoteList(sinkKey(t))+") DO UPDATE SET "+strings.Join(sets, ", "),
		"DROP TABLE "+from,
	), "; "))
	if isState(err, "42P10", "23505", "23502", "23503", "23514", "23P01") {
		e := wrapError(err, sinkSystem, "exchange the table", t.Name).(*connector.Error)
		e.Kind, e.Hint = connector.TableFault, keptHint(t)
		return e
	}
	return err
}

// addColumns gives a table that is merged into the columns that it lacks. A column of another type needs a new table,
// and so the end of what depends on this one.
func (x *tx) addColumns(ctx context.Context, t *connector.Target, oid string) error {
	rows, err := x.query(ctx, `SELECT o.attname, o.atttypid = n.atttypid AND o.atttypmod = n.atttypmod
		FROM pg_catalog.pg_attribute o LEFT JOIN pg_catalog.pg_attribute n
		  ON n.attname = o.attname AND n.attrelid = `+quoteLiteral(quoteName(copyName(t)))+`::regclass AND n.attnum > 0 AND NOT n.attisdropped
		WHERE o.attrelid = `+oid+` AND o.attnum > 0 AND NOT o.attisdropped`)
	if err != nil {
		return err
	}
	var add []string
	for _, c := range tableColumns(t) {
		i := slices.IndexFunc(rows, func(r []string) bool { return r[0] == c.name })
		switch {
		case i < 0 && c.generated == "":
			add = append(add, "ADD COLUMN "+quoteIdent(c.name)+" "+c.typ)
		case i < 0:
			add = append(add, "ADD COLUMN "+quoteIdent(c.name)+" "+c.typ+" GENERATED ALWAYS AS ("+c.generated+") STORED")
		case rows[i][1] != "t":
			return &connector.Error{Kind: connector.TableFault, System: sinkSystem, Op: "exchange the table", Table: t.Name, Column: c.name,
				Err:  errors.New("the column's type has changed, and the table is kept"),
				Hint: keptHint(t)}
		}
	}
	if !t.SoftDelete && slices.ContainsFunc(rows, func(r []string) bool { return r[0] == connector.DeletedAt }) {
		deleted := quoteIdent(connector.DeletedAt) // its deletes were soft once
		if _, err := x.exec(ctx, "UPDATE "+quoteName(t.Name)+" SET "+deleted+" = NULL WHERE "+deleted+" IS NOT NULL"); err != nil {
			return err
		}
	}
	if add == nil {
		return nil
	}
	_, err = x.exec(ctx, "ALTER TABLE "+quoteName(t.Name)+" "+strings.Join(add, ", "))
	return err
}

// keptHint says what to do where rows cannot be brought into a table that is kept.
func keptHint(t *connector.Target) string {
	switch {
	case t.Existing != connector.RefuseExisting:
		return "drop the constraint that refuses them, then `resync` the table"
	case t.SoftDelete:
		return "rename the table, then `resync` it; a new one begins"
	}
	return "drop what depends on the table (constraints, indexes, views, foreign keys, grants), then `resync` it"
}
