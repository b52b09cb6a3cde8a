package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

var foldTable = &schema.Table{
	ID: "1", Version: 1, Name: schema.Name{Schema: "public", Table: "t"}, Key: []int{0},
	Columns: []schema.Column{connectortest.Int64("id"), connectortest.Text("v"), connectortest.Text("big")},
}

// changes draws a sequence of changes that a log could hold, over a table that holds the rows `stored`; with soft deletes
// there is no truncation among them.
func changes(t *rapid.T, b *connectortest.RowsBuilder, stored []string, soft bool) {
	present := map[string]bool{}
	for _, k := range stored {
		present[k] = true
	}
	add := func(op connector.Op, row connectortest.Row) {
		if err := b.Append(op, row); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rapid.IntRange(1, 30).Draw(t, "changes") {
		key := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "key"))
		value, big := fmt.Sprintf("v%d", i), fmt.Sprintf("big%d", i)
		if rapid.Bool().Draw(t, "unsent") {
			big = connectortest.Unsent
		}
		switch op := rapid.IntRange(0, 11).Draw(t, "op"); {
		case op == 0 && !soft:
			add(connector.Truncate, nil)
			clear(present)
		case op <= 2 && present[key]:
			add(connector.Delete, connectortest.Row{key, connectortest.Unsent, connectortest.Unsent})
			delete(present, key)
		case op <= 5 && present[key]:
			to := fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "to"))
			if present[to] {
				continue
			}
			add(connector.Before, connectortest.Row{key, connectortest.Unsent, connectortest.Unsent})
			add(connector.Update, connectortest.Row{to, value, big})
			delete(present, key)
			present[to] = true
		case present[key]:
			add(connector.Update, connectortest.Row{key, value, big})
		default:
			add(connector.Insert, connectortest.Row{key, value, fmt.Sprintf("big%d", i)})
			present[key] = true
		}
	}
}

// write applies rows to a sink that holds the rows `stored` and returns what it holds then.
func write(t *rapid.T, soft bool, stored []string, rows ...*connector.Rows) []string {
	ctx := context.Background()
	store := connectortest.NewStore()
	sink := connectortest.NewMemorySink(store, &connectortest.Faults{})
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := sink.Claim(ctx, "m", "")
	check(err)
	target, err := sink.Plan(ctx, connector.Target{Table: foldTable, Name: foldTable.Name, SoftDelete: soft})
	check(err)
	target.Copy = 1
	check(sink.Create(ctx, target))
	b := connectortest.NewRowsBuilder(memory.DefaultAllocator, foldTable)
	for _, k := range stored {
		check(b.Append(connector.Insert, connectortest.Row{k, "stored", "big of " + k}))
	}
	base := b.Rows()
	defer base.Release()
	tx, err := sink.Begin(ctx)
	check(err)
	check(tx.Load(ctx, target, base))
	check(tx.Commit(ctx, nil))
	check(sink.Ready(ctx, target, nil))
	tx, err = sink.Begin(ctx)
	check(err)
	for _, r := range rows {
		check(tx.Write(ctx, target, r))
	}
	check(tx.Commit(ctx, nil))
	var lines []string
	for _, r := range store.SoftRows(foldTable.Name) {
		lines = append(lines, strings.Join(r, " "))
	}
	slices.Sort(lines)
	return lines
}

func TestFoldedBatchLeavesWhatItsRowsDoInOrder(t *testing.T) { checkFold(t, false) }

// TestFoldedBatchWithSoftDeletesLeavesWhatItsRowsDoInOrder holds the times of deletions to be those of the rows in order,
// and rows that came and went within the batch to be kept.
func TestFoldedBatchWithSoftDeletesLeavesWhatItsRowsDoInOrder(t *testing.T) { checkFold(t, true) }

func checkFold(t *testing.T, soft bool) {
	rapid.Check(t, func(t *rapid.T) {
		alloc := memory.NewCheckedAllocator(memory.DefaultAllocator)
		stored := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"0", "1", "2", "3", "4"}), rapid.ID).Draw(t, "stored")
		b := connectortest.NewRowsBuilder(alloc, foldTable)
		changes(t, b, stored, soft)
		if b.Len() == 0 {
			b.Release()
			return
		}
		rows := b.Rows()
		for i := range rows.Len() {
			rows.Commits = append(rows.Commits, connector.Commit{Rows: 1, Time: time.Unix(int64(1_000_000+i), 0)})
		}
		want := write(t, soft, stored, rows)

		f, err := fold(t.Context(), alloc, rows, foldTable.Key, soft)
		if err != nil {
			t.Fatal(err)
		}
		if f.truncated {
			stored = nil
		}
		got := write(t, soft, stored, nonNil(f.rows)...)
		if !slices.Equal(got, want) {
			t.Errorf("folded: %q\nin order: %q", got, want)
		}
		if f.rows != nil {
			f.rows.Release()
		}
		rows.Release()
		alloc.AssertSize(noHelper{t}, 0)
	})
}

// noHelper lets the checked allocator report through rapid.
type noHelper struct{ *rapid.T }

func (noHelper) Helper() {}

func nonNil(r *connector.Rows) []*connector.Rows {
	if r == nil {
		return nil
	}
	return []*connector.Rows{r}
}

func TestFoldKeepsTheDeleteOfAKeyThatTheBatchInserted(t *testing.T) {
	b := connectortest.NewRowsBuilder(memory.DefaultAllocator, foldTable)
	for _, c := range []struct {
		op  connector.Op
		row connectortest.Row
	}{
		{connector.Insert, connectortest.Row{"7", "v", "b"}},
		{connector.Update, connectortest.Row{"7", "w", connectortest.Unsent}},
		{connector.Delete, connectortest.Row{"7", connectortest.Unsent, connectortest.Unsent}},
	} {
		if err := b.Append(c.op, c.row); err != nil {
			t.Fatal(err)
		}
	}
	rows := b.Rows()
	defer rows.Release()
	f, err := fold(t.Context(), memory.DefaultAllocator, rows, foldTable.Key, false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.rows.Release()
	if f.rows.Len() != 1 || f.rows.Op(0) != connector.Delete {
		t.Errorf("folded to %d rows, the first of op %d; want one delete", f.rows.Len(), f.rows.Op(0))
	}
}

func BenchmarkFold(b *testing.B) {
	rb := connectortest.NewRowsBuilder(memory.DefaultAllocator, foldTable)
	const n = 10_000
	for i := range n {
		row := connectortest.Row{fmt.Sprint(i % (n / 2)), "v", "some longer text for the row"}
		if err := rb.Append(connector.Op(i%2), row); err != nil {
			b.Fatal(err)
		}
	}
	rows := rb.Rows()
	defer rows.Release()
	b.ReportAllocs()
	for b.Loop() {
		f, err := fold(b.Context(), memory.DefaultAllocator, rows, foldTable.Key, false)
		if err != nil {
			b.Fatal(err)
		}
		f.rows.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/row")
}
