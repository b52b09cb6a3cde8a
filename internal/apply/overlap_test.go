package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/schema"
)

// overlapWorld is a table whose copy is made of chunks of several snapshots, and then applied, while it is written.
type overlapWorld struct {
	*rapid.T
	ctx    context.Context
	db     *connectortest.Database
	source *connectortest.MemorySource
	store  *connectortest.Store
	sink   *connectortest.MemorySink
	stream connector.Stream
	table  *schema.Table
	target *connector.Target
	keep   *filter.Filter               // nil: all rows
	takes  func(connectortest.Row) bool // what keep does
	at     Checkpoint
	apply  *Table
	lane   []*connector.Frames
	read   connector.Positions // everything up to here is in lane
	writes int
}

func newOverlapWorld(t *rapid.T) *overlapWorld {
	w := &overlapWorld{T: t, ctx: context.Background(), db: connectortest.NewDatabase(), store: connectortest.NewStore()}
	w.db.PieceRows, w.db.RunCommits = 1+w.n("piece", 3), 1+w.n("run", 3)
	w.db.CreateTable(connectortest.TableSpec{
		Name: schema.Name{Schema: "public", Table: "t"}, Key: []string{"id"}, Toasted: []string{"big"}, FullIdentity: w.n("full", 4) == 0,
		Columns: []schema.Column{connectortest.Int64("id"), connectortest.Text("v"), connectortest.Text("big")},
	})
	w.source, w.sink = connectortest.NewMemorySource(w.db, nil), connectortest.NewMemorySink(w.store, nil)
	tables, err := w.source.Tables(w.ctx)
	w.must(err)
	w.table = tables[0]
	_, err = w.sink.Claim(w.ctx, "m", "")
	w.must(err)
	w.target, err = w.sink.Plan(w.ctx, connector.Target{Table: w.table, Name: w.table.Name})
	w.must(err)
	w.target.Copy = 1
	w.must(w.sink.Create(w.ctx, w.target))
	w.stream, err = w.source.Stream(w.ctx, w.table.Log, nil)
	w.must(err)
	return w
}

func (w *overlapWorld) n(what string, below int) int {
	return rapid.IntRange(0, below-1).Draw(w.T, what)
}

func (w *overlapWorld) must(err error) {
	if err != nil {
		w.Fatal(err)
	}
}

// write commits some transactions.
func (w *overlapWorld) write(most int) {
	for range w.n("transactions", most+1) {
		tx := w.db.Begin()
		for range 1 + w.n("changes", 3) {
			w.change(tx)
		}
		tx.Commit()
	}
}

// change makes one change; one that the rows stand against is none.
func (w *overlapWorld) change(tx *connectortest.Txn) {
	w.writes++
	id, to := fmt.Sprint(w.n("id", 6)), fmt.Sprint(w.n("to", 6))
	value, big := fmt.Sprintf("v%d", w.writes), fmt.Sprintf("b%d", w.writes)
	name := w.table.Name
	switch w.n("kind", 12) {
	case 0, 1, 2:
		_ = tx.Insert(name, connectortest.Row{id, value, big})
	case 3, 4:
		_ = tx.Delete(name, connectortest.Row{id})
	case 5:
		_ = tx.Update(name, connectortest.Row{id}, connectortest.Row{id, value, big})
	case 6, 7:
		_ = tx.Update(name, connectortest.Row{id}, connectortest.Row{id, value, connectortest.Unsent})
	default:
		_ = tx.Update(name, connectortest.Row{id}, connectortest.Row{to, value, connectortest.Unsent})
	}
}

// copy loads the table in chunks under some snapshots, with writes between them.
func (w *overlapWorld) copy() {
	from, err := w.stream.Add(w.ctx, w.table)
	w.must(err)
	w.at = Checkpoint{Copy: 1, Position: from[""]}
	var missing []connector.Chunk
	for view := 0; view == 0 || len(missing) > 0; view++ {
		snap, err := w.source.Snapshot(w.ctx, w.table)
		w.must(err)
		head, err := w.source.Head(w.ctx, w.table.Log)
		w.must(err)
		if view == 0 {
			w.at.Token, w.at.Until = snap.Token(), head[""]
			missing, err = snap.Chunks(w.ctx, 2)
			w.must(err)
		} else {
			w.at.Overlap = head[""]
		}
		for n := 1 + w.n("chunks", len(missing)); n > 0; n-- {
			i := w.n("chunk", len(missing))
			w.load(snap, missing[i])
			missing = slices.Delete(missing, i, i+1)
			w.write(2)
		}
		w.write(4)
	}
	w.at.Ready = true
	w.must(w.sink.Ready(w.ctx, w.target, map[string]string{Key(w.table.ID): w.at.String()}))
}

