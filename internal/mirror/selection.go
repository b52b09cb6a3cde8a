package mirror

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/internal/nearest"
	"github.com/sluicehq/sluice/schema"
)

// Settings is how one table is mirrored.
type Settings struct {
	Destination    schema.Name // Schema and Table empty: the sink's default
	History        bool
	SoftDelete     bool // not of a history
	Existing       connector.Existing
	Quarantine     bool // a row that the sink refuses goes into quarantine; else the table pauses. Not of a history
	SchemaChanges  SchemaPolicy
	DropColumns    bool              // a column that the source dropped goes in the sink too
	Key            []string          // columns that identify a row; nil: the source's key
	Columns        []string          // those that are mirrored; nil: all
	ExcludeColumns []string          // those that are not
	Filter         string            // which rows are, see package filter; "": all
	Where          map[string]string // by key of the config file: its place there, for messages
}

// at begins a message about a setting: where it stands and what it is called.
func (s *Settings) at(key string) string {
	if where := s.Where[key]; where != "" {
		return where + ": " + key + ": "
	}
	return key + ": "
}

// selection is what is mirrored of one version of a table.
type selection struct {
	table   *schema.Table  // with the key chosen, and what is not needed marked Unread
	columns []int          // that the sink stores, indexes into table.Columns; nil: all
	keep    *filter.Filter // which rows are mirrored; nil: all
}

// choose applies a table's settings to a version of it. Where they do not fit, why says so and what to do.
func choose(t *schema.Table, s Settings) (sel selection, why string) {
	key, why := chooseKey(t, s)
	if why != "" {
		return sel, why
	}
	columns, why := chooseColumns(t, s, key)
	if why != "" {
		return sel, why
	}
	sel.columns = columns
	var judged []int
	if s.Filter != "" && s.SoftDelete {
		return sel, s.at("filter") + "not available yet together with `deletes: soft`; set `deletes: hard` for the table"
	}
	if s.Filter != "" {
		var err error
		if sel.keep, err = filter.Compile(s.Filter, t); err != nil {
			return sel, s.at("filter") + err.Error()
		}
		judged = sel.keep.Columns()
	}
	chosen := *t
	chosen.Key = key
	if columns != nil {
		chosen.Columns = slices.Clone(t.Columns)
		for c := range chosen.Columns {
			chosen.Columns[c].Unread = !slices.Contains(columns, c) && !slices.Contains(judged, c)
		}
	}
	sel.table = &chosen
	return sel, ""
}

// chooseKey returns the columns of the key. A key that a user chose must be one at the source: the server keeps it unique,
// and sends it with each update and delete.
func chooseKey(t *schema.Table, s Settings) (key []int, why string) {
	if s.Key == nil {
		return t.Key, ""
	}
	for _, name := range s.Key {
		c, why := findColumn(t, name)
		if why == "" && slices.Contains(key, c) {
			why = fmt.Sprintf("column %s stands there twice", name)
		}
		if why != "" {
			return nil, s.at("key") + why
		}
		key = append(key, c)
	}
	sorted := slices.Sorted(slices.Values(key))
	var possible []string
	for _, u := range t.Unique {
		if slices.Equal(slices.Sorted(slices.Values(u.Columns)), sorted) {
			if u.Unfit != "" {
				return nil, s.at("key") + u.Unfit
			}
			return key, ""
		}
		possible = append(possible, "["+strings.Join(columnNames(t, u.Columns), ", ")+"]")
	}
	why = "the source has no unique index over just these columns, all of them NOT NULL; make one"
	if possible != nil {
		why += ", or take " + strings.Join(possible, " or ")
	}
	return nil, s.at("key") + why
}

// chooseColumns returns the columns that are stored, nil if all are.
func chooseColumns(t *schema.Table, s Settings, key []int) (stored []int, why string) {
	if s.Columns == nil && s.ExcludeColumns == nil {
		return nil, ""
	}
	included, why := findColumns(t, s, "columns", s.Columns)
	if why != "" {
		return nil, why
	}
	excluded, why := findColumns(t, s, "exclude_columns", s.ExcludeColumns)
	if why != "" {
		return nil, why
	}
	stored = []int{}
	for c := range t.Columns {
		if (s.Columns == nil || included[c]) && !excluded[c] {
			stored = append(stored, c)
		}
	}
	for _, c := range key {
		name := t.Columns[c].Name
		switch {
		case excluded[c]:
			return nil, fmt.Sprintf("%scolumn %s is of the key, without which no change finds its row; leave it in", s.at("exclude_columns"), name)
		case !slices.Contains(stored, c):
			return nil, fmt.Sprintf("%scolumn %s of the key is missing, without which no change finds its row; add it", s.at("columns"), name)
		}
	}
	if len(stored) == 0 {
		return nil, s.at("exclude_columns") + "no column is left; leave one in"
	}
	return stored, ""
}

func findColumns(t *schema.Table, s Settings, setting string, names []string) (map[int]bool, string) {
	found := map[int]bool{}
	for _, name := range names {
		c, why := findColumn(t, name)
		if why != "" {
			return nil, s.at(setting) + why
		}
		found[c] = true
	}
	return found, ""
}

// findColumn finds a column by the name that the source has for it.
func findColumn(t *schema.Table, name string) (int, string) {
	c := t.Column(name)
	if c < 0 {
		return c, fmt.Sprintf("the table has no column %s%s", name, nearest.Hint(name, columnNames(t, nil)))
	}
	return c, ""
}

// columnNames returns the names of columns, of all if which is nil.
func columnNames(t *schema.Table, which []int) []string {
	var names []string
	for c := range t.Columns {
		if which == nil {
			names = append(names, t.Columns[c].Name)
		}
	}
	for _, c := range which {
		names = append(names, t.Columns[c].Name)
	}
	return names
}
