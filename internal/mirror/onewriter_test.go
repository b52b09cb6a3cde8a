package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// writerSink is a sink with one writer that notes what its transactions are.
type writerSink struct {
	delaySink
	refuse schema.Name // its rows are refused

	mu  sync.Mutex
	txs []writtenTx
}

// writtenTx is a transaction that wrote changes and was committed, or rolled back.
type writtenTx struct {
	tables    []string
	took      time.Duration
	committed bool
}

type writerTx struct {
	delayTx
	sink  *writerSink
	began time.Time
	tx    writtenTx
}

func (s *writerSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	return &writerTx{delayTx: delayTx{tx, &s.delaySink}, sink: s, began: time.Now()}, err
}

func (tx *writerTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	tx.tx.tables = append(tx.tx.tables, t.Table.Name.Table)
	if t.Table.Name == tx.sink.refuse {
		return &connector.Error{Kind: connector.BadRow, System: "sink", Op: "write rows", Table: t.Name, Err: errors.New("refused")}
	}
	return tx.delayTx.Write(ctx, t, r)
}

func (tx *writerTx) Commit(ctx context.Context, entries map[string]string) error {
	err := tx.delayTx.Commit(ctx, entries)
	tx.note(err == nil)
	return err
}

func (tx *writerTx) Rollback() error {
	tx.note(false)
	return tx.delayTx.Rollback()
}

func (tx *writerTx) note(committed bool) {
	tx.sink.mu.Lock()
	defer tx.sink.mu.Unlock()
	if len(tx.tx.tables) > 0 {
		tx.tx.took, tx.tx.committed = time.Since(tx.began), committed
		tx.sink.txs = append(tx.sink.txs, tx.tx)
	}
}

// newWriter is a mirror into a sink with one writer, in which each row of a write takes a while.
func newWriter(t *testing.T, row func(schema.Name) time.Duration) (*clocked, *writerSink) {
	c := newClocked(t)
	sink := &writerSink{delaySink: delaySink{delay: func(n schema.Name, rows int) time.Duration { return time.Duration(rows) * row(n) }}}
	c.writers, c.wrap = 1, func(s connector.Sink) connector.Sink { sink.Sink = s; return sink }
	return c, sink
}

func everyRow(d time.Duration) func(schema.Name) time.Duration {
	return func(schema.Name) time.Duration { return d }
}

func (c *clocked) manyTables(n int) (tables []schema.Name) {
	for i := range n {
		tables = append(tables, c.table(fmt.Sprintf("t%02d", i)))
	}
	return tables
}

func TestOneWriterTakesTheBatchesOfManyTablesInOneTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink := newWriter(t, everyRow(time.Millisecond))
		tables := c.manyTables(40)
		stop := c.run(func(*Limits) {})
		c.await("all stream", func() bool { return c.streaming(tables...) })
		c.insert(1, tables...)
		c.await("all are written", func() bool { return c.equal(tables...) })
		stop()
		if n := len(sink.txs); n > 4 {
			t.Errorf("%d transactions for one change of each of %d tables", n, len(tables))
		}
	})
}

func TestOneWriterIsHeldForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const row = 10 * time.Millisecond
		c, sink := newWriter(t, everyRow(row))
		tables := c.manyTables(60)
		stop := c.run(func(l *Limits) { l.BatchRows = 1000 })
		c.await("all stream", func() bool { return c.streaming(tables...) })
		c.insert(0, tables...)
		for id := 1; id <= 500; id++ {
			c.insert(id, tables[0])
		}
		c.await("all are written", func() bool { return c.equal(tables...) })
		stop()
		long := 0
		for _, tx := range sink.txs {
			if tx.took > writeTime+5*row {
				long++
			}
		}
		if long > 1 { // the first batch of a table teaches how much it may write
			t.Errorf("%d of %d transactions were longer than %v", long, len(sink.txs), writeTime)
		}
	})
}

func TestBacklogOfOneTableDoesNotDelayTheOthersOfAOneWriterSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newWriter(t, everyRow(time.Millisecond))
		busy, quick := c.table("busy"), c.table("quick")
		stop := c.run(func(*Limits) {})
		c.await("both stream", func() bool { return c.streaming(busy, quick) })
		for id := range 5000 {
			c.insert(id, busy)
		}
		for id := range 5 {
			if lag := c.lag(id, quick); lag > time.Second {
				t.Errorf("change %d came after %v", id, lag)
			}
			if c.equal(busy) {
				t.Fatal("nothing was to be done beside it")
			}
		}
		c.await("the backlog is written", func() bool { return c.equal(busy) })
		stop()
	})
}

func TestFaultInACommonTransactionIsItsTablesOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, sink := newWriter(t, everyRow(time.Millisecond))
		tables := c.manyTables(10)
		sink.refuse = tables[4]
		stop := c.run(func(*Limits) {})
		c.await("all stream", func() bool { return c.streaming(tables...) })
		healthy := append(slices.Clone(tables[:4]), tables[5:]...)
		for id := range 10 {
			c.insert(id, tables...)
			c.await("the others are written", func() bool { return c.equal(healthy...) })
		}
		stop()
		if paused := c.events("paused"); !slices.Equal(paused, []string{"t04"}) {
			t.Errorf("paused: %v", paused)
		}
		common := 0
		for _, tx := range sink.txs {
			if !tx.committed && len(tx.tables) > 1 {
				common++
			}
		}
		if common > 1 {
			t.Errorf("%d common transactions failed for one table", common)
		}
	})
}

// readingSink tells whether a chunk is read while a transaction is open that loads it.
type readingSink struct {
	connector.Sink
	faults *connectortest.Faults
	within *int // pieces
}

type readingTx struct {
	connector.Tx
	sink   *readingSink
	before int
}

func (s *readingSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	return &readingTx{tx, s, s.faults.Count(connectortest.CallReadNext)}, err
}

func (tx *readingTx) Commit(ctx context.Context, entries map[string]string) error {
	*tx.sink.within += tx.sink.faults.Count(connectortest.CallReadNext) - tx.before
	return tx.Tx.Commit(ctx, entries)
}

func TestChunkIsReadBeforeItTakesTheOneWriter(t *testing.T) {
	for _, writers := range []int{1, 4} {
		t.Run(fmt.Sprintf("writers=%d", writers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClocked(t)
				within := 0
				c.writers, c.wrap = writers, func(s connector.Sink) connector.Sink { return &readingSink{s, c.faults, &within} }
				a := c.table("a")
				for id := range 50 {
					c.insert(id, a)
				}
				stop := c.run(func(l *Limits) { l.CopyWorkers = 1 })
				c.await("it is copied", func() bool { return c.equal(a) })
				stop()
				if (within == 0) != (writers == 1) {
					t.Errorf("%d pieces of the chunk were read within its transaction", within)
				}
			})
		})
	}
}

func TestChunksAreSmallForOneWriter(t *testing.T) {
	s := &session{runner: &runner{Options: Options{Limits: DefaultLimits()}}}
	for _, c := range []struct {
		writers        int
		rowBytes, rows int64
	}{{1, -1, 20_000}, {1, 100, 20_000}, {1, 1 << 20, 4}, {1, 1 << 30, 1}, {4, 1 << 20, 100_000}} {
		sink := connectortest.NewMemorySink(connectortest.NewStore(), nil)
		sink.Writers = c.writers
		s.sink = sink
		if got := s.chunkRows(&schema.Table{RowBytes: c.rowBytes}); got != c.rows {
			t.Errorf("%d writers, rows of %d bytes: chunks of %d rows, want %d", c.writers, c.rowBytes, got, c.rows)
		}
	}
}
