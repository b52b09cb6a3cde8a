package connectortest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var items = schema.Name{Schema: "public", Table: "items"}

// newItems returns a database with a table of a key, a text and a toasted text.
func newItems(t *testing.T) (*Database, *schema.Table) {
	t.Helper()
	db := NewDatabase()
	table := db.CreateTable(TableSpec{
		Name: items, Columns: []schema.Column{Int64("id"), Text("name"), Text("big")}, Key: []string{"id"}, Toasted: []string{"big"},
	})
	return db, table
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// nextRows returns what the stream delivers up to the log's end, as text.
func nextRows(t *testing.T, src connector.Source, st connector.Stream) []string {
	t.Helper()
	head, err := src.Head(t.Context(), memoryLog)
	must(t, err)
	var got []string
	for {
		e, err := st.Next(t.Context())
		must(t, err)
		switch e := e.(type) {
		case *connector.Frames:
			d, err := src.Decoder(e.Table)
			must(t, err)
			rows, err := d.Decode(e)
			must(t, err)
			for i := range rows.Len() {
				got = append(got, fmt.Sprint(rows.Op(i), RowAt(rows, i)))
			}
			rows.Release()
		case *connector.Progress:
			order, err := src.Compare(e.UpTo[""], head[""])
			must(t, err)
			if order >= 0 {
				return got
			}
		}
	}
}

func openStream(t *testing.T, src connector.Source, from connector.Positions, tables ...*schema.Table) connector.Stream {
	t.Helper()
	st, err := src.Stream(t.Context(), memoryLog, from)
	must(t, err)
	for _, table := range tables {
		_, err := st.Add(t.Context(), table)
		must(t, err)
	}
	return st
}

// readAll returns the rows of a snapshot.
func readAll(t *testing.T, snap connector.Snapshot) []string {
	t.Helper()
	chunks, err := snap.Chunks(t.Context(), 2)
	must(t, err)
	var got []string
	for _, c := range chunks {
		r, err := snap.Read(t.Context(), c)
		must(t, err)
		for {
			rows, err := r.Next(t.Context())
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			for i := range rows.Len() {
				got = append(got, fmt.Sprint(RowAt(rows, i)))
			}
			rows.Release()
		}
	}
	return got
}

func TestMemorySourceStreamsACommitBeforeSnapshotsSeeIt(t *testing.T) {
	db, table := newItems(t)
	src := NewMemorySource(db, nil)
	st := openStream(t, src, nil, table)
	tx := db.Begin()
	must(t, tx.Insert(items, Row{"1", "a", "b"}))
	tx.Log()
	if got := nextRows(t, src, st); len(got) != 1 {
		t.Fatalf("the stream delivers %v, want the logged row", got)
	}
	snap, err := src.Snapshot(t.Context(), table)
	must(t, err)
	if got := readAll(t, snap); len(got) != 0 {
		t.Fatalf("the snapshot holds %v, want nothing before Show", got)
	}
	if in, err := src.Contains(snap.Token(), connector.Commit{Tag: tx.ID()}); in || err != nil {
		t.Fatalf("Contains = %v, %v for a transaction that is not visible", in, err)
	}
}

func TestMemorySourceDeliversOnlyWhatWasWrittenAfterAdd(t *testing.T) {
	db, table := newItems(t)
	src := NewMemorySource(db, nil)
	st := openStream(t, src, nil)
	tx := db.Begin()
	must(t, tx.Insert(items, Row{"1", "before", "x"}))
	_, err := st.Add(t.Context(), table)
	must(t, err)
	must(t, tx.Insert(items, Row{"2", "after", "x"}))
	tx.Commit()
	if got := fmt.Sprint(nextRows(t, src, st)); got != "[0 [2 after x]]" {
		t.Fatalf("the stream delivers %v, want row 2 alone", got)
	}
}

func TestMemorySnapshotWaitsForWhoeverHadWrittenAtAdd(t *testing.T) {
	db, table := newItems(t)
	src := NewMemorySource(db, nil)
	st := openStream(t, src, nil)
	early := db.Begin()
	must(t, early.Insert(items, Row{"1", "early", "x"}))
	_, err := st.Add(t.Context(), table)
	must(t, err)
	late := db.Begin()
	must(t, late.Insert(items, Row{"2", "late", "x"}))
	waits := 0
	db.OnWait = func(_ schema.Name, holders []*Txn) {
		waits++
		if len(holders) != 1 || holders[0] != early {
			t.Errorf("the snapshot waits for %d transactions, want the early one", len(holders))
		}
		if !early.Logged() {
			early.Log()
		} else {
			early.Show()
		}
	}
	snap, err := src.Snapshot(t.Context(), table)
	must(t, err)
	if got := fmt.Sprint(readAll(t, snap)); got != "[[1 early x]]" || waits != 2 {
		t.Fatalf("the snapshot holds %v after %d waits, want row 1 after 2", got, waits)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = st.Add(t.Context(), table)
	must(t, err)
	db.OnWait = func(schema.Name, []*Txn) { cancel() }
	if _, err := src.Snapshot(ctx, table); connector.KindOf(err) != connector.Conflict {
		t.Fatalf("at the end of its context Snapshot returns %v, want a conflict", err)
	}
}

func TestMemorySlotKeepsTheAckedPosition(t *testing.T) {
	db, table := newItems(t)
	src := NewMemorySource(db, nil)
	st := openStream(t, src, nil, table)
	start := db.Acked()
	tx := db.Begin()
	must(t, tx.Insert(items, Row{"1", "a", "b"}))
	tx.Commit()
	head, err := src.Head(t.Context(), memoryLog)
	must(t, err)
	must(t, st.Ack(t.Context(), head))
	if _, err := src.Stream(t.Context(), memoryLog, connector.Positions{"": start}); connector.KindOf(err) != connector.Gap {
		t.Fatalf("opening before the acked position: %v, want a gap", err)
	}
	if _, err := src.Stream(t.Context(), memoryLog, head); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Next(t.Context()); connector.KindOf(err) != connector.Unavailable {
		t.Fatalf("the stream that lost the slot returns %v", err)
	}
}

func TestMemoryCommitLosesItsAnswer(t *testing.T) {
	db, table := newItems(t)
	_ = db
	store, faults := NewStore(), new(Faults)
	sink := NewMemorySink(store, faults)
	_, err := sink.Claim(t.Context(), "m", "")
	must(t, err)
	target, err := sink.Plan(t.Context(), connector.Target{Table: table, Name: items})
	must(t, err)
	target.Copy = 1
	must(t, sink.Create(t.Context(), target))
	must(t, sink.Ready(t.Context(), target, nil))

	faults.LoseAnswer(CallCommit, 1, connector.Unavailable)
	write := func() error {
		b := NewRowsBuilder(NewMemorySource(db, nil).Alloc, table)
		must(t, b.Append(connector.Insert, Row{"1", "a", "b"}))
		rows := b.Rows()
		defer rows.Release()
		tx, err := sink.Begin(t.Context())
		must(t, err)
		must(t, tx.Write(t.Context(), target, rows))
		return tx.Commit(t.Context(), map[string]string{"at": "1"})
	}
	if err := write(); connector.KindOf(err) != connector.Unavailable {
		t.Fatalf("Commit returns %v, want a lost answer", err)
	}
	if len(store.Rows(items)) != 1 || store.Entries("m")["at"] != "1" {
		t.Fatal("a Commit whose answer was lost did not happen")
	}
	if err := write(); connector.KindOf(err) != connector.Fenced {
		t.Fatalf("a Commit that did not look first returns %v, want fenced", err)
	}
	faults.CrashAt(faults.Steps() + 1)
	if _, err := sink.Begin(t.Context()); !errors.Is(err, ErrCrash) || !faults.Crashed() {
		t.Fatalf("Begin after the crash: %v", err)
	}
}
