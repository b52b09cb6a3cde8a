package mirror

import (
	"context"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// TestPlanAndRunNameTheSameLoser gives two tables one destination. The one that is stored there keeps it, although the other
// one's name comes first.
func TestPlanAndRunNameTheSameLoser(t *testing.T) {
	w := newWorld(t)
	first := w.table("public", "b")
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) {
			return Settings{Destination: schema.Name{Schema: "public", Table: "one"}}, true
		}
	}
	w.once()
	second := w.table("public", "a")
	sink := connectortest.NewMemorySink(w.sink, nil)
	sink.Mirror = "shop"
	plan, err := MakePlan(t.Context(), connectortest.NewMemorySource(w.db, nil), sink, w.options(true).Selector)
	if err != nil {
		t.Fatal(err)
	}
	refused := map[schema.Name]bool{}
	for _, p := range plan.Tables {
		refused[p.Table] = p.Refused != ""
	}
	ran := map[schema.Name]bool{}
	for _, s := range w.once().Tables {
		ran[s.Table] = s.Phase == "refused"
	}
	for _, n := range []schema.Name{first, second} {
		if want := n == second; refused[n] != want || ran[n] != want {
			t.Errorf("%s is refused by plan: %t, by the run: %t, want %t", n, refused[n], ran[n], want)
		}
	}
}

// located is a source or a sink of a database with a name.
type (
	locatedSource struct{ *connectortest.MemorySource }
	locatedSink   struct{ *connectortest.MemorySink }
)

func (locatedSource) Identity(context.Context) (string, error) { return "one", nil }
func (locatedSink) Identity(context.Context) (string, error)   { return "one", nil }

func TestTableIsNotMirroredIntoItself(t *testing.T) {
	w := newWorld(t)
	name, other := w.table("public", "items"), w.table("public", "others")
	var source connector.Source = locatedSource{connectortest.NewMemorySource(w.db, nil)}
	sel := Selector{Select: func(table *schema.Table) (Settings, bool) {
		to := table.Name
		if to == other {
			to.Table = "copy_of_others"
		}
		return Settings{Destination: to}, true
	}}
	for same, sink := range map[bool]connector.Sink{
		true: locatedSink{connectortest.NewMemorySink(w.sink, nil)}, false: connectortest.NewMemorySink(w.sink, nil),
	} {
		plan, err := MakePlan(t.Context(), source, sink, sel)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range plan.Tables {
			if want := same && p.Table == name; (p.Refused != "") != want {
				t.Errorf("one database: %t; table %s is refused with %q", same, p.Table, p.Refused)
			}
		}
	}
}

func TestChangeOfDeletesOrOfMergingIsAChangeOfSettings(t *testing.T) {
	name := schema.Name{Schema: "public", Table: "items"}
	texts := map[string]bool{}
	for _, target := range []connector.Target{
		{Name: name}, {Name: name, SoftDelete: true}, {Name: name, Existing: connector.MergeExisting},
	} {
		texts[settingsOf(&target, Settings{})] = true
	}
	if len(texts) != 3 {
		t.Errorf("settings are named %v", texts)
	}
	if was := settingsOf(&connector.Target{Name: name}, Settings{}); was != `destination public.items, mode current, key []` {
		t.Errorf("a table without settings is named %q: every table of an older version would be paused", was)
	}
}
