package mirror

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

func TestAppliersTakeTheTableThatWaitsLongest(t *testing.T) {
	q := newReadyQueue(3)
	start := time.Now()
	tables := []*table{{id: "b"}, {id: "c"}, {id: "a"}}
	for i, age := range []time.Duration{2, 1, 3} {
		q.push(tables[i], start.Add(-age*time.Second))
	}
	var got strings.Builder
	for range tables {
		next, err := q.pop(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(string(next.id))
	}
	if got.String() != "abc" {
		t.Errorf("tables came in the order %s, want abc", got.String())
	}
}

func TestSlowTablesHoldHalfOfTheAppliersAtMostAndLeaveTheClassWhenTheyAreQuickAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newReadyQueue(4)
		pop := func() *table {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			next, _ := q.pop(ctx) // nil: none may be taken
			return next
		}
		batch := func(next *table, took time.Duration) {
			t.Helper()
			q.push(next, time.Time{})
			if pop() != next {
				t.Fatalf("table %s is not given out", next.id)
			}
			time.Sleep(took)
			q.done(next)
		}
		slow := []*table{{id: "1"}, {id: "2"}, {id: "3"}}
		for _, s := range slow {
			batch(s, 3*time.Second)
		}
		for _, s := range slow {
			q.push(s, time.Time{})
		}
		for i, want := range []*table{slow[0], slow[1], nil} {
			if got := pop(); got != want {
				t.Fatalf("applier %d has %v; want two slow tables with appliers, and no more", i, got)
			}
		}
		quick := &table{id: "quick"}
		q.push(quick, time.Now())
		if pop() != quick {
			t.Fatal("a quick table waits for slow ones")
		}
		q.done(slow[0])
		if last := pop(); last != slow[2] {
			t.Fatalf("the third slow table is not next, but %v", last)
		}
		q.done(slow[1])
		q.done(slow[2])
		for range 4 {
			batch(quick, 3*time.Second)
		}
		if !q.slow(quick) {
			t.Error("it is quick still")
		}
		for range 4 {
			batch(quick, time.Millisecond)
		}
		if q.slow(quick) {
			t.Error("it is slow still")
		}
	})
}

func TestBatchUnderWayForLongCountsAsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newReadyQueue(2)
		stuck, behind := &table{id: "stuck"}, &table{id: "behind"}
		for range 2 {
			q.push(behind, time.Time{})
			_, _ = q.pop(t.Context())
			time.Sleep(2 * slowBatch)
			q.done(behind)
		}
		q.push(stuck, time.Time{})
		_, _ = q.pop(t.Context())
		time.Sleep(slowBatch)
		q.push(behind, time.Time{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if next, err := q.pop(ctx); err == nil {
			t.Errorf("table %s takes the last applier", next.id)
		}
	})
}

// delaySink has each write of so many rows to a table take a while.
type delaySink struct {
	connector.Sink
	delay func(table schema.Name, rows int) time.Duration
}

type delayTx struct {
	connector.Tx
	sink *delaySink
}

func (s *delaySink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	return delayTx{tx, s}, err
}

func (tx delayTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	select {
	case <-time.After(tx.sink.delay(t.Table.Name, r.Len())):
	case <-ctx.Done():
		return ctx.Err()
	}
	return tx.Tx.Write(ctx, t, r)
}

// clocked is a mirror in memory, in the time of a synctest bubble.
type clocked struct {
	t       *testing.T
	db      *connectortest.Database
	sink    *connectortest.Store
	state   *modelState
	faults  *connectortest.Faults
	writers int    // of the sink; 0: as it has by itself
	spool   string // folder; "": there is none
	wrap    func(connector.Sink) connector.Sink
}

func newClocked(t *testing.T) *clocked {
	return &clocked{
		t: t, db: connectortest.NewDatabase(), sink: connectortest.NewStore(), faults: &connectortest.Faults{},
		state: &modelState{tables: map[schema.ID]state.Table{}},
	}
}

// delay has writes take a while.
func (c *clocked) delay(f func(table schema.Name, rows int) time.Duration) {
	c.wrap = func(s connector.Sink) connector.Sink { return &delaySink{s, f} }
}

