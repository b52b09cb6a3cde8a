package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	changeOp = "change the table"
	// rewriteBytes is the size of a table in bytes up to which it is rewritten in place for a change of a type: its readers
	// wait for that long. A larger one needs a new copy, which takes its place in a moment.
	rewriteBytes = 256 << 20
)

// Change alters the destination; see connector.Sink. Statements and entries are one transaction.
func (s *Sink) Change(ctx context.Context, t *connector.Target, a connector.Alteration) (*connector.Target, error) {
	next, err := s.planChange(ctx, t, a.Want)
	if next == nil || err != nil {
		return nil, err
	}
	if err := s.prepareTypes(ctx, next); err != nil {
		return nil, wrapError(err, sinkSystem, changeOp, t.Name)
	}
	needsCopy := false
	err = s.patiently(ctx, func() error {
		err := s.changeOnce(ctx, t, next, &a)
		if needsCopy = errors.Is(err, errNeedsCopy); needsCopy {
			return nil
		}
		return wrapError(err, sinkSystem, changeOp, t.Name)
	})
	if needsCopy || err != nil {
		return nil, err
	}
	return next, nil
}

// errNeedsCopy says that statements cannot bring the destination to the new version.
var errNeedsCopy = errors.New("the table needs a new copy")

// planChange returns the target of the new version, nil if that is stored in another place or under another key.
func (s *Sink) planChange(ctx context.Context, t *connector.Target, want connector.Target) (*connector.Target, error) {
	next := want
	fillDefaults(&next)
	if next.Name != t.Name || next.History != t.History || next.SoftDelete != t.SoftDelete || checkTarget(&next) != nil {
		return nil, nil
	}
	if err := s.planTypes(ctx, &next); err != nil {
		return nil, err
	}
	next.Existing, next.Copy, next.UniqueBeyondKey, next.Notes = t.Existing, t.Copy, t.UniqueBeyondKey, t.Notes
	if t.Existing != connector.RefuseExisting {
		keepTypes(t, &next)
	}
	sameKey := slices.EqualFunc(keyNames(t), keyNames(&next), func(a, b string) bool {
		return t.Table.Column(a) == t.Table.Same(&next.Table.Columns[next.Table.Column(b)])
	})
	if !sameKey {
		return nil, nil
	}
	return &next, nil
}

// keepTypes leaves the columns of somebody else's table the types that they have, where these hold the new version's values.
func keepTypes(t, next *connector.Target) {
	for j, n := range next.Columns {
		column := &next.Table.Columns[n]
		i := slices.Index(t.Columns, t.Table.Same(column))
		if i >= 0 && holds(t.SinkTypes[i], next.SinkTypes[j], column.Type.Kind) {
			next.SinkTypes[j], next.Misfits[j] = t.SinkTypes[i], t.Misfits[i]
		}
	}
}

// prepareTypes makes the types and labels of the new version, in a transaction of their own: a label must be committed
// before it is used.
func (s *Sink) prepareTypes(ctx context.Context, next *connector.Target) error {
	if !slices.ContainsFunc(next.Columns, func(c int) bool { return userType(&next.Table.Columns[c].Type) != nil }) {
		return nil
	}
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	if _, err := x.exec(ctx, fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock(%d)", ddlLock)); err != nil {
		return err
	}
	if err := x.createTypes(ctx, next); err != nil {
		return err
	}
	return x.Commit(ctx, nil)
}

