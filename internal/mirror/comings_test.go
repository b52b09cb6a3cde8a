package mirror

import (
	"fmt"
	"testing"

	"github.com/sluicehq/sluice/schema"
)

// awaitPhase waits until the state holds a table of this name in one of these phases.
func (w *world) awaitPhase(name schema.Name, phases ...Phase) {
	w.t.Helper()
	w.eventually(func() error {
		tables, err := w.store.Tables(w.t.Context())
		for _, r := range tables {
			for _, p := range phases {
				if r.Name == name && r.Phase == string(p) {
					return err
				}
			}
		}
		return fmt.Errorf("%s is in none of the phases %v: %+v", name, phases, tables)
	})
}

func TestTableDroppedAndMadeAgainIsCopiedBehindTheOldOne(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	w.awaitPhase(b, Streaming)
	if err := w.db.DropTable(a); err != nil {
		t.Fatal(err)
	}
	w.table("public", "a")
	w.insert(a, 7)
	w.eventually(func() error { return w.equal(a) })
	w.insert(a, 8)
	w.insert(b, 2)
	w.eventually(func() error { return w.equal(a) })
	w.eventually(func() error { return w.equal(b) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestNewTableDoesNotTakeTheDestinationOfAnother(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{Destination: a}, true }
	}
	stop := w.follow()
	w.awaitPhase(a, Streaming)
	b := w.table("public", "b")
	w.insert(b, 2)
	w.awaitPhase(b, Refused)
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}
