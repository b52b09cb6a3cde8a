package lane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var roomy = Limits{Lane: 0, Max: 1 << 30}

func openSpool(t testing.TB, dir string, listed []Segment, limits Limits) (*Spool, *Lane) {
	t.Helper()
	s, err := OpenSpool(dir, "mirror-1", listed, NewBudget(1<<20), limits, comparePositions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	l, err := s.Open("16385", position(0))
	if err != nil {
		t.Fatal(err)
	}
	return s, l
}

// table1 has a column of each shape that a version may hold.
func table1(version int) *schema.Table {
	return &schema.Table{
		ID: "16385", Version: version, Log: "shop", Name: schema.Name{Schema: "public", Table: `Odd "name"`},
		Columns: []schema.Column{
			{Number: 1, Name: "id", Type: schema.Type{Kind: schema.Int64, Native: "bigint"}, NotNull: true},
			{Number: 3, Name: "tags", Type: schema.Type{Kind: schema.Array, Native: "text[]", Elem: &schema.Type{Kind: schema.Text, Native: "text"}}},
			{Number: 4, Name: "mood", Type: schema.Type{Kind: schema.Enum, Native: "shop.mood", Labels: []string{"sad", "happy"}}},
		},
		Key: []int{0}, Rows: 12, RowBytes: 80,
	}
}

// change is an item of one transaction with these rows.
func change(txn int, table *schema.Table, rows ...string) Item {
	f := &connector.Frames{Table: table}
	for _, r := range rows {
		f.Data = append(binary.BigEndian.AppendUint32(f.Data, uint32(len(r))), r...)
	}
	f.Commits = []connector.Commit{{
		Rows: len(rows), Position: position(txn)[""], Tag: uint64(700 + txn), Time: time.Date(2026, 3, 1, 12, 0, txn, 123456000, time.UTC),
	}}
	return Item{Frames: f, Before: position(txn - 1)}
}

func alteration(txn int, to *schema.Table) Item {
	return Item{Change: &connector.SchemaChange{
		Table: to, Rewrote: true, Commit: connector.Commit{Position: position(txn)[""], Tag: uint64(700 + txn), Time: time.Date(2026, 3, 1, 12, 0, txn, 0, time.UTC)},
	}, Before: position(txn - 1)}
}

func takeAll(t testing.TB, l *Lane) (all []Item) {
	t.Helper()
	for !l.Empty() {
		items, err := l.Take(100, 1<<20, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, items...)
		l.Done()
	}
	return all
}

var sameItem = cmp.Options{cmpopts.IgnoreUnexported(Item{}), cmpopts.IgnoreFields(Item{}, "Old"), cmpopts.EquateEmpty()}

func saved(t *testing.T, s *Spool) []Segment {
	t.Helper()
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	list := s.List()
	if err := s.Saved(list); err != nil {
		t.Fatal(err)
	}
	return list.Segments
}

func TestSpoolGivesBackWhatWasWrittenAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	s, l := openSpool(t, dir, nil, roomy)
	want := []Item{
		change(1, table1(1), "one", "two", ""), change(2, table1(1), "three"), alteration(3, table1(2)), change(3, table1(2), "four"),
		alteration(4, &schema.Table{ID: "16385", Version: 3, Refused: "it was dropped"}),
	}
	for _, it := range want {
		mustAppend(t, l, it)
	}
	listed := saved(t, s)
	if len(listed) != 2 {
		t.Errorf("%d segments, want one for each version with frames: %v", len(listed), listed)
	}
	s.Close()
	_, l = openSpool(t, dir, listed, roomy)
	if got := l.Safe(position(9))[""]; got != position(0)[""] {
		t.Errorf("safe = %s", got)
	}
	if got := l.Durable(position(9))[""]; got != position(9)[""] {
		t.Errorf("durable = %s", got)
	}
	got := takeAll(t, l)
	if diff := cmp.Diff(want, got, sameItem); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	for i, it := range got {
		if !it.Old {
			t.Errorf("item %d does not say that an earlier process wrote it", i)
		}
	}
}

func TestSpoolIsReadableByItsOwnerAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	_, l := openSpool(t, dir, nil, roomy)
	mustAppend(t, l, change(1, table1(1), "secret"))
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			err = fmt.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestChangesCountAsDurableOnlyOnceTheyAreForcedToDisk(t *testing.T) {
	s, l := openSpool(t, t.TempDir(), nil, roomy)
	last := position(9)
	mustAppend(t, l, change(3, table1(1), "a"))
	if got := l.Durable(last)[""]; got != position(2)[""] {
		t.Errorf("written: durable = %s", got)
	}
	if list := s.List(); len(list.Segments) != 0 {
		t.Errorf("written: listed are %v", list.Segments)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := l.Durable(last)[""]; got != last[""] {
		t.Errorf("forced: durable = %s", got)
	}
	mustAppend(t, l, change(7, table1(1), "b"))
	if got := l.Durable(last)[""]; got != position(6)[""] {
		t.Errorf("one more: durable = %s", got)
	}
	if got := l.Safe(last)[""]; got != position(2)[""] {
		t.Errorf("safe = %s", got)
	}
}

func TestWhatIsBeingForcedToDiskIsNotDurableYet(t *testing.T) {
	s, l := openSpool(t, t.TempDir(), nil, roomy)
	last := position(9)
	mustAppend(t, l, change(3, table1(1), "a"))
	s.force = func(*os.File) error {
		if got := l.Durable(last)[""]; got != position(2)[""] {
			t.Errorf("durable = %s", got)
		}
		if list := s.List(); len(list.Segments) != 0 {
			t.Errorf("listed are %v", list.Segments)
		}
		mustAppend(t, l, change(7, table1(1), "b"))
		return nil
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := l.Durable(last)[""]; got != position(6)[""] {
		t.Errorf("after it: durable = %s", got)
	}
}

// TestDiskThatRefusesOnceIsNotBelieved: the system may report a failed write once and forget it.
func TestDiskThatRefusesOnceIsNotBelieved(t *testing.T) {
	s, l := openSpool(t, t.TempDir(), nil, roomy)
	mustAppend(t, l, change(3, table1(1), "a"))
	broken := errors.New("input/output error")
	s.force = func(*os.File) error { return broken }
	if err := s.Sync(); !errors.Is(err, broken) {
		t.Fatalf("sync: %v", err)
	}
	s.force = func(*os.File) error { return nil }
	if err := s.Sync(); err == nil {
		t.Error("a second sync reports success")
	}
	if got := l.Durable(position(9))[""]; got != position(2)[""] {
		t.Errorf("durable = %s", got)
	}
}

func TestFilesStayUntilTheStateDoesNotListThem(t *testing.T) {
	s, l := openSpool(t, t.TempDir(), nil, roomy)
	mustAppend(t, l, change(1, table1(1), "a"))
	listed := saved(t, s)
	takeAll(t, l)
	path := s.path("16385", listed[0].Number)
	if _, err := os.Stat(path); err != nil {
		t.Errorf("gone while the state lists it: %v", err)
	}
	list := s.List()
	if len(list.Segments) != 0 {
		t.Errorf("listed are %v", list.Segments)
	}
	if err := s.Saved(list); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestSegmentStaysWhileAChangeInItIsNotApplied(t *testing.T) {
	limits := roomy
	limits.Lane = 700
	s, l := openSpool(t, t.TempDir(), nil, limits)
	s.segment = 1
	for txn := range 6 {
		mustAppend(t, l, change(txn+1, table1(1), "row"))
	}
	if n := len(saved(t, s)); n != 6 {
		t.Fatalf("%d segments, want one a change", n)
	}
	for applied := 1; applied <= 6; applied++ {
		mustTake(t, l)
		l.Done()
		if n := len(saved(t, s)); n != 6-applied {
			t.Errorf("%d changes applied: %d segments", applied, n)
		}
	}
}

func TestReaderWaitsForRoomAndGoesOn(t *testing.T) {
	limits := roomy
	limits.Max = 2000
	s, l := openSpool(t, t.TempDir(), nil, limits)
	txn := 1
	var full *FullError
	for ; full == nil; txn++ {
		err := l.Append(change(txn, table1(1), "row"))
		if err != nil && !errors.As(err, &full) {
			t.Fatal(err)
		}
	}
	if full.OneTable || full.Table != "16385" {
		t.Errorf("the limit of all tables is reported as %+v", full)
	}
	freed := s.Freed()
	takeAll(t, l)
	select {
	case <-freed:
	default:
		t.Fatal("nothing was freed by applying everything")
	}
	mustAppend(t, l, change(txn, table1(1), "row"))
}

func TestTableAndDiskHaveLimitsOfTheirOwn(t *testing.T) {
	limits := roomy
	limits.Table = 2000
	_, l := openSpool(t, t.TempDir(), nil, limits)
	mustAppend(t, l, change(1, table1(1), "row"))
	err := l.Append(change(2, table1(1), string(make([]byte, 4000))))
	if full, ok := errors.AsType[*FullError](err); !ok || !full.OneTable {
		t.Errorf("table: %v", err)
	}
	limits = roomy
	limits.Free = 1 << 30
	s, l := openSpool(t, t.TempDir(), nil, limits)
	s.space = func(string) (int64, int64, error) { return 1 << 30, 1 << 40, nil }
	mustAppend(t, l, change(1, table1(1), "row")) // there is always room for one change, in memory
	err = l.Append(change(2, table1(1), string(make([]byte, 2<<20))))
	if full, ok := errors.AsType[*FullError](err); ok {
		t.Errorf("disk: memory is left, and yet: %v", full)
	}
	err = l.Append(change(3, table1(1), "row"))
	if _, ok := errors.AsType[*FullError](err); !ok {
		t.Errorf("disk and memory: %v", err)
	}
}

func TestAnotherHistoryIsNotPutBehindTheSpool(t *testing.T) {
	dir := t.TempDir()
	s, l := openSpool(t, dir, nil, roomy)
	mustAppend(t, l, change(1, table1(1), "a"))
	mustAppend(t, l, change(2, table1(1), "b"))
	listed := saved(t, s)
	s.Close()
	_, l = openSpool(t, dir, listed, roomy)
	if err := l.Append(change(3, table1(1), "c")); !errors.Is(err, ErrDiverged) {
		t.Errorf("a log without the last transaction: %v", err)
	}
	other := change(2, table1(1), "b")
	other.Frames.Commits[0].Tag++
	if err := l.Append(other); !errors.Is(err, ErrDiverged) {
		t.Errorf("another transaction at its position: %v", err)
	}
	mustAppend(t, l, change(2, table1(1), "b"))
	mustAppend(t, l, change(3, table1(1), "c"))
	if got := takeAll(t, l); len(got) != 3 {
		t.Errorf("%d changes, want each once", len(got))
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	s, l := openSpool(t, dir, nil, roomy)
	mustAppend(t, l, change(1, table1(1), "a"))
	listed := saved(t, s)
	s.Close()
	path := s.path("16385", 1)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[len(segmentMagic)+3]++
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := OpenSpool(dir, "mirror-1", listed, NewBudget(1), roomy, comparePositions)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	_, err = again.Open("16385", nil)
	if _, ok := errors.AsType[*FormatError](err); !ok {
		t.Errorf("opened: %v", err)
	}
}

func TestSpoolOfAnotherMirrorIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	s, l := openSpool(t, dir, nil, roomy)
	mustAppend(t, l, change(1, table1(1), "a"))
	listed := saved(t, s)
	s.Close()
	_, err := OpenSpool(dir, "mirror-2", nil, NewBudget(1), roomy, comparePositions)
	if _, ok := errors.AsType[*OwnerError](err); !ok {
		t.Errorf("opened for another mirror: %v", err)
	}
	if err := RemoveSpool(dir, "mirror-2"); err != nil {
		t.Error(err)
	}
	s, l = openSpool(t, dir, listed, roomy)
	if got := takeAll(t, l); len(got) != 1 {
		t.Errorf("%d changes are left", len(got))
	}
	s.Close()
	if err := RemoveSpool(dir, "mirror-1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its own folder stays: %v", err)
	}
}

func TestForgottenAndUnlistedFilesGo(t *testing.T) {
	dir := t.TempDir()
	s, l := openSpool(t, dir, nil, roomy)
	mustAppend(t, l, change(1, table1(1), "a"))
	listed := saved(t, s)
	other, err := s.Open("7", nil)
	if err != nil {
		t.Fatal(err)
	}
	it := change(1, table1(1), "b")
	mustAppend(t, other, it)
	s.Close()
	s, err = OpenSpool(dir, "mirror-1", listed, NewBudget(1), roomy, comparePositions)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := os.Stat(s.folder("7")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what no list names stays: %v", err)
	}
	s.Forget("16385")
	if list := s.List(); len(list.Segments) > 0 {
		t.Errorf("listed are %v", list.Segments)
	} else if err := s.Saved(list); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path("16385", 1)); !errors.Is(err, os.ErrNotExist) || s.Bytes() != 0 {
		t.Errorf("what was forgotten stays: %v, %d bytes", err, s.Bytes())
	}
}

// TestReaderApplierAndSyncMeet runs them against each other.
func TestReaderApplierAndSyncMeet(t *testing.T) {
	const txns = 3000
	limits := roomy
	limits.Lane = 5000
	s, l := openSpool(t, t.TempDir(), nil, limits)
	s.segment, s.budget.max = 20_000, 8000
	s.Rely(true)
	ctx, cancel := context.WithCancel(t.Context())
	var helpers sync.WaitGroup
	helpers.Go(func() {
		if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
	})
	helpers.Go(func() {
		for ctx.Err() == nil {
			if err := s.Sync(); err != nil {
				t.Errorf("sync: %v", err)
			}
			l.Durable(position(0))
			s.relieve()
			if err := s.Saved(s.List()); err != nil {
				t.Errorf("saved: %v", err)
			}
		}
	})
	var reader sync.WaitGroup
	reader.Go(func() {
		for txn := 1; txn <= txns; txn++ {
			if err := l.Append(change(txn, table1(1+txn/1000), "some text", "more text")); err != nil {
				t.Errorf("append: %v", err)
				return
			}
		}
	})
	next := 1
	for next <= txns && !t.Failed() {
		items, err := l.Take(50, 10_000, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range items {
			if at := txnOf(it.Frames.Commits[0].Position); at != next {
				t.Fatalf("transaction %d comes where %d belongs", at, next)
			}
			next++
		}
		l.Done()
	}
	reader.Wait()
	cancel()
	helpers.Wait()
}

func TestLaneTellsWhenItIsAboutToGoBeyondMemory(t *testing.T) {
	table := table1(1)
	first, second := change(1, table, "a row"), change(2, table, "another")
	_, l := openSpool(t, t.TempDir(), nil, Limits{Lane: sizeOf(&first), Max: 1 << 30})
	if l.Overflows(first) != nil {
		t.Error("an empty lane has no room")
	}
	if err := l.Append(first); err != nil {
		t.Fatal(err)
	}
	drained := l.Overflows(second)
	if drained == nil {
		t.Fatal("a full lane does not tell")
	}
	if _, err := l.Take(1, 1, time.Minute); err != nil {
		t.Fatal(err)
	}
	select {
	case <-drained:
		t.Error("drained before the batch was durable")
	default:
	}
	l.Done()
	<-drained
	if l.Overflows(second) != nil {
		t.Error("the lane has room again and does not tell")
	}
	for _, it := range []Item{first, second, change(3, table, "a third")} {
		if err := l.Append(it); err != nil {
			t.Fatal(err)
		}
	}
	if l.Overflows(second) != nil {
		t.Error("a lane that is on disk already lets its reader wait")
	}
}

func TestBatchEndsWhenItsTimeIsOverWhileItIsReadBack(t *testing.T) {
	_, l := openSpool(t, t.TempDir(), nil, Limits{Max: 1 << 20})
	for i := range 10 {
		if err := l.Append(change(i+1, table1(1), "row")); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		age  time.Duration
		want int
	}{{0, 1}, {time.Minute, 10}} {
		items, err := l.Take(100, 1<<20, c.age)
		if err != nil || len(items) != c.want {
			t.Errorf("%d items, %v within %v, want %d", len(items), err, c.age, c.want)
		}
		l.Back()
	}
}
