package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/test/process"
)

const (
	isolationTables = 50
	isolationRate   = 500              // transactions a second, each of one row, the tables in turn
	isolationRows   = 300_000          // of the table that things happen to; of the others 1,000
	isolationTime   = 10 * time.Second // of a phase, at least
	isolationEnd    = 10 * time.Minute // of a round, at most
)

// isolationPhases are what happens to one table, in this order.
var isolationPhases = []string{"before", "broken", "repaired", "slowed", "resynced", "after"}

// measureIsolation has many tables written while one of them is broken, slowed and copied anew, and measures how late the
// rows of the others are in the sink.
func (b *bench) measureIsolation(ctx context.Context) error {
	for range b.n {
		if err := b.isolationRound(ctx); err != nil {
			return err
		}
	}
	rows := []string{
		fmt.Sprintf("Commit to visible in %d of %d tables at %d tx/s, while the one that is left is in trouble:", isolationTables-1, isolationTables, isolationRate),
		"", "| the one table is | p50 | p99 | longest | transactions |", "|---|---|---|---|---|",
	}
	for _, phase := range isolationPhases {
		figure := func(name string) string { return b.report.spread("isolation "+phase+" "+name, "ms") }
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | %s | %.0f |", phase, figure("p50"), figure("p99"), figure("longest"), median(b.report.values["isolation "+phase+" rows"])))
	}
	b.report.note(strings.Join(rows, "\n"))
	return nil
}

// isolation is one round: a mirror that runs, and the load on it.
type isolation struct {
	*bench
	config string // of the mirror
	mirror *process.Process
	ticks  *ticks
	begin  time.Time
	last   atomic.Int64  // the last id given away; id i is a row of table t(1 + i % isolationTables)
	over   chan struct{} // closed when nothing more is to be written
	ends   []time.Duration
}

// troubled is the table that things happen to.
var troubled = fmt.Sprintf("t%d", isolationTables)

func isTroubled(id int64) bool { return id%isolationTables == isolationTables-1 }

func (b *bench) isolationRound(ctx context.Context) (err error) {
	if err := errors.Join(recreate(ctx, b.source, "many"), recreate(ctx, b.sink, "many")); err != nil {
		return err
	}
	err = execute(ctx, b.source, "many", fmt.Sprintf(`DO $$ BEGIN FOR t IN 1 .. %d LOOP
		EXECUTE format('CREATE TABLE t%%s (id bigint PRIMARY KEY, note text)', t);
		EXECUTE format('INSERT INTO t%%s SELECT -i, md5(i::text) FROM generate_series(1, CASE %%s WHEN %[1]d THEN %d ELSE 1000 END) i', t, t);
		END LOOP; END $$; ANALYZE`, isolationTables, isolationRows))
	if err == nil {
		err = b.settle(ctx)
	}
	if err != nil {
		return err
	}
	dir := filepath.Join(b.dir, "isolation")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	i := &isolation{
		bench: b, ticks: &ticks{committed: map[int64]time.Duration{}, seen: map[int64]time.Duration{}}, over: make(chan struct{}),
	}
	i.config, err = process.Config{Name: "isolation", Source: b.source.URL("many"), Sink: b.sink.URL("many"), Mirror: "tables: {include: [\"public.*\"]}"}.Write(dir)
	if err != nil {
		return err
	}
	if i.mirror, err = process.Start(dir, b.program, "run", i.config, "--log-format", "text"); err != nil {
		return err
	}
	defer i.mirror.Kill()
	for t := 1; t <= isolationTables; t++ {
		if !i.mirror.Log.Await(fmt.Sprintf("table is streaming\" mirror=isolation table=public.t%d", t), time.Minute) {
			return fmt.Errorf("t%d does not stream: %s", t, i.mirror.Log.Tail(20))
		}
	}
	if err := execute(ctx, b.sink, "many", "ANALYZE"); err != nil { // for the looks at it
		return err
	}
	if err := i.run(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, i.mirror.Log.Tail(20))
	}
	i.report()
	if _, err := i.mirror.Stop(time.Minute); err != nil {
		return err
	}
	differing, err := b.differing(ctx, isolationTables)
	if err == nil && differing != "" {
		err = fmt.Errorf("table %s differs at the end", differing)
	}
	return errors.Join(err, b.forget(ctx, "many", "isolation"))
}

