package mirror

import (
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// rewriteEntry changes what the sink says of a table.
func (w *world) rewriteEntry(name schema.Name, change func(*apply.Checkpoint)) {
	w.t.Helper()
	sink := connectortest.NewMemorySink(w.sink, nil)
	claim, err := sink.Claim(w.t.Context(), "shop", "")
	if err != nil {
		w.t.Fatal(err)
	}
	entries := map[string]string{}
	for key, text := range claim.Entries {
		if at, err := apply.ParseCheckpoint(text); err == nil && at.Table == name.String() {
			change(at)
			entries[key] = at.String()
		}
	}
	tx, err := sink.Begin(w.t.Context())
	if err == nil {
		err = tx.Commit(w.t.Context(), entries)
	}
	if err != nil || len(entries) != 1 {
		w.t.Fatal(err, entries)
	}
}

func TestCheckpointOfAnotherServerCopiesItsTableAlone(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	w.insert(a, 2)
	w.insert(b, 2)
	w.once()
	w.rewriteEntry(a, func(c *apply.Checkpoint) { c.Position = "another server/5" })
	lost, err := state.Open(t.Context(), t.TempDir()+"/state.db")
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	w.store = lost
	w.insert(a, 3)
	s := w.once()
	if s.Tables[0].RowsCopied != 3 || s.Tables[1].RowsCopied != 0 {
		t.Errorf("copied: %+v", s.Tables)
	}
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func TestCopyThatSawAnotherHistoryIsMadeAgainAlone(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	w.rewriteEntry(a, func(c *apply.Checkpoint) { c.Until = "another server/5" })
	s := w.once()
	if s.Tables[0].RowsCopied != 1 || s.Tables[1].RowsCopied != 0 {
		t.Errorf("copied: %+v", s.Tables)
	}
}

func TestIdleTableWhoseTransactionIsNotInTheLogIsNoticed(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.once()
	w.insert(b, 1)
	lost := w.db.Changes(b)[0] // where a's last transaction was, in the history that the sink has seen
	w.rewriteEntry(a, func(c *apply.Checkpoint) { c.Position, c.Tag, c.Count = lost.Position, 999, 1 })
	acked := w.db.Acked()
	s := w.once()
	if s.Tables[0].Phase != string(Paused) || !strings.Contains(s.Tables[0].Reason, "another history") {
		t.Errorf("summary: %+v", s.Tables[0])
	}
	if err := w.equal(b); err != nil || w.db.Acked() != acked {
		t.Errorf("b: %v; acknowledged %s, was %s", err, w.db.Acked(), acked)
	}
	w.change = func(o *Options) { o.ResyncOnGap = true }
	s = w.once()
	if err := w.equal(a); err != nil || s.Tables[1].RowsCopied != 0 {
		t.Errorf("%v; %+v", err, s.Tables)
	}
}