// changeOnce is one try of the transaction.
func (s *Sink) changeOnce(ctx context.Context, t, next *connector.Target, a *connector.Alteration) error {
	if s.keeps(a.Entries) {
		return nil // an earlier call has done it
	}
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	found, err := x.query(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d;
		SELECT o.copy, coalesce(to_regclass(%s)::oid, 0) FROM sluice.owner o
		WHERE o.schema = %s AND o."table" = %s AND o.mirror = %s FOR UPDATE`,
		exchangeLock.Milliseconds(), quoteLiteral(quoteName(t.Name)), quoteLiteral(t.Name.Schema), quoteLiteral(t.Name.Table), quoteLiteral(x.claim.id)))
	switch {
	case err != nil:
		return err
	case len(found) == 0 || found[0][0] != fmt.Sprint(t.Copy) || found[0][1] == "0":
		return errNeedsCopy
	}
	c := change{from: t, to: next, drop: a.DropColumns && !t.History}
	if err := c.readStored(ctx, x, found[0][1]); err != nil {
		return err
	}
	if err := c.plan(ctx, x, a.Missing); err != nil {
		return err
	}
	if len(c.statements) > 0 {
		if _, err := x.exec(ctx, strings.Join(c.statements, "; ")); err != nil {
			if isState(err, "0A000", "22001", "22003", "22P02", "23502", "2BP01") { // a value or a dependent object is in the way
				return errNeedsCopy
			}
			if t.Existing != connector.RefuseExisting && isState(err, "42501") { // we may not alter it: Plan says what is to be done
				return errNeedsCopy
			}
			return err
		}
	}
	return x.Commit(ctx, a.Entries)
}

// keeps reports whether the entries are stored as they are to be.
func (s *Sink) keeps(entries map[string]string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range entries {
		if s.entries[k] != v {
			return false
		}
	}
	return len(entries) > 0
}

// change makes the statements that lead from one target of a table to the next one.
type change struct {
	from, to *connector.Target
	drop     bool

	stored     map[string]storedColumn // the destination's columns, as the statements so far leave them
	bytes      int64
	statements []string
}

type storedColumn struct {
	notNull bool
}

func (c *change) readStored(ctx context.Context, x *tx, oid string) error {
	rows, err := x.query(ctx, `SELECT attname, attnotnull, pg_catalog.pg_table_size(attrelid) FROM pg_catalog.pg_attribute
		WHERE attrelid = `+oid+` AND attnum > 0 AND NOT attisdropped`)
	c.stored = map[string]storedColumn{}
	for _, r := range rows {
		c.stored[r[0]] = storedColumn{notNull: r[1] == "t"}
		if _, err := fmt.Sscan(r[2], &c.bytes); err != nil {
			return err
		}
	}
	return err
}

func (c *change) alter(format string, args ...any) {
	c.statements = append(c.statements, "ALTER TABLE "+quoteName(c.to.Name)+" "+fmt.Sprintf(format, args...))
}

// plan collects the statements: what goes makes room first, then columns are renamed, then those that stay are altered,
// and the new ones come last.
func (c *change) plan(ctx context.Context, x *tx, missing *connector.Rows) error {
	type pair struct{ from, to int } // places among the stored columns of both targets
	var both []pair
	var added []int
	gone := map[int]bool{}
	for i := range c.from.Columns {
		gone[i] = true
	}
	for j, n := range c.to.Columns {
		i := slices.Index(c.from.Columns, c.from.Table.Same(&c.to.Table.Columns[n]))
		switch {
		case i < 0:
			added = append(added, j)
			continue
		case c.regenerated(i, j):
			c.remove(c.from.SinkNames[i])
			added = append(added, j)
		default:
			both = append(both, pair{i, j})
		}
		delete(gone, i)
	}
	for i := range c.from.Columns {
		if gone[i] {
			c.leave(c.from.SinkNames[i], c.from.Table.Columns[c.from.Columns[i]].Generated != "")
		}
	}
	var names [][2]string
	for _, p := range both {
		if from, to := c.from.SinkNames[p.from], c.to.SinkNames[p.to]; from != to {
			names = append(names, [2]string{from, to})
		}
	}
	if err := c.rename(names); err != nil {
		return err
	}
	for _, p := range both {
		if err := c.retype(p.from, p.to); err != nil {
			return err
		}
	}
	for _, j := range added {
		if err := c.add(ctx, x, j, missing); err != nil {
			return err
		}
	}
	return nil
}

// regenerated reports whether a column must be made anew because the server computes it, and in another way.
func (c *change) regenerated(i, j int) bool {
	from, to := c.from.Table.Columns[c.from.Columns[i]].Generated, c.to.Table.Columns[c.to.Columns[j]].Generated
	return to != "" && from != to
}

func (c *change) remove(name string) {
	c.alter("DROP COLUMN %s", quoteIdent(name))
	delete(c.stored, name)
}

// leave deals with a column that the source has no more. One that is kept gets no values any more.
func (c *change) leave(name string, generated bool) {
	switch stored, there := c.stored[name]; {
	case !there:
	case c.drop:
		c.remove(name)
	default:
		if generated {
			c.alter("ALTER COLUMN %s DROP EXPRESSION", quoteIdent(name))
		}
		if stored.notNull {
			c.alter("ALTER COLUMN %s DROP NOT NULL", quoteIdent(name))
			c.stored[name] = storedColumn{}
		}
	}
}

// rename gives columns their new names, by way of others where two exchange theirs.
func (c *change) rename(names [][2]string) error {
	exchanged := slices.ContainsFunc(names, func(n [2]string) bool {
		return slices.ContainsFunc(names, func(o [2]string) bool { return o[0] == n[1] })
	})
	if exchanged {
		for i := range names {
			on := fmt.Sprintf("%srename_%d", reservedColumns, i)
			c.renameOne(names[i][0], on)
			names[i][0] = on
		}
	}
	for _, n := range names {
		if err := c.makeRoom(n[1]); err != nil {
			return err
		}
		c.renameOne(n[0], n[1])
	}
	return nil
}

func (c *change) renameOne(from, to string) {
	c.alter("RENAME COLUMN %s TO %s", quoteIdent(from), quoteIdent(to))
	c.stored[to] = c.stored[from]
	delete(c.stored, from)
}

// makeRoom renames a column that was kept and now has the name of another one. In somebody else's table the column may be
// theirs, and is left to Plan.
func (c *change) makeRoom(name string) error {
	if _, taken := c.stored[name]; !taken {
		return nil
	}
	if c.from.Existing != connector.RefuseExisting {
		return errNeedsCopy
	}
	for n := 1; ; n++ {
		suffix := fmt.Sprintf("__dropped_%d", n)
		kept := cutName(name, maxNameLength-len(suffix)) + suffix
		if _, taken := c.stored[kept]; !taken {
			c.renameOne(name, kept)
			return nil
		}
	}
}

// retype gives a column its new type.
func (c *change) retype(i, j int) error {
	from, to := &c.from.Table.Columns[c.from.Columns[i]], &c.to.Table.Columns[c.to.Columns[j]]
	if !schema.Widens(from.Type, to.Type) {
		return errNeedsCopy
	}
	name := quoteIdent(c.to.SinkNames[j])
	if from.Generated != "" && to.Generated == "" {
		c.alter("ALTER COLUMN %s DROP EXPRESSION", name)
	}
	if c.from.SinkTypes[i] == c.to.SinkTypes[j] {
		return nil
	}
	if c.bytes > rewriteBytes && from.Type.Kind != to.Type.Kind {
		return errNeedsCopy
	}
	using := ""
	if to.Generated == "" {
		using = " USING " + name + "::" + c.to.SinkTypes[j]
		// Between types of text alone the server sees that no row changes, unless there is another cast on the way.
		texts := isPlainText(c.from.SinkTypes[i]) && isPlainText(c.to.SinkTypes[j])
		if (from.Type.Kind == schema.Text || from.Type.Kind == schema.Enum) && !texts {
			using = " USING " + name + "::text::" + c.to.SinkTypes[j]
		}
	}
	c.alter("ALTER COLUMN %s TYPE %s%s", name, c.to.SinkTypes[j], using)
	return nil
}

func isPlainText(declared string) bool {
	return declared == "text" || declared == "character varying" || strings.HasPrefix(declared, "character varying(") && strings.HasSuffix(declared, ")")
}

// add adds a column. What rows that are there hold in it the server keeps in the catalog alone, as the source did.
func (c *change) add(ctx context.Context, x *tx, j int, missing *connector.Rows) error {
	column := &c.to.Table.Columns[c.to.Columns[j]]
	name, typ := c.to.SinkNames[j], c.to.SinkTypes[j]
	if err := c.makeRoom(name); err != nil {
		return err
	}
	c.stored[name] = storedColumn{}
	if column.Generated != "" {
		c.alter("ADD COLUMN %s %s GENERATED ALWAYS AS (%s) STORED", quoteIdent(name), typ, column.Generated)
		return nil
	}
	value, err := missingLiteral(ctx, x, c.to, j, missing)
	if err != nil {
		return err
	}
	if value == "" {
		c.alter("ADD COLUMN %s %s", quoteIdent(name), typ)
		return nil
	}
	c.alter("ADD COLUMN %s %s DEFAULT %s::%[2]s", quoteIdent(name), typ, value)
	c.alter("ALTER COLUMN %s DROP DEFAULT", quoteIdent(name))
	return nil
}

// missingLiteral returns what stored rows hold in a new column as a constant, "" if that is NULL.
func missingLiteral(ctx context.Context, x *tx, t *connector.Target, j int, missing *connector.Rows) (string, error) {
	if missing == nil {
		return "", nil
	}
	source := t.Columns[j]
	values := missing.Values.Column(source)
	if values.IsNull(0) {
		return "", nil
	}
	types, err := readTypes(ctx, x.query, []string{t.SinkTypes[j]})
	if err != nil {
		return "", err
	}
	write, err := bindText(t.Table.Columns[source].Type, types[t.SinkTypes[j]], values)
	if err != nil {
		return "", err
	}
	text, err := write(nil, 0)
	return quoteLiteral(string(text)), err
}