// run writes, looks, and meanwhile makes trouble, until everything that was written is visible.
func (i *isolation) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, isolationEnd)
	defer cancel()
	conn, err := pgx.Connect(ctx, i.sink.URL("many"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	i.begin = time.Now()
	var done atomic.Bool
	g, ctx := errgroup.WithContext(ctx)
	var clients errgroup.Group
	for client := range latencyClients {
		clients.Go(func() error { return i.write(ctx, client) })
	}
	g.Go(func() error {
		defer done.Store(true)
		return clients.Wait()
	})
	g.Go(func() error {
		look := func(from int64) ([]int64, error) { return i.look(ctx, conn, from) }
		return i.ticks.watch(ctx, i.begin, look, &i.last, &done, isolationEnd)
	})
	g.Go(func() error {
		defer close(i.over)
		return i.trouble(ctx)
	})
	return g.Wait()
}

// write commits rows on a beat of its own, the tables in turn.
func (i *isolation) write(ctx context.Context, client int) error {
	conn, err := pgx.Connect(ctx, i.source.URL("many"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	const beat = time.Second * latencyClients / isolationRate
	for due := beat * time.Duration(client) / latencyClients; ; due += beat {
		select {
		case <-time.After(time.Until(i.begin.Add(due))):
		case <-i.over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		id := i.last.Add(1)
		if _, err := conn.Exec(ctx, fmt.Sprintf("INSERT INTO t%d VALUES ($1, 'a row of a usual length, more or less')", 1+id%isolationTables), id); err != nil {
			return err
		}
		i.ticks.mu.Lock()
		i.ticks.committed[id] = time.Since(i.begin)
		i.ticks.mu.Unlock()
	}
}

// look returns the ids from one on that the sink shows, and those of the table in trouble, for which nobody waits.
func (i *isolation) look(ctx context.Context, conn *pgx.Conn, from int64) ([]int64, error) {
	var arms []string
	for t := 1; t < isolationTables; t++ {
		arms = append(arms, fmt.Sprintf("SELECT id FROM t%d WHERE id >= $1", t))
	}
	rows, err := conn.Query(ctx, strings.Join(arms, " UNION ALL "), from)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for id := from; id <= i.last.Load(); id++ {
		if isTroubled(id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// trouble goes through the phases, and notes when each ended.
func (i *isolation) trouble(ctx context.Context) error {
	for _, phase := range []func(context.Context) error{i.nothing, i.refuse, i.mend, i.lock, i.resync, i.nothing} {
		enough := time.After(isolationTime)
		if err := phase(ctx); err != nil {
			return err
		}
		select {
		case <-enough:
		case <-ctx.Done():
			return ctx.Err()
		}
		i.ends = append(i.ends, time.Since(i.begin))
	}
	return nil
}

func (i *isolation) nothing(context.Context) error { return nil }

// refuse has the destination refuse rows, until the table is paused.
func (i *isolation) refuse(ctx context.Context) error {
	if err := execute(ctx, i.sink, "many", "ALTER TABLE "+troubled+" ADD CONSTRAINT refused CHECK (id < 0) NOT VALID"); err != nil {
		return err
	}
	if !i.mirror.Log.Await("table is paused", time.Minute) {
		return errors.New("the table is not paused though its rows are refused")
	}
	return nil
}

// mend lets the table catch up.
func (i *isolation) mend(ctx context.Context) error {
	if err := execute(ctx, i.sink, "many", "ALTER TABLE "+troubled+" DROP CONSTRAINT refused"); err != nil {
		return err
	}
	return i.command("resume")
}

// lock holds a lock on the destination for the phase.
func (i *isolation) lock(ctx context.Context) error {
	return execute(ctx, i.sink, "many", fmt.Sprintf("BEGIN; LOCK TABLE %s IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(%f); COMMIT", troubled, isolationTime.Seconds()))
}

// resync copies the table anew, again and again.
func (i *isolation) resync(context.Context) error {
	for enough := time.Now().Add(isolationTime); time.Now().Before(enough); {
		if err := i.command("resync"); err != nil {
			return err
		}
	}
	return nil
}

// command gives a command for the table and waits until it is done.
func (i *isolation) command(name string) error {
	p, err := process.Start(filepath.Dir(i.config), i.program, name, i.config, troubled)
	if err != nil {
		return err
	}
	code, err := p.Wait(2 * time.Minute)
	if err == nil && code != 0 {
		err = fmt.Errorf("sluice %s: exit code %d: %s", name, code, p.Log.Tail(5))
	}
	return err
}

// report gives each row to the phase in which it was committed.
func (i *isolation) report() {
	waits := make([][]float64, len(isolationPhases))
	for id, at := range i.ticks.committed {
		phase := 0
		for phase < len(i.ends)-1 && at > i.ends[phase] {
			phase++
		}
		if !isTroubled(id) && at >= latencyWarm {
			waits[phase] = append(waits[phase], max(0, i.ticks.seen[id]-at).Seconds()*1000)
		}
	}
	for p, phase := range isolationPhases {
		name := "isolation " + phase + " "
		i.bench.report.value(name+"p50", percentile(waits[p], 0.5))
		i.bench.report.value(name+"p99", percentile(waits[p], 0.99))
		i.bench.report.value(name+"longest", percentile(waits[p], 1))
		i.bench.report.value(name+"rows", float64(len(waits[p])))
	}
}
