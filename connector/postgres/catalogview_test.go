package postgres

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

func TestTablesDescribedAnewTogetherAreLookedUpTogetherAndNoChangeOfThemIsMissed(t *testing.T) {
	const tables = 40
	names, create, insert := []string{}, "", ""
	for i := range tables {
		name := fmt.Sprintf("t%02d", i)
		names = append(names, name)
		create += "CREATE TABLE " + name + " (id int PRIMARY KEY, v text);"
		insert += "INSERT INTO " + name + " VALUES (%[1]d, 'v');"
	}
	f := newStreamFixture(t, create)
	st := f.stream(nil)
	f.add(st, names[1:]...)
	lookups := 0
	lookup := st.lookup
	st.lookup = func(ctx context.Context, oid uint32) (*schema.Table, error) {
		lookups++
		return lookup(ctx, oid)
	}
	f.exec(fmt.Sprintf(insert, 1))
	f.upTo(st, f.head())
	lookups = 0
	f.add(st, names[0]) // has the server describe all of them again
	f.exec(fmt.Sprintf(insert, 2))
	events := f.upTo(st, f.head())
	if lookups > looksBeforeView {
		t.Errorf("%d tables were looked up one by one", lookups)
	}
	f.exec("ALTER TABLE t30 DROP v; ALTER TABLE t30 ADD v text; INSERT INTO t30 VALUES (3, 'again')") // described as it was before
	f.exec(fmt.Sprintf(insert, 4))
	events = append(events, f.upTo(st, f.head())...)
	var changed []string
	for _, e := range events {
		if c, ok := e.(*connector.SchemaChange); ok {
			changed = append(changed, c.Table.Name.Table)
		}
	}
	if !slices.Equal(changed, []string{"t30"}) {
		t.Errorf("changed: %v, want t30", changed)
	}
	f.expectRows(events, "t07", "IN(2,v)", "IN(4,v)")
}
