package sqlite

import (
	"testing"

	"github.com/sluicehq/sluice/connector/connectortest"
)

func TestPlanTellsUniqueIndexesBeyondTheKey(t *testing.T) {
	s := newSinkTest(t)
	if s.plan(itemsTable()).UniqueBeyondKey {
		t.Error("a table that does not exist has a unique index")
	}
	s.copy(itemsTable(), connectortest.Row{"1", "a", "b"})
	for _, c := range []struct {
		make   string
		beyond bool
	}{
		{"CREATE INDEX i ON items (name)", false},
		{"CREATE UNIQUE INDEX i ON items (name, id)", false},
		{"CREATE UNIQUE INDEX i ON items (name)", true},
		{"CREATE UNIQUE INDEX i ON items (lower(name))", true},
		{"CREATE UNIQUE INDEX i ON items (name) WHERE big = 'x'", true},
	} {
		s.exec(c.make)
		if got := s.plan(itemsTable()).UniqueBeyondKey; got != c.beyond {
			t.Errorf("%s: unique beyond the key: %t", c.make, got)
		}
		s.exec("DROP INDEX i")
	}
}
