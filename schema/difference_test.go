package schema

import (
	"slices"
	"testing"
)

func moods(labels ...string) Type { return Type{Kind: Enum, Native: "shop.mood", Labels: labels} }

func TestDifferenceMatchesColumnsByTheirNumbers(t *testing.T) {
	from := &Table{Name: Name{"public", "t"}, Key: []int{0}, Columns: []Column{
		{Number: 1, Name: "id", Type: Type{Kind: Int32, Native: "integer"}},
		{Number: 2, Name: "a", Type: Type{Kind: Text, Native: "text"}},
		{Number: 3, Name: "b", Type: moods("x", "y")},
		{Number: 4, Name: "secret", Type: Type{Kind: Text, Native: "text"}, Unread: true},
	}}
	for name, c := range map[string]struct {
		edit func(to *Table)
		want string
	}{
		"nothing":         {func(*Table) {}, ""},
		"not null":        {func(to *Table) { to.Columns[1].NotNull = true }, ""},
		"not wanted":      {func(to *Table) { to.Columns[3].Type.Native = "bytea"; to.Columns[3].Name = "s" }, ""},
		"renamed":         {func(to *Table) { to.Columns[1].Name = "c" }, `column "a" is called "c" now`},
		"renamed table":   {func(to *Table) { to.Name.Table = "u" }, "the table is called public.u now"},
		"exchanged names": {func(to *Table) { to.Columns[1].Name, to.Columns[2].Name = "b", "a" }, `column "a" is called "b" now; column "b" is called "a" now`},
		"made again":      {func(to *Table) { to.Columns[1].Number = 5 }, `column "a" is gone; column "a" text is new`},
		"new labels":      {func(to *Table) { to.Columns[2].Type = moods("w", "x", "z", "y") }, `the type of column "b" has new labels`},
		"other labels":    {func(to *Table) { to.Columns[2].Type = moods("y", "x") }, `the type shop.mood of column "b" has changed`},
		"retyped":         {func(to *Table) { to.Columns[0].Type = Type{Kind: Int64, Native: "bigint"} }, `the type of column "id" is bigint now, not integer`},
		"another key":     {func(to *Table) { to.Key = []int{1} }, "the key is (a) now, not (id)"},
		"key that moved": {func(to *Table) {
			to.Columns = append([]Column{{Number: 9, Name: "first", Type: Type{Native: "text"}}}, to.Columns...)
			to.Key = []int{1}
		}, `column "first" text is new`},
	} {
		t.Run(name, func(t *testing.T) {
			to := *from
			to.Columns = slices.Clone(from.Columns)
			c.edit(&to)
			d := Compare(from, &to)
			if got := d.String(); got != c.want || d.Empty() != (c.want == "") {
				t.Errorf("%q, empty %v; want %q", got, d.Empty(), c.want)
			}
		})
	}
}

func TestWideningKeepsEveryValue(t *testing.T) {
	number := func(k Kind) Type { return Type{Kind: k} }
	list := func(elem Type) Type { return Type{Kind: Array, Elem: &elem} }
	for _, c := range []struct {
		from, to Type
		want     bool
	}{
		{number(Int32), number(Int64), true}, {number(Int64), number(Int32), false}, {number(Float32), number(Float64), true},
		{number(Int32), number(Numeric), false}, {number(Timestamp), number(TimestampTZ), false}, {number(Text), number(Text), true},
		{list(number(Int16)), list(number(Int32)), true}, {list(number(Int32)), number(Int32), false},
		{moods("a"), moods("a", "b"), true}, {moods("a", "b"), moods("b"), false},
		{Type{Kind: Decimal, Precision: 5, Scale: 2}, Type{Kind: Decimal, Precision: 9, Scale: 2}, true},
		{Type{Kind: Decimal, Precision: 5, Scale: 2}, Type{Kind: Decimal, Precision: 9, Scale: 3}, false},
		{Type{Kind: Text, Fields: []Field{{"a", number(Int32)}}}, Type{Kind: Text, Fields: []Field{{"b", number(Int32)}}}, false},
	} {
		if got := Widens(c.from, c.to); got != c.want {
			t.Errorf("%+v to %+v: %v", c.from, c.to, got)
		}
	}
}

func TestDescribedTableIsReadBack(t *testing.T) {
	text := ""
	table := &Table{ID: "7", Version: 3, Name: Name{"public", "t"}, Rows: 9, Columns: []Column{{Number: 1, Name: "a", Missing: &text, Unread: true}}}
	read, err := ParseTable(table.Describe())
	if err != nil || read.Describe() != table.Describe() || read.Version != 0 || *read.Columns[0].Missing != "" {
		t.Errorf("%+v, %v", read, err)
	}
	read.Columns[0].Missing = nil
	if read.Describe() == table.Describe() {
		t.Error("no missing value and an empty one are one")
	}
}
