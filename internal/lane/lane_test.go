package lane

import (
	"context"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

func frames(version, rows, bytes int) *connector.Frames {
	return &connector.Frames{
		Table:   &schema.Table{Version: version},
		Data:    make([]byte, bytes),
		Commits: []connector.Commit{{Rows: rows}},
	}
}

func mustAppend(t *testing.T, l *Lane, it Item) {
	t.Helper()
	if err := l.Append(it); err != nil {
		t.Fatal(err)
	}
}

func mustTake(t *testing.T, l *Lane) []Item {
	t.Helper()
	items, err := l.Take(1, 1, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func at(p connector.Position) connector.Positions { return connector.Positions{"": p} }

func TestBatchEndsAtItsLimitsAndAtAnotherVersion(t *testing.T) {
	l := New(NewBudget(1 << 20))
	for range 3 {
		mustAppend(t, l, Item{Frames: frames(1, 10, 100)})
	}
	mustAppend(t, l, Item{Change: &connector.SchemaChange{}})
	mustAppend(t, l, Item{Frames: frames(2, 10, 100)})
	for _, want := range []int{2, 1, 1, 1} {
		got, err := l.Take(20, 1<<20, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != want {
			t.Fatalf("Take returned %d items, want %d", len(got), want)
		}
		if again, err := l.Take(20, 1<<20, time.Minute); again != nil || err != nil {
			t.Fatal("a second batch was taken while one is under way")
		}
		l.Done()
	}
	if !l.Empty() || l.Bytes() != 0 {
		t.Error("the lane is not empty at the end")
	}
}

func TestSafePositionIsThatBeforeTheOldestChange(t *testing.T) {
	l := New(NewBudget(1 << 20))
	last := at("5")
	if got := l.Safe(last)[""]; got != "5" {
		t.Errorf("empty: safe = %q", got)
	}
	mustAppend(t, l, Item{Frames: frames(1, 1, 1), Before: at("5")})
	mustAppend(t, l, Item{Frames: frames(1, 1, 1), Before: at("6")})
	last = at("7")
	if got := l.Safe(last)[""]; got != "5" {
		t.Errorf("two waiting: safe = %q", got)
	}
	mustTake(t, l)
	if got := l.Safe(last)[""]; got != "5" {
		t.Errorf("one taken, not durable: safe = %q", got)
	}
	l.Done()
	if got := l.Safe(last)[""]; got != "6" {
		t.Errorf("one durable: safe = %q", got)
	}
	l.Hold(last)
	mustAppend(t, l, Item{Frames: frames(1, 1, 1), Before: at("9")})
	if got := l.Safe(at("9"))[""]; got != "6" || !l.Empty() {
		t.Errorf("held: safe = %q, empty = %v", got, l.Empty())
	}
}

func TestReaderWaitsWhileTheBudgetIsSpent(t *testing.T) {
	b := NewBudget(100)
	l := New(b)
	mustAppend(t, l, Item{Frames: frames(1, 1, 200)})
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error)
	go func() { waited <- b.Wait(ctx) }()
	select {
	case err := <-waited:
		t.Fatalf("Wait returned %v with the budget spent", err)
	case <-time.After(10 * time.Millisecond):
	}
	mustTake(t, l)
	l.Done()
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	cancel()
	mustAppend(t, l, Item{Frames: frames(1, 1, 200)})
	if err := b.Wait(ctx); err == nil {
		t.Error("Wait did not end with its context")
	}
}
