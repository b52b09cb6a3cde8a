package postgres

import (
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
)

func TestPlanTellsUniqueConstraintsBeyondTheKey(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	if plan(t, s, connector.Target{Table: plain("t")}).UniqueBeyondKey {
		t.Error("a table that does not exist has a unique constraint")
	}
	stored(t, s, connector.Target{Table: plain("t")}, inserts("1|a|A")...)
	for _, c := range []struct {
		make   string
		beyond bool
	}{
		{"CREATE INDEX i ON t (a)", false},
		{"CREATE UNIQUE INDEX i ON t (a, id)", false},
		{"CREATE UNIQUE INDEX i ON t (a) INCLUDE (id)", true},
		{"CREATE UNIQUE INDEX i ON t (lower(a))", true},
		{"CREATE UNIQUE INDEX i ON t (a) WHERE b = 'x'", true},
		{"ALTER TABLE t ADD CONSTRAINT i UNIQUE (a) DEFERRABLE", true},
		{"ALTER TABLE t ADD CONSTRAINT i EXCLUDE USING btree (a WITH =)", true},
	} {
		testdb.Exec(t, url, c.make)
		if got := plan(t, s, connector.Target{Table: plain("t")}).UniqueBeyondKey; got != c.beyond {
			t.Errorf("%s: unique beyond the key: %t", c.make, got)
		}
		testdb.Exec(t, url, "ALTER TABLE t DROP CONSTRAINT IF EXISTS i; DROP INDEX IF EXISTS i")
	}
}
