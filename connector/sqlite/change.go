package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const changeOp = "change the table"

// errNeedsCopy says that statements cannot bring the destination to the new version.
var errNeedsCopy = errors.New("the table needs a new copy")

// Change alters the destination; see connector.Sink. Statements and entries are one transaction. SQLite declares a column's
// type once and for all, but many types at the source share one.
func (s *Sink) Change(ctx context.Context, t *connector.Target, a connector.Alteration) (*connector.Target, error) {
	next := planChange(t, a.Want)
	if next == nil {
		return nil, nil
	}
	x, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer x.Rollback()
	needsCopy, done := false, false
	err = x.do(ctx, changeOp, t.Name, func(w *writer) error {
		if done = w.keeps(a.Entries); done {
			return nil // an earlier call has done it
		}
		err := w.change(t, next, &a)
		if needsCopy = errors.Is(err, errNeedsCopy); needsCopy {
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case needsCopy:
		return nil, nil
	case done:
		return next, nil
	}
	if err := x.Commit(ctx, a.Entries); err != nil {
		return nil, err
	}
	return next, nil
}

// planChange returns the target of the new version, nil if that is stored in another place or under another key.
func planChange(t *connector.Target, want connector.Target) *connector.Target {
	next := want
	next.Name, next.Existing, next.Copy = destinationOf(want.Name), t.Existing, t.Copy
	next.UniqueBeyondKey, next.Notes = t.UniqueBeyondKey, t.Notes
	next.Columns = storedColumns(&want)
	if next.Name != t.Name || next.History != t.History || next.SoftDelete != t.SoftDelete || checkTarget(&next) != nil {
		return nil
	}
	nameColumns(&next)
	sameKey := slices.EqualFunc(keyNames(t), keyNames(&next), func(a, b string) bool {
		return t.Table.Column(a) == t.Table.Same(&next.Table.Columns[next.Table.Column(b)])
	})
	if !sameKey {
		return nil
	}
	return &next
}

// keeps reports whether the entries are stored as they are to be.
func (w *writer) keeps(entries map[string]string) bool {
	for k, v := range entries {
		if w.entries[k] != v {
			return false
		}
	}
	return len(entries) > 0
}

// change alters the destination: what goes makes room first, then columns are renamed, and new ones come last.
func (w *writer) change(t, next *connector.Target, a *connector.Alteration) error {
	owned, ready, err := w.owner(t)
	if err != nil {
		return err
	}
	there, err := w.isTable(t.Name.Table)
	if err != nil {
		return err
	}
	if !owned || ready != t.Copy || !there {
		return errNeedsCopy
	}
	c := change{w: w, table: quoteIdent(t.Name.Table), foreign: t.Existing != connector.RefuseExisting, stored: map[string]string{}}
	columns, err := w.columnsOf(t.Name.Table)
	if err != nil {
		return err
	}
	for _, column := range columns {
		c.stored[foldName(column.name)] = column.name
	}
	var renamed [][2]string
	var added []int
	kept := map[int]bool{}
	for j, n := range next.Columns {
		i := slices.Index(t.Columns, t.Table.Same(&next.Table.Columns[n]))
		if i < 0 {
			added = append(added, j)
			continue
		}
		kept[i] = true
		if t.SinkTypes[i] != next.SinkTypes[j] || !schema.Widens(t.Table.Columns[t.Columns[i]].Type, next.Table.Columns[n].Type) {
			return errNeedsCopy
		}
		if t.SinkNames[i] != next.SinkNames[j] {
			renamed = append(renamed, [2]string{t.SinkNames[i], next.SinkNames[j]})
		}
	}
	for i := range t.Columns {
		if kept[i] || !a.DropColumns || t.History {
			continue
		}
		if err := c.exec("DROP COLUMN " + quoteIdent(t.SinkNames[i])); err != nil {
			return err
		}
		delete(c.stored, foldName(t.SinkNames[i]))
	}
	if err := c.rename(renamed); err != nil {
		return err
	}
	for _, j := range added {
		if old := t.Table.Same(&next.Table.Columns[next.Columns[j]]); old >= 0 {
			return errNeedsCopy // it was generated, and its values are not known here
		}
		if err := c.add(next, j, a.Missing); err != nil {
			return err
		}
	}
	return nil
}

// change alters one table.
type change struct {
	w       *writer
	table   string            // quoted
	foreign bool              // somebody else has made it
	stored  map[string]string // its columns, by folded name
}

// exec runs an ALTER TABLE. What hangs on the column (an index, a view, a trigger) may be in the way.
func (c *change) exec(action string) error {
	err := c.w.exec("ALTER TABLE " + c.table + " " + action)
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultError {
		return errNeedsCopy
	}
	return err
}

// rename gives columns their new names, by way of others where two exchange theirs.
func (c *change) rename(names [][2]string) error {
	exchanged := slices.ContainsFunc(names, func(n [2]string) bool {
		return slices.ContainsFunc(names, func(o [2]string) bool { return foldName(o[0]) == foldName(n[1]) })
	})
	if exchanged {
		for i := range names {
			on := fmt.Sprintf("%srename_%d", ourColumns, i)
			if err := c.renameOne(names[i][0], on); err != nil {
				return err
			}
			names[i][0] = on
		}
	}
	for _, n := range names {
		if err := c.makeRoom(n[1]); err != nil {
			return err
		}
		if err := c.renameOne(n[0], n[1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) renameOne(from, to string) error {
	delete(c.stored, foldName(from))
	c.stored[foldName(to)] = to
	return c.exec("RENAME COLUMN " + quoteIdent(from) + " TO " + quoteIdent(to))
}

// makeRoom renames a column that was kept and now has the name of another one. In somebody else's table the column may be
// theirs, and is left to Plan.
func (c *change) makeRoom(name string) error {
	taken := c.stored[foldName(name)]
	if taken == "" {
		return nil
	}
	if c.foreign {
		return errNeedsCopy
	}
	for n := 1; ; n++ {
		kept := fmt.Sprintf("%s__dropped_%d", taken, n)
		if c.stored[foldName(kept)] == "" {
			return c.renameOne(taken, kept)
		}
	}
}

// add adds a column. What rows that are there hold in it SQLite keeps in the declaration, as a default; rows that are written
// name all columns, so it serves no others.
func (c *change) add(t *connector.Target, j int, missing *connector.Rows) error {
	name := t.SinkNames[j]
	if err := c.makeRoom(name); err != nil {
		return err
	}
	c.stored[foldName(name)] = name
	value, err := c.literal(t, t.Columns[j], missing)
	if err != nil {
		return err
	}
	if value != "" {
		value = " DEFAULT " + value
	}
	return c.exec("ADD COLUMN " + quoteIdent(name) + " " + t.SinkTypes[j] + value)
}

// literal returns what stored rows hold in a source's new column as a constant, "" if that is NULL.
func (c *change) literal(t *connector.Target, source int, missing *connector.Rows) (string, error) {
	if missing == nil || missing.Values.Column(source).IsNull(0) {
		return "", nil
	}
	column := &t.Table.Columns[source]
	bind, err := bindColumn(column.Type, missing.Values.Column(source))
	if err != nil {
		return "", err
	}
	s, err := c.w.prepare("SELECT quote(?)")
	if err != nil {
		return "", err
	}
	if err := bind(s, 1, 0); err != nil {
		return "", &connector.Error{Kind: connector.TableFault, System: sinkSystem, Op: changeOp, Table: t.Name, Column: column.Name, Err: err}
	}
	if _, err := s.Step(); err != nil {
		return "", err
	}
	literal := s.ColumnText(0)
	return literal, s.Reset()
}
