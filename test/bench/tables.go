package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/test/process"
)

const (
	growthRows    = 500_000 // copied, over all tables
	growthChanges = 100_000 // streamed, over all tables
)

// growthTables are the numbers of tables that the same rows and changes are spread over.
var growthTables = []int{1, 10, 100, 500}

// measureTables shows what grows with the number of tables when the work does not.
func (b *bench) measureTables(ctx context.Context) error {
	for _, n := range growthTables {
		for range b.n {
			if err := b.tablesRound(ctx, n); err != nil {
				return fmt.Errorf("%d tables: %w", n, err)
			}
		}
	}
	b.report.growth = append(b.report.growth, "| tables | copy | stream, changes/s | peak memory: copy, stream | connections: source, sink |", "|---|---|---|---|---|")
	for _, n := range growthTables {
		figure := func(name string) float64 { return median(b.report.values[tablesFigure(n, name)]) }
		b.report.growth = append(b.report.growth, fmt.Sprintf("| %d | %.1f s | %.0f | %.0f MiB, %.0f MiB | %.0f, %.0f |",
			n, figure("copy"), growthChanges/figure("stream"), figure("copy memory"), figure("stream memory"), figure("source"), figure("sink")))
	}
	return nil
}

func tablesFigure(n int, name string) string { return fmt.Sprintf("%d tables %s", n, name) }

func (b *bench) tablesRound(ctx context.Context, n int) error {
	if err := errors.Join(recreate(ctx, b.source, "many"), recreate(ctx, b.sink, "many")); err != nil {
		return err
	}
	err := execute(ctx, b.source, "many", fmt.Sprintf(`DO $$ BEGIN FOR t IN 1 .. %d LOOP
		EXECUTE format('CREATE TABLE t%%s (id int PRIMARY KEY, amount numeric, note text)', t);
		EXECUTE format('INSERT INTO t%%s SELECT i, i / 100.0, md5(i::text) FROM generate_series(1, %d) i', t);
		END LOOP; END $$; ANALYZE`, n, growthRows/n))
	if err != nil {
		return err
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	if err := b.tablesRun(ctx, n, "copy"); err != nil {
		return err
	}
	// A hundred updates a transaction, the tables in turn.
	err = execute(ctx, b.source, "many", fmt.Sprintf(`CREATE PROCEDURE change() LANGUAGE plpgsql AS $$ BEGIN
		FOR c IN 0 .. %d LOOP
			EXECUTE format('UPDATE t%%s SET amount = -$1 WHERE id = 1 + $1 %%%% %d', 1 + c %% %[3]d) USING c;
			IF c %% 100 = 99 THEN COMMIT; END IF;
		END LOOP; END $$`, growthChanges-1, growthRows/n, n))
	if err == nil {
		err = execute(ctx, b.source, "many", "CALL change()")
	}
	if err == nil {
		err = b.settle(ctx)
	}
	if err == nil {
		err = b.tablesRun(ctx, n, "stream")
	}
	if err != nil {
		return err
	}
	return b.forget(ctx, "many", "many")
}

// tablesRun runs the mirror to its end and watches its connections meanwhile.
func (b *bench) tablesRun(ctx context.Context, n int, work string) error {
	var p *process.Process
	var took time.Duration
	watching, stop := context.WithCancel(ctx)
	defer stop()
	g, _ := errgroup.WithContext(ctx)
	var atSource, atSink int
	g.Go(func() (err error) { atSource, err = connections(watching, b.source, "many"); return err })
	g.Go(func() (err error) { atSink, err = connections(watching, b.sink, "many"); return err })
	g.Go(func() (err error) {
		defer stop()
		p, took, err = b.runOnce(ctx, process.Config{
			Name: "many", Source: b.source.URL("many"), Sink: b.sink.URL("many"), Mirror: "tables: {include: [\"public.*\"]}",
		})
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	b.report.seconds(tablesFigure(n, work), took)
	b.report.value(tablesFigure(n, work+" memory"), float64(p.PeakMemoryAtExit())/(1<<20))
	if work == "copy" {
		b.report.value(tablesFigure(n, "source"), float64(atSource))
		b.report.value(tablesFigure(n, "sink"), float64(atSink))
	}
	differing, err := b.differing(ctx, n)
	if err == nil && differing != "" {
		err = fmt.Errorf("table %s differs after the %s", differing, work)
	}
	return err
}

// differing returns the first of the tables that is not the same on both sides, judged by a hash of its rows.
func (b *bench) differing(ctx context.Context, n int) (string, error) {
	for t := 1; t <= n; t++ {
		query := fmt.Sprintf("SELECT count(*) || ' ' || coalesce(sum(hashtext(x::text)::bigint), 0) FROM t%d x", t)
		want, err := queryText(ctx, b.source, "many", query)
		if err != nil {
			return "", err
		}
		got, err := queryText(ctx, b.sink, "many", query)
		if err != nil {
			return "", err
		}
		if got != want {
			return fmt.Sprintf("t%d", t), nil
		}
	}
	return "", nil
}
