package mirror

import (
	"testing"

	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

func TestRestoredSinkCopiesWhatChangedSinceAndNothingElse(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	backup := w.sink.Clone()
	w.insert(a, 2)
	w.commit(func(tx *connectortest.Txn) error { return tx.Delete(a, connectortest.Row{"1"}) })
	w.once()
	w.sink = backup
	w.insert(a, 3)
	w.insert(b, 3)
	s := w.once()
	for i, want := range []int64{2, 0} {
		if s.Tables[i].RowsCopied != want {
			t.Errorf("%s: %d rows copied, want %d", s.Tables[i].Table, s.Tables[i].RowsCopied, want)
		}
	}
	for _, n := range []schema.Name{a, b} {
		if err := w.equal(n); err != nil {
			t.Error(err)
		}
	}
}

func TestRestoredSinkDoesNotBringTheRowsOfATableLeftOutBack(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	backup := w.sink.Clone()
	w.change = func(o *Options) {
		o.Select = func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, t.Name == b }
	}
	w.insert(a, 2)
	w.insert(b, 2)
	w.once()
	w.sink, w.change = backup, nil
	w.once()
	for _, n := range []schema.Name{a, b} {
		if err := w.equal(n); err != nil {
			t.Error(err)
		}
	}
}

func TestRestoredSinkAndChangedSettingsStillCopyAgain(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	backup := w.sink.Clone()
	w.insert(a, 2)
	w.once()
	w.sink = backup
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) {
			return Settings{Destination: schema.Name{Schema: "public", Table: "elsewhere"}}, true
		}
	}
	w.once()
	w.change = nil
	w.once()
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}