func (c *clocked) table(name string) schema.Name {
	n := schema.Name{Schema: "public", Table: name}
	c.db.CreateTable(connectortest.TableSpec{Name: n, Key: []string{"id"}, Columns: []schema.Column{connectortest.Int64("id"), connectortest.Text("v")}})
	return n
}

func (c *clocked) insert(id int, tables ...schema.Name) {
	c.t.Helper()
	tx := c.db.Begin()
	for _, n := range tables {
		if err := tx.Insert(n, connectortest.Row{fmt.Sprint(id), "v"}); err != nil {
			c.t.Fatal(err)
		}
	}
	tx.Commit()
}

// run runs the mirror until the returned function is called.
func (c *clocked) run(change func(*Limits)) (stop func()) {
	o := Options{
		Mirror: "clocked", FollowNew: true, Alloc: memory.NewGoAllocator(), Limits: DefaultLimits(), Spool: c.spool,
		Store: &modelProcess{modelState: c.state, faults: c.faults},
		Log:   slog.New(slog.NewTextHandler(c.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
		Source: func(context.Context, string) (connector.Source, error) {
			return connectortest.NewMemorySource(c.db, c.faults), nil
		},
		Sink: func(context.Context, string) (connector.Sink, error) {
			s := connectortest.NewMemorySink(c.sink, c.faults)
			s.Writers = cmp.Or(c.writers, s.Writers)
			return c.wrap(s), nil
		},
		Selector: Selector{Select: func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, true }},
	}
	o.Limits.FloorEvery, o.Limits.DiscoverEvery = time.Hour, 0
	change(&o.Limits)
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, o)
		done <- err
	}()
	return func() {
		c.t.Helper()
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
}

// lag inserts a row and returns how long it takes until the sink has it.
func (c *clocked) lag(id int, name schema.Name) time.Duration {
	c.t.Helper()
	c.insert(id, name)
	began := time.Now()
	for !c.has(id, name) {
		if time.Since(began) > time.Hour {
			c.t.Fatalf("row %d of %s does not come", id, name)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// await waits until a condition holds.
func (c *clocked) await(what string, f func() bool) {
	c.t.Helper()
	for began := time.Now(); !f(); time.Sleep(200 * time.Millisecond) {
		if time.Since(began) > time.Hour {
			c.t.Fatalf("waited for long: %s", what)
		}
	}
}

// equal reports whether the sink holds the rows of these tables.
func (c *clocked) equal(tables ...schema.Name) bool {
	for _, n := range tables {
		if sameRows("", c.sink.Rows(n), c.db.Rows(n)) != nil {
			return false
		}
	}
	return true
}

// streaming reports whether these tables follow the log.
func (c *clocked) streaming(tables ...schema.Name) bool {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	n := 0
	for _, r := range c.state.tables {
		if r.Phase == string(Streaming) && slices.Contains(tables, r.Name) {
			n++
		}
	}
	return n == len(tables)
}

// events returns the tables that had an event of a kind.
func (c *clocked) events(kind string) (tables []string) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	for _, e := range c.state.events {
		if e.Kind == kind {
			tables = append(tables, e.Table.Table)
		}
	}
	return tables
}

func (c *clocked) has(id int, name schema.Name) bool {
	for _, row := range c.sink.Rows(name) {
		if row[0] == fmt.Sprint(id) {
			return true
		}
	}
	return false
}

func TestQuickTableIsNotDelayedByManySlowOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocked(t)
		var slow []schema.Name
		for i := range 12 {
			slow = append(slow, c.table(fmt.Sprintf("slow%d", i)))
		}
		quick := c.table("quick")
		c.delay(func(n schema.Name, _ int) time.Duration {
			if n == quick {
				return 5 * time.Millisecond
			}
			return 3 * time.Second
		})
		stop := c.run(func(l *Limits) { l.Appliers = 4 })
		c.insert(0, append(slow, quick)...)
		for id := range 300 { // changes of all slow tables wait all the time
			c.insert(1+id, slow...)
			time.Sleep(200 * time.Millisecond)
			if lag := c.lag(1+id, quick); id > 150 && lag > 100*time.Millisecond {
				t.Fatalf("change %d of the quick table came after %v", id, lag)
			}
		}
		stop()
	})
}
