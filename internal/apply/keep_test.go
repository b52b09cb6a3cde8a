package apply

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/filter"
)

// testFilters are filters with what they mean, over the columns id, v and big, of which big may be left unsent.
var testFilters = []struct {
	text  string
	takes func(v, big string) bool
}{
	{`v < "v3"`, func(v, _ string) bool { return v < "v3" }},
	{`big < "b3"`, func(_, big string) bool { return big < "b3" }},
	{`v contains "1" or big endsWith "2"`, func(v, big string) bool { return strings.Contains(v, "1") || strings.HasSuffix(big, "2") }},
	{`not (big contains "1") and v != nil`, func(_, big string) bool { return !strings.Contains(big, "1") }},
	{`big != nil and v > "v5"`, func(v, _ string) bool { return v > "v5" }},
}

func TestFilteredTableHoldsWhatItsFilterTakes(t *testing.T) {
	rereads := int64(0)
	rapid.Check(t, func(t *rapid.T) {
		w := newOverlapWorld(t)
		f := testFilters[w.n("filter", len(testFilters))]
		var err error
		w.keep, err = filter.Compile(f.text, w.table)
		w.must(err)
		w.takes = func(row connectortest.Row) bool { return f.takes(row[1], row[2]) }
		w.write(12)
		w.copy()
		w.start()
		for range 8 {
			w.write(3)
			w.receive()
			rereads += w.applyLane(w.n("busy", 2) == 0)
			w.compare()
		}
		for range 4 {
			w.receive()
			rereads += w.applyLane(false)
		}
		if !w.converged() {
			t.Fatalf("the lane was passed, and the overlap is not: %+v", w.apply.Checkpoint())
		}
		w.compare()
	})
	t.Logf("%d rows read again", rereads)
	if rereads == 0 && !testing.Short() { // which draws few
		t.Error("no row was read again: the test protects nothing")
	}
}