func (w *overlapWorld) load(snap connector.Snapshot, c connector.Chunk) {
	r, err := snap.Read(w.ctx, c)
	w.must(err)
	tx, err := w.sink.Begin(w.ctx)
	w.must(err)
	for rows, err := r.Next(w.ctx); err == nil; rows, err = r.Next(w.ctx) {
		kept := rows
		if w.keep != nil {
			kept, err = Keep(w.ctx, memory.DefaultAllocator, w.keep, rows)
			w.must(err)
			rows.Release()
		}
		if kept != nil {
			w.must(tx.Load(w.ctx, w.target, kept))
			kept.Release()
		}
	}
	w.must(tx.Commit(w.ctx, nil))
}

// start goes on from the checkpoint in the sink, as a process does that was started anew.
func (w *overlapWorld) start() {
	claim, err := w.sink.Claim(w.ctx, "m", "")
	w.must(err)
	at, err := ParseCheckpoint(claim.Entries[Key(w.table.ID)])
	w.must(err)
	w.apply, err = NewTable(w.target, w.keep, *at, nil, w.source, w.sink, memory.DefaultAllocator)
	w.must(err)
}

// receive reads the stream to the log's end.
func (w *overlapWorld) receive() {
	head, err := w.source.Head(w.ctx, w.table.Log)
	w.must(err)
	for {
		e, err := w.stream.Next(w.ctx)
		w.must(err)
		switch e := e.(type) {
		case *connector.Frames:
			w.lane = append(w.lane, e)
		case *connector.Progress:
			w.read = e.UpTo
			order, err := w.source.Compare(e.UpTo[""], head[""])
			w.must(err)
			if order >= 0 {
				return
			}
		}
	}
}

// applyLane applies the lane in batches, with crashes between them and, if busy, writes; it returns how many rows were
// read from the source.
func (w *overlapWorld) applyLane(busy bool) (rereads int64) {
	for len(w.lane) > 0 {
		n := 1 + w.n("batch", len(w.lane))
		if busy && w.n("write meanwhile", 3) == 0 {
			w.write(2)
		}
		b, err := w.apply.Prepare(w.ctx, w.lane[:n])
		w.must(err)
		if b != nil {
			w.must(b.Apply(w.ctx))
			b.Release()
		}
		rereads += w.apply.Reread()
		w.lane = w.lane[n:]
		if w.n("crash", 4) == 0 {
			w.start()
		}
	}
	return rereads
}

// compare compares the two sides if the table has converged, and nothing was written since the lane was read.
func (w *overlapWorld) compare() {
	head, err := w.source.Head(w.ctx, w.table.Log)
	w.must(err)
	if !w.converged() || head[""] != w.read[""] {
		return
	}
	text := func(rows []connectortest.Row) string {
		var lines []string
		for _, row := range rows {
			if w.takes == nil || w.takes(row) {
				lines = append(lines, strings.Join(row, "|"))
			}
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if source, sink := text(w.db.Rows(w.table.Name)), text(w.store.Rows(w.table.Name)); source != sink || w.takes != nil && slices.ContainsFunc(w.store.Rows(w.table.Name), w.isOut) {
		w.Fatalf("the sink holds\n%s\nwant\n%s", sink, source)
	}
}

func (w *overlapWorld) isOut(row connectortest.Row) bool { return !w.takes(row) }

// converged reports whether the lane has passed the overlap.
func (w *overlapWorld) converged() bool {
	overlap := w.apply.Checkpoint().Overlap
	if overlap == "" {
		return true
	}
	order, err := w.source.Compare(w.read[""], overlap)
	w.must(err)
	return len(w.lane) == 0 && order >= 0
}

func TestCopyOfSeveralSnapshotsConverges(t *testing.T) {
	rereads := int64(0)
	rapid.Check(t, func(t *rapid.T) {
		w := newOverlapWorld(t)
		w.write(12)
		w.copy()
		w.start()
		for range 8 {
			w.write(3)
			w.receive()
			rereads += w.applyLane(true)
			w.compare()
		}
		for range 3 { // what is read from the source last is of a later moment than the overlap
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
