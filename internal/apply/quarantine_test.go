package apply

import (
	"fmt"
	"hash/fnv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// quarantineWorld is a table of which the sink refuses some rows for a while.
type quarantineWorld struct {
	*overlapWorld
	refuses int // of eight rows; 0: none
	most    int // rows in quarantine at one time
	moved   bool
}

func newQuarantineWorld(t *rapid.T, soft bool) *quarantineWorld {
	w := &quarantineWorld{overlapWorld: newOverlapWorld(t)}
	if soft {
		var err error
		w.target, err = w.sink.Plan(w.ctx, connector.Target{Table: w.table, Name: w.table.Name, SoftDelete: true})
		w.must(err)
		w.target.Copy = 1
	}
	w.sink.RefuseRow = func(_ schema.Name, row connectortest.Row) bool {
		h := fnv.New32()
		h.Write([]byte(row[1]))
		return int(h.Sum32()%8) < w.refuses
	}
	return w
}

// start goes on from what is in the sink, the quarantine included.
func (w *quarantineWorld) start() {
	w.overlapWorld.start()
	q := NewQuarantine(w.table.ID, true)
	w.must(q.Committed(w.store.Entries("m")))
	w.apply.UseQuarantine(q)
}

func (w *quarantineWorld) held() map[string]bool {
	keys := map[string]bool{}
	for _, h := range w.apply.quarantine.snapshot() {
		keys[h.shown[0]] = true
	}
	w.most = max(w.most, len(keys))
	return keys
}

// applyLane applies the lane in batches, with crashes and lost answers between them.
func (w *quarantineWorld) applyLane() {
	for len(w.lane) > 0 {
		n := 1 + w.n("batch", len(w.lane))
		b, err := w.apply.Prepare(w.ctx, w.lane[:n])
		w.must(err)
		if b != nil {
			w.must(b.Apply(w.ctx))
			b.Release()
		}
		w.lane = w.lane[n:]
		if w.n("crash", 4) == 0 {
			w.start()
		}
		w.compareMemory()
	}
}

// compareMemory holds what is known of the quarantine to be what the sink keeps.
func (w *quarantineWorld) compareMemory() {
	kept := NewQuarantine(w.table.ID, true)
	w.must(kept.Committed(w.store.Entries("m")))
	if got, want := fmt.Sprint(w.apply.quarantine.snapshot()), fmt.Sprint(kept.snapshot()); got != want {
		w.Fatalf("in memory %s\nin the sink %s", got, want)
	}
}

// compare holds all rows that are not in quarantine to be as the source has them, once nothing is left to be applied.
func (w *quarantineWorld) compare() {
	head, err := w.source.Head(w.ctx, w.table.Log)
	w.must(err)
	if !w.converged() || head[""] != w.read[""] {
		return
	}
	held := w.held()
	want, got := map[string]string{}, map[string]string{}
	for _, row := range w.db.Rows(w.table.Name) {
		want[row[0]] = strings.Join(row, "|")
	}
	for _, row := range w.store.SoftRows(w.table.Name) {
		if row[len(row)-1] == connectortest.Null {
			got[row[0]] = strings.Join(row[:len(row)-1], "|")
		}
	}
	for id := range 6 {
		key := fmt.Sprint(id)
		if !held[key] && got[key] != want[key] {
			w.Fatalf("the sink holds %q under %s, want %q; in quarantine: %v", got[key], key, want[key], held)
		}
	}
}

func (w *quarantineWorld) retry() (refused int) {
	_, refused, err := w.apply.Retry(w.ctx, nil)
	w.must(err)
	w.compareMemory()
	return refused
}

// TestTableWithRowsInQuarantineIsExactButForThem changes rows at random while the sink refuses some of them, with moves to
// other keys, values left unsent, deletes and truncations; with crashes, and rows that are tried again while changes wait.
func TestTableWithRowsInQuarantineIsExactButForThem(t *testing.T) {
	for _, soft := range []bool{false, true} {
		t.Run(fmt.Sprintf("soft %v", soft), func(t *testing.T) {
			most := 0
			rapid.Check(t, func(t *rapid.T) {
				w := newQuarantineWorld(t, soft)
				w.write(12)
				w.copyOnce()
				w.start()
				for range 8 {
					w.refuses = w.n("refuses", 5)
					w.write(4)
					if w.n("truncate", 12) == 0 {
						tx := w.db.Begin()
						_ = tx.Truncate(w.table.Name)
						tx.Commit()
					}
					w.receive()
					if w.n("retry before", 4) == 0 {
						w.retry()
					}
					w.applyLane()
					w.compare()
					if w.n("retry", 4) == 0 {
						w.retry()
					}
				}
				w.refuses = 0
				for range 2 {
					w.receive()
					w.applyLane()
					if refused := w.retry(); refused > 0 {
						t.Fatalf("%d rows are refused by a sink that refuses none", refused)
					}
				}
				w.receive()
				w.applyLane()
				if held := w.held(); len(held) > 0 {
					t.Fatalf("%v is still in quarantine", held)
				}
				w.compare()
				most = max(most, w.most)
			})
			if most < 2 {
				t.Errorf("%d rows in quarantine at most: the test protects nothing", most)
			}
		})
	}
}

// copyOnce copies the table under one snapshot.
func (w *quarantineWorld) copyOnce() {
	from, err := w.stream.Add(w.ctx, w.table)
	w.must(err)
	snap, err := w.source.Snapshot(w.ctx, w.table)
	w.must(err)
	head, err := w.source.Head(w.ctx, w.table.Log)
	w.must(err)
	w.at = Checkpoint{Copy: 1, Position: from[""], Token: snap.Token(), Until: head[""], Ready: true}
	chunks, err := snap.Chunks(w.ctx, 100)
	w.must(err)
	for _, c := range chunks {
		w.load(snap, c)
	}
	w.must(w.sink.Ready(w.ctx, w.target, map[string]string{Key(w.table.ID): w.at.String()}))
}

// TestKeyOfARowInQuarantineComesBackExactly reads keys of each type back from an entry.
func TestKeyOfARowInQuarantineComesBackExactly(t *testing.T) {
	kinds := []schema.Kind{
		schema.Bool, schema.Int8, schema.Int16, schema.Int32, schema.Int64, schema.Uint64, schema.Float32, schema.Float64, schema.Numeric, schema.Text,
		schema.Bytes, schema.Date, schema.Time, schema.Timestamp, schema.TimestampTZ, schema.Interval, schema.UUID, schema.JSON, schema.Enum,
	}
	values := map[schema.Kind][]func(array.Builder){
		schema.Bool:    {func(b array.Builder) { b.(*array.BooleanBuilder).Append(true) }},
		schema.Int8:    {func(b array.Builder) { b.(*array.Int8Builder).Append(-128) }},
		schema.Int16:   {func(b array.Builder) { b.(*array.Int16Builder).Append(-32768) }},
		schema.Int32:   {func(b array.Builder) { b.(*array.Int32Builder).Append(-1 << 31) }},
		schema.Int64:   {func(b array.Builder) { b.(*array.Int64Builder).Append(-1 << 63) }},
		schema.Uint64:  {func(b array.Builder) { b.(*array.Uint64Builder).Append(1<<64 - 1) }},
		schema.Float32: {func(b array.Builder) { b.(*array.Float32Builder).Append(0.1) }},
		schema.Float64: {func(b array.Builder) { b.(*array.Float64Builder).Append(1.0000000000000002e-300) }},
		schema.Text: {
			func(b array.Builder) { b.(*array.StringBuilder).Append("(null)") }, func(b array.Builder) { b.(*array.StringBuilder).Append("") },
			func(b array.Builder) { b.(*array.StringBuilder).Append("é\n\x00\"") },
		},
		schema.Bytes: {func(b array.Builder) { b.(*array.BinaryBuilder).Append([]byte{0, 255, 10}) }, func(b array.Builder) { b.(*array.BinaryBuilder).Append([]byte{}) }},
		schema.UUID:  {func(b array.Builder) { b.(*array.FixedSizeBinaryBuilder).Append([]byte("0123456789abcde\xff")) }},
	}
	values[schema.Numeric], values[schema.JSON], values[schema.Enum] = values[schema.Text], values[schema.Text], values[schema.Text]
	values[schema.Date], values[schema.Interval] = values[schema.Int32], values[schema.UUID]
	values[schema.Time], values[schema.Timestamp], values[schema.TimestampTZ] = values[schema.Int64], values[schema.Int64], values[schema.Int64]
	for _, kind := range kinds {
		table := &schema.Table{Key: []int{1}, Columns: []schema.Column{connectortest.Text("v"), {Name: "k", Type: schema.Type{Kind: kind}}}}
		for _, appendTo := range values[kind] {
			b := array.NewRecordBuilder(memory.DefaultAllocator, table.Arrow())
			b.Field(0).AppendNull()
			appendTo(b.Field(1))
			values := b.NewRecordBatch()
			q, err := describeRow(&connector.Rows{Table: table, Values: values}, table.Key, 0)
			if err != nil {
				t.Fatal(err)
			}
			read, err := ParseQuarantined(quarantineKey("1", "x"), q.text())
			if err != nil {
				t.Fatal(err)
			}
			back, err := keyRecord(memory.DefaultAllocator, table, []held{heldOf(read)})
			if err != nil {
				t.Fatal(err)
			}
			if !array.Equal(values.Column(1), back.Column(1)) {
				t.Errorf("kind %d: %v came back as %v", kind, values.Column(1), back.Column(1))
			}
		}
	}
}
