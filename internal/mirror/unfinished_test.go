package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/schema"
)

// inChunks has the world's tables copied in chunks of two rows, one after the other.
func (w *world) inChunks(more ...func(*Options)) {
	w.change = func(o *Options) {
		o.Limits.ChunkRows, o.Limits.CopyWorkers = 2, 1
		for _, change := range more {
			change(o)
		}
	}
}

// cutOff runs the mirror until it begins to read the nth chunk, which stays unread.
func (w *world) cutOff(n int) {
	w.t.Helper()
	w.withoutFaults()
	w.faults.Hang(connectortest.CallRead, n)
	stop := w.follow()
	w.eventually(func() error {
		if read := w.faults.Count(connectortest.CallRead); read < n {
			return fmt.Errorf("%d of %d chunks are begun", read, n)
		}
		return nil
	})
	if _, err := stop(); err != nil {
		w.t.Fatal(err)
	}
	w.withoutFaults()
}

// events returns the texts of the events of a kind, the oldest first.
func (w *world) events(kind string) []string {
	w.t.Helper()
	all, err := w.store.Events(w.t.Context(), 1000)
	if err != nil {
		w.t.Fatal(err)
	}
	var texts []string
	for _, e := range all {
		if e.Kind == kind {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

func (w *world) twentyRows(table schema.Name) {
	for id := range 20 {
		w.insert(table, id)
	}
}

// moveAbout changes rows in chunks that are copied already, and in others: rows move across, and unsent values with them.
func (w *world) moveAbout(table schema.Name) {
	w.commit(func(tx *connectortest.Txn) error {
		return errors.Join(
			tx.Update(table, connectortest.Row{"15"}, connectortest.Row{"40", "moved", connectortest.Unsent}),
			tx.Insert(table, connectortest.Row{"15", "another", "of its own"}),
			tx.Update(table, connectortest.Row{"1"}, connectortest.Row{"-1", "moved back", connectortest.Unsent}),
			tx.Update(table, connectortest.Row{"18"}, connectortest.Row{"18", "new", connectortest.Unsent}),
			tx.Delete(table, connectortest.Row{"17"}),
		)
	})
}

func TestCopyThatWasCutOffGoesOnWithTheChunksThatItLacks(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.twentyRows(a)
	w.inChunks()
	w.cutOff(5)
	w.moveAbout(a)
	s := w.once()
	if err := w.equal(a); err != nil {
		t.Fatal(err)
	}
	if n := w.faults.Count(connectortest.CallRead); n != 6 {
		t.Errorf("%d chunks were read, want the 6 that were missing", n)
	}
	if got, want := w.events("copy_resumed"), []string{"6 of 10 chunks are missing"}; !slices.Equal(got, want) {
		t.Errorf("events: %q, want %q", got, want)
	}
	if w.faults.Count(connectortest.CallFind) == 0 {
		t.Error("rows that moved with unsent values were not read from the source")
	}
	r := w.saved(a)
	if s.Tables[0].RowsCopied+8 != r.RowsCopied || r.RowsReread != 2 {
		t.Errorf("the summary counts %d rows, the state %d of the whole copy and %d read again", s.Tables[0].RowsCopied, r.RowsCopied, r.RowsReread)
	}
	w.withoutFaults()
	w.commit(func(tx *connectortest.Txn) error {
		return tx.Update(a, connectortest.Row{"40"}, connectortest.Row{"41", "moved again", connectortest.Unsent})
	})
	w.once()
	if err := w.equal(a); err != nil || w.faults.Count(connectortest.CallFind) != 0 {
		t.Errorf("%v; beyond the overlap rows were read from the source %d times", err, w.faults.Count(connectortest.CallFind))
	}
}

func TestCopyGoesOnAfterALostViewAndALostConnection(t *testing.T) {
	for _, kind := range []connector.Kind{connector.ViewLost, connector.Unavailable} {
		t.Run(kind.String(), func(t *testing.T) {
			w := newWorld(t)
			a := w.table("public", "a")
			w.twentyRows(a)
			w.inChunks()
			w.faults.Refuse(connectortest.CallRead, 5, kind)
			s := w.once()
			if err := w.equal(a); err != nil {
				t.Fatal(err)
			}
			if n, resumed := w.faults.Count(connectortest.CallRead), w.events("copy_resumed"); n != 11 || len(resumed) != 1 {
				t.Errorf("%d chunks were read, events %q", n, resumed)
			}
			if s.Tables[0].RowsCopied != 20 {
				t.Errorf("%d rows copied, want 20", s.Tables[0].RowsCopied)
			}
		})
	}
}

func TestCopyThatMayNotGoOnBeginsAnew(t *testing.T) {
	for name, c := range map[string]struct {
		schema string
		change func(o *Options)
		meet   func(w *world, table schema.Name)
	}{
		"history": {schema: "history"},
		"table emptied": {meet: func(w *world, table schema.Name) {
			w.commit(func(tx *connectortest.Txn) error { return tx.Truncate(table) })
			w.twentyRows(table)
		}},
		"column added": {meet: func(w *world, table schema.Name) {
			if _, err := w.db.AddColumn(table, connectortest.Text("more")); err != nil {
				w.t.Fatal(err)
			}
		}},
		"destination with another unique constraint": {change: func(o *Options) {
			open := o.Sink
			o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
				s, err := open(ctx, id)
				return constrainedSink{s}, err
			}
		}},
		"settings changed": {change: func(o *Options) {
			o.Select = func(t *schema.Table) (Settings, bool) {
				return Settings{Destination: schema.Name{Schema: "public", Table: "elsewhere"}}, true
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			schemaName := "public"
			if c.schema != "" {
				schemaName = c.schema
			}
			a := w.table(schemaName, "a")
			w.twentyRows(a)
			w.inChunks()
			w.cutOff(5)
			if c.meet != nil {
				c.meet(w, a)
			}
			if c.change != nil {
				w.inChunks(c.change)
			}
			s := w.once()
			if s.Tables[0].RowsCopied != 20 || len(w.events("copy_resumed")) > 0 {
				t.Errorf("%d rows copied, events %q", s.Tables[0].RowsCopied, w.events("copy_resumed"))
			}
			switch {
			case name == "settings changed":
			case schemaName == "public":
				if err := w.equal(a); err != nil {
					t.Error(err)
				}
			case len(w.sink.History(a)) != 20:
				t.Errorf("the history has %d rows", len(w.sink.History(a)))
			}
		})
	}
}

// constrainedSink has destinations whose rows exclude each other by more than the key.
type constrainedSink struct{ connector.Sink }

func (s constrainedSink) Plan(ctx context.Context, want connector.Target) (*connector.Target, error) {
	t, err := s.Sink.Plan(ctx, want)
	if t != nil {
		t.UniqueBeyondKey = true
	}
	return t, err
}

func TestNoChunkIsBegunUnderASnapshotThatIsTooOld(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.twentyRows(a)
	w.inChunks(func(o *Options) { o.Limits.ViewAge = time.Nanosecond })
	w.once()
	if err := w.equal(a); err != nil {
		t.Fatal(err)
	}
	if n, read := w.faults.Count(connectortest.CallSnapshot), w.faults.Count(connectortest.CallRead); n != 10 || read != 10 {
		t.Errorf("%d snapshots were taken for %d chunks, want one each for 10", n, read)
	}
}

func TestCopyThatNeedsOneSnapshotPausesWhenThatIsTooOld(t *testing.T) {
	w := newWorld(t)
	b := w.table("history", "b")
	w.twentyRows(b)
	w.inChunks(func(o *Options) { o.Limits.ViewAge = time.Nanosecond })
	s := w.once()
	p := s.Tables[0]
	if p.Phase != string(Paused) || !strings.Contains(p.Reason, "snapshot.max_age after 1 of 10 chunks") || !strings.Contains(p.Remedy, "raise snapshot.max_age") {
		t.Errorf("%+v", p)
	}
	if r := w.saved(b); !r.RetryAt.IsZero() {
		t.Errorf("it is tried again at %v, which comes to the same", r.RetryAt)
	}
	w.inChunks()
	if s = w.once(); !s.InOrder() || len(w.sink.History(b)) != 20 {
		t.Errorf("with time enough: %+v, %d rows", s.Tables[0], len(w.sink.History(b)))
	}
}

func TestCopyThatIsWholeIsNotMadeAgainWhenItCannotBePutInPlace(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.twentyRows(a)
	w.inChunks()
	w.faults.Refuse(connectortest.CallReady, 1, connector.TableFault)
	w.once()
	if err := w.equal(a); err != nil || w.faults.Count(connectortest.CallRead) != 10 {
		t.Errorf("%v; %d chunks were read, want 10", err, w.faults.Count(connectortest.CallRead))
	}
}

func TestCopyWhoseTableIsGoneFromTheSinkBeginsAnewAfterSomeTries(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.twentyRows(a)
	w.inChunks(func(o *Options) { o.Limits.TableFailures = fruitlessMost + 2 })
	w.cutOff(5)
	w.sink.Remove(a)
	w.once()
	if err := w.equal(a); err != nil || len(w.events("copy_resumed")) != fruitlessMost {
		t.Errorf("%v; it went on %d times", err, len(w.events("copy_resumed")))
	}
}

// A table whose changes were given up must not go on with its copy in a later process, which would not know of the gap.
func TestCopyWhoseChangesWereGivenUpBeginsAnew(t *testing.T) {
	w := newWorld(t)
	w.inChunks(func(o *Options) { o.Limits.LaneMemory, o.Limits.SpoolBytes, o.Limits.DurableBytes = 0, 6000, 0 })
	b := w.table("public", "b")
	w.once()
	a := w.table("public", "a")
	w.twentyRows(a)
	w.withoutFaults()
	w.faults.HangFrom(connectortest.CallRead, 5)
	planned := func() bool {
		for key := range w.sink.Entries("shop") {
			if strings.HasPrefix(key, planPrefix) {
				return true
			}
		}
		return false
	}
	stop := w.follow()
	w.eventually(func() error {
		if !planned() || w.faults.Count(connectortest.CallRead) < 5 {
			return errors.New("the copy is not under way")
		}
		return nil
	})
	id := 100
	w.eventually(func() error {
		if !planned() {
			return nil
		}
		w.insert(a, id)
		w.insert(b, id)
		id++
		return errors.New("its changes were not given up")
	})
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	w.withoutFaults()
	w.once()
	if err := errors.Join(w.equal(a), w.equal(b)); err != nil || len(w.events("copy_resumed")) > 0 {
		t.Errorf("%v; it went on: %q", err, w.events("copy_resumed"))
	}
}

func TestPlanOfACopyIsReadBackWholeOrNotAtAll(t *testing.T) {
	var chunks []connector.Chunk
	for id := range 5000 {
		chunks = append(chunks, connector.Chunk{ID: id, Rows: 7, Spec: fmt.Sprintf(`{"after":[%q]}`, strings.Repeat("k", id%90))})
	}
	at := &apply.Checkpoint{Copy: 3, Position: "5"}
	texts := planPieces(&unfinished{at: *at, layout: "l"}, chunks)
	entries := map[string]string{chunkKey("t", 4): "11", chunkKey("t", 4999): "0"}
	for i, text := range texts {
		if c, err := readUnfinished("t", at, entries); c != nil || err != nil {
			t.Fatalf("%d of %d pieces give a plan: %v", i, len(texts), err)
		}
		if len(text) > 2*planBytes {
			t.Errorf("piece %d has %d bytes", i, len(text))
		}
		entries[planKey("t", i)] = text
	}
	c, err := readUnfinished("t", at, entries)
	if err != nil || c == nil || len(texts) < 3 {
		t.Fatalf("%v, %v, %d pieces", c, err, len(texts))
	}
	want := slices.Delete(slices.Clone(chunks[:4999]), 4, 5)
	if c.layout != "l" || c.chunks != 5000 || c.rows != 11 || !slices.Equal(c.missing, want) {
		t.Errorf("layout %q, %d chunks, %d missing, %d rows", c.layout, c.chunks, len(c.missing), c.rows)
	}
	other := *at
	other.Copy = 4
	if c, err := readUnfinished("t", &other, entries); c != nil || err != nil {
		t.Errorf("the plan of another copy is taken: %v", err)
	}
	entries[planKey("t", 0)] = strings.Replace(entries[planKey("t", 0)], `"v":1`, `"v":2`, 1)
	if _, err := readUnfinished("t", at, entries); err == nil || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a plan of a newer format: %v", err)
	}
}
