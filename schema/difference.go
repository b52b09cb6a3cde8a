package schema

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Difference is what leads from one version of a table to another one.
type Difference struct {
	Renamed        bool           // the table has another name
	Added, Dropped []int          // indexes into the columns of the new and of the old version
	Changed        []ColumnChange // of the columns that both have, in the new version's order
	Key            bool           // the key consists of other columns, or of the same ones in another order

	from, to *Table
}

// ColumnChange is how a column differs between two versions. From and To are its indexes there.
type ColumnChange struct {
	From, To  int
	Renamed   bool
	Retyped   bool // beyond new labels of an enum
	Labels    bool // an enum has new labels, and the old ones in their order
	Generated bool // it is generated now, or not any more, or in another way
}

// Compare returns what leads from one version of a table to another one. A column is the same if its number is; by its
// name, where the source has no numbers. What rows do not depend on is left out: whether a column may be NULL, its default,
// where the table is stored. Columns that nobody wants are left out too.
func Compare(from, to *Table) Difference {
	d := Difference{Renamed: from.Name != to.Name, from: from, to: to}
	kept := make([]bool, len(from.Columns))
	for i := range from.Columns {
		kept[i] = from.Columns[i].Unread
	}
	for i := range to.Columns {
		if to.Columns[i].Unread {
			continue
		}
		f := from.Same(&to.Columns[i])
		if f < 0 {
			d.Added = append(d.Added, i)
			continue
		}
		kept[f] = true
		if c := compareColumns(&from.Columns[f], &to.Columns[i]); c != (ColumnChange{}) {
			c.From, c.To = f, i
			d.Changed = append(d.Changed, c)
		}
	}
	for i := range from.Columns {
		if !kept[i] {
			d.Dropped = append(d.Dropped, i)
		}
	}
	d.Key = !slices.EqualFunc(from.Key, to.Key, func(a, b int) bool { return from.Same(&to.Columns[b]) == a })
	return d
}

func compareColumns(from, to *Column) ColumnChange {
	same := reflect.DeepEqual(from.Type, to.Type)
	labels := !same && reflect.DeepEqual(withoutLabels(from.Type), withoutLabels(to.Type)) && hasLabels(&to.Type, &from.Type)
	return ColumnChange{
		Renamed: from.Name != to.Name, Retyped: !same && !labels, Labels: labels, Generated: from.Generated != to.Generated,
	}
}

// Same returns the index of the column that c, of another version of the table, is in t; -1 if it is not there.
func (t *Table) Same(c *Column) int {
	return slices.IndexFunc(t.Columns, func(o Column) bool {
		if c.Number != 0 {
			return o.Number == c.Number
		}
		return o.Name == c.Name
	})
}

// withoutLabels returns t with no labels anywhere in it.
func withoutLabels(t Type) Type {
	t.Labels = nil
	if t.Elem != nil {
		elem := withoutLabels(*t.Elem)
		t.Elem = &elem
	}
	t.Fields = slices.Clone(t.Fields)
	for i := range t.Fields {
		t.Fields[i].Type = withoutLabels(t.Fields[i].Type)
	}
	return t
}

// hasLabels reports whether t has the labels of old, in their order, wherever old has some. The two differ in nothing else.
func hasLabels(t, old *Type) bool {
	rest := t.Labels
	for _, l := range old.Labels {
		i := slices.Index(rest, l)
		if i < 0 {
			return false
		}
		rest = rest[i+1:]
	}
	for i := range t.Fields {
		if !hasLabels(&t.Fields[i].Type, &old.Fields[i].Type) {
			return false
		}
	}
	return t.Elem == nil || hasLabels(t.Elem, old.Elem)
}

// Widens reports whether a stored value of type from is, without a look at it, the same value of type to.
func Widens(from, to Type) bool {
	switch {
	case from.Kind == Array && to.Kind == Array:
		return Widens(*from.Elem, *to.Elem)
	case from.Fields != nil || to.Fields != nil:
		return reflect.DeepEqual(withoutLabels(from), withoutLabels(to)) && hasLabels(&to, &from)
	case from.Kind == Enum && to.Kind == Enum:
		return from.Native == to.Native && hasLabels(&to, &from)
	case from.Kind == Decimal && to.Kind == Decimal:
		return from.Scale == to.Scale && from.Precision <= to.Precision
	case from.Kind == to.Kind:
		return true
	}
	for _, widening := range [][]Kind{{Int8, Int16, Int32, Int64}, {Float32, Float64}} {
		if f := slices.Index(widening, from.Kind); f >= 0 && slices.Index(widening, to.Kind) > f {
			return true
		}
	}
	return false
}

// Empty reports whether rows of both versions are stored alike.
func (d *Difference) Empty() bool {
	return !d.Renamed && d.Added == nil && d.Dropped == nil && d.Changed == nil && !d.Key
}

// String says in words what differs: column "note" text is new; column "a" is called "b" now.
func (d *Difference) String() string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if d.Renamed {
		say("the table is called %s now", d.to.Name)
	}
	for _, i := range d.Dropped {
		say("column %q is gone", d.from.Columns[i].Name)
	}
	for _, i := range d.Added {
		say("column %q %s is new", d.to.Columns[i].Name, d.to.Columns[i].Type.Native)
	}
	for _, c := range d.Changed {
		from, to := &d.from.Columns[c.From], &d.to.Columns[c.To]
		if c.Renamed {
			say("column %q is called %q now", from.Name, to.Name)
		}
		switch {
		case c.Retyped && from.Type.Native == to.Type.Native:
			say("the type %s of column %q has changed", to.Type.Native, to.Name)
		case c.Retyped:
			say("the type of column %q is %s now, not %s", to.Name, to.Type.Native, from.Type.Native)
		case c.Labels:
			say("the type of column %q has new labels", to.Name)
		}
		if c.Generated {
			say("column %q is generated in another way", to.Name)
		}
	}
	if d.Key {
		say("the key is (%s) now, not (%s)", strings.Join(d.to.KeyNames(), ", "), strings.Join(d.from.KeyNames(), ", "))
	}
	return strings.Join(parts, "; ")
}

// Describe writes everything by which one version of a table differs from another at the source: all but the version's
// number, the estimates, and what the engine has marked. [ParseTable] reads it.
func (t *Table) Describe() string {
	c := *t
	c.Version, c.Rows, c.RowBytes = 0, -1, -1
	c.Columns = slices.Clone(t.Columns)
	for i := range c.Columns {
		c.Columns[i].Unread = false
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic("schema: a table cannot be written: " + err.Error()) // it holds text and numbers only
	}
	return string(text)
}

// ParseTable reads what [Table.Describe] writes.
func ParseTable(text string) (*Table, error) {
	t := new(Table)
	if err := json.Unmarshal([]byte(text), t); err != nil {
		return nil, fmt.Errorf("read a table's version: %w", err)
	}
	return t, nil
}
