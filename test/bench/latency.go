package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/test/process"
)

const (
	latencyRate    = 1000             // transactions a second, each of one row
	latencyClients = 16               // connections that commit them, each on its own beat
	latencyWarm    = 3 * time.Second  // of the load, before figures are taken
	latencyTime    = 15 * time.Second // in which they are taken
	pollPause      = time.Millisecond // between two looks at the sink
)

// measureLatency commits at a fixed rate and looks when each row can be read at the sink.
func (b *bench) measureLatency(ctx context.Context) error {
	for range b.n {
		for _, sink := range []string{"postgres", "sqlite"} {
			if err := b.latencyRound(ctx, sink); err != nil {
				return fmt.Errorf("%s: %w", sink, err)
			}
		}
	}
	for _, sink := range []string{"postgres", "sqlite"} {
		b.report.best(fmt.Sprintf("commit → visible in %s, %d tx/s, p50, best round", sink, latencyRate), "latency "+sink+" p50", "ms", 10)
		b.report.best(fmt.Sprintf("commit → visible in %s, %d tx/s, p99, best round", sink, latencyRate), "latency "+sink+" p99", "ms", 50)
	}
	return nil
}

func (b *bench) latencyRound(ctx context.Context, sink string) (err error) {
	if err := errors.Join(recreate(ctx, b.source, "timely"), recreate(ctx, b.sink, "timely")); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "timely", "CREATE TABLE ticks (id bigint PRIMARY KEY, note text); INSERT INTO ticks VALUES (0, 'first')"); err != nil {
		return err
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	c := process.Config{Name: "latency", Source: b.source.URL("timely"), Sink: b.sink.URL("timely"), Mirror: "tables: {include: [public.ticks]}"}
	dir := filepath.Join(b.dir, "latency")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if sink == "sqlite" {
		c.SinkFile = filepath.Join(dir, "mirror.db")
	}
	config, err := c.Write(dir)
	if err != nil {
		return err
	}
	p, err := process.Start(dir, b.program, "run", config)
	if err != nil {
		return err
	}
	defer func() {
		_, stopErr := p.Stop(time.Minute)
		err = errors.Join(err, stopErr, b.forget(ctx, "timely", "latency"))
	}()
	if !p.Log.Await("table is streaming", time.Minute) {
		return fmt.Errorf("the mirror does not stream: %s", p.Log.Tail(20))
	}
	look, end, err := b.lookAt(ctx, c)
	if err != nil {
		return err
	}
	defer end()
	waits, err := b.commitAndLook(ctx, look)
	if err != nil {
		return err
	}
	b.report.value("latency "+sink+" p50", percentile(waits, 0.50))
	b.report.value("latency "+sink+" p99", percentile(waits, 0.99))
	return nil
}

// lookAt returns what reads the ids from one on that the sink shows.
func (b *bench) lookAt(ctx context.Context, c process.Config) (look func(from int64) ([]int64, error), end func(), err error) {
	if c.SinkFile == "" {
		conn, err := pgx.Connect(ctx, c.Sink)
		if err != nil {
			return nil, nil, err
		}
		look = func(from int64) ([]int64, error) {
			rows, err := conn.Query(ctx, "SELECT id FROM ticks WHERE id >= $1", from)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		return look, func() { _ = conn.Close(context.WithoutCancel(ctx)) }, nil
	}
	conn, err := sqlite.OpenConn(c.SinkFile, sqlite.OpenReadOnly)
	if err != nil {
		return nil, nil, err
	}
	look = func(from int64) (ids []int64, err error) {
		err = sqlitex.Execute(conn, "SELECT id FROM ticks WHERE id >= ?", &sqlitex.ExecOptions{
			Args:       []any{from},
			ResultFunc: func(s *sqlite.Stmt) error { ids = append(ids, s.ColumnInt64(0)); return nil },
		})
		return ids, err
	}
	return look, func() { _ = conn.Close() }, nil
}

// ticks are the rows of one round by id: when COMMIT had returned for each, and when a look at the sink that showed it
// had returned. Times are since the round's begin.
type ticks struct {
	mu        sync.Mutex
	committed map[int64]time.Duration
	seen      map[int64]time.Duration
}

// commitAndLook returns for each row committed after the warm-up how many milliseconds later it was seen: 0 for one that
// was seen before the client had the answer to its COMMIT.
func (b *bench) commitAndLook(ctx context.Context, look func(from int64) ([]int64, error)) ([]float64, error) {
	t := &ticks{committed: map[int64]time.Duration{}, seen: map[int64]time.Duration{}}
	begin := time.Now()
	var last atomic.Int64 // the last id given away
	var done atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	var clients errgroup.Group
	for client := range latencyClients {
		clients.Go(func() error { return b.tick(ctx, t, begin, client, &last) })
	}
	g.Go(func() error {
		defer done.Store(true)
		return clients.Wait()
	})
	g.Go(func() error { return t.watch(ctx, begin, look, &last, &done, 10*(latencyWarm+latencyTime)) })
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var waits []float64
	for id, at := range t.committed {
		if at >= latencyWarm {
			waits = append(waits, max(0, t.seen[id]-at).Seconds()*1000)
		}
	}
	if want := latencyRate * int(latencyTime/time.Second) * 9 / 10; len(waits) < want {
		return nil, fmt.Errorf("only %d transactions were committed in %v, want %d: the machine is too slow for the rate", len(waits), latencyTime, want)
	}
	return waits, nil
}

// tick commits rows on a beat of its own until the round is over. A late one is made up for at once.
func (b *bench) tick(ctx context.Context, t *ticks, begin time.Time, client int, last *atomic.Int64) error {
	conn, err := pgx.Connect(ctx, b.source.URL("timely"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const beat = time.Second * latencyClients / latencyRate
	for due := beat * time.Duration(client) / latencyClients; due < latencyWarm+latencyTime; due += beat {
		select {
		case <-time.After(time.Until(begin.Add(due))):
		case <-ctx.Done():
			return ctx.Err()
		}
		id := last.Add(1)
		if _, err := conn.Exec(ctx, "INSERT INTO ticks VALUES ($1, 'a row of a usual length, more or less')", id); err != nil {
			return err
		}
		at := time.Since(begin)
		t.mu.Lock()
		t.committed[id] = at
		t.mu.Unlock()
	}
	return nil
}

// watch looks at the sink until it shows all rows that were committed, for so long at most.
func (t *ticks) watch(ctx context.Context, begin time.Time, look func(from int64) ([]int64, error), last *atomic.Int64, done *atomic.Bool, limit time.Duration) error {
	for from := int64(1); ; {
		over := done.Load()
		ids, err := look(from)
		if err != nil {
			return err
		}
		at := time.Since(begin)
		for _, id := range ids {
			if _, known := t.seen[id]; !known {
				t.seen[id] = at
			}
		}
		for ; t.seen[from] > 0; from++ {
		}
		if over && from > last.Load() {
			return nil
		}
		if at > limit {
			return fmt.Errorf("row %d is not visible after %v", from, at)
		}
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
