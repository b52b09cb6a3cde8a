package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/test/process"
)

// smallSQL is a procedure that makes transactions of one row each, in so many tables in turn.
const smallSQL = `
	CREATE PROCEDURE make_small(tables int, n bigint) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			EXECUTE format('INSERT INTO small%s VALUES ($1, $2)', i % tables) USING i, md5(i::text);
			COMMIT;
		END LOOP;
	END $$`

const smallChanges = 60_000

// measureFile drains a backlog of small transactions of few and of many tables into a SQLite file.
func (b *bench) measureFile(ctx context.Context) error {
	for range b.n {
		for _, tables := range []int{1, 10, 100} {
			if err := b.drainSmall(ctx, tables); err != nil {
				return err
			}
		}
	}
	for _, tables := range []int{1, 10, 100} {
		b.report.note(fmt.Sprintf("Into a SQLite file, %d transactions of one row in %d tables: %s.",
			smallChanges, tables, b.report.spread(fmt.Sprintf("file %d tables", tables), "changes/s")))
	}
	return nil
}

func (b *bench) drainSmall(ctx context.Context, tables int) error {
	if err := recreate(ctx, b.source, "small"); err != nil {
		return err
	}
	create := ""
	for i := range tables {
		create += fmt.Sprintf("CREATE TABLE small%d (id bigint PRIMARY KEY, v text);", i)
	}
	for _, sql := range []string{create, smallSQL, "ALTER DATABASE small SET synchronous_commit = off"} {
		if err := execute(ctx, b.source, "small", sql); err != nil {
			return err
		}
	}
	config := process.Config{Name: "small", Source: b.source.URL("small"), SinkFile: filepath.Join(b.dir, "small", "small.db"), Mirror: "tables: {include: [\"public.*\"]}"}
	if _, _, err := b.runOnce(ctx, config); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "small", fmt.Sprintf("CALL make_small(%d, %d)", tables, smallChanges)); err != nil {
		return err
	}
	_, took, err := b.runOnce(ctx, config)
	if err != nil {
		return err
	}
	b.report.value(fmt.Sprintf("file %d tables", tables), smallChanges/took.Seconds())
	return b.forget(ctx, "small", "small")
}

// measureJoin has a large table join while a small one is written, and measures how late the small one's changes are in
// the sink, and for how long another program cannot lock a SQLite file.
func (b *bench) measureJoin(ctx context.Context) error {
	for range b.n {
		for _, kind := range []string{"sqlite", "postgres"} {
			if err := b.joinBeside(ctx, kind); err != nil {
				return err
			}
		}
	}
	for _, kind := range []string{"sqlite", "postgres"} {
		b.report.limit("longest lag of a table while a large one joins, "+kind, "join lag "+kind, "s", 1)
		b.report.note(fmt.Sprintf("Lag of a table with 100 changes a second while a table of %d rows joins, %s: p50 %s, p99 %s.", b.rows, kind,
			b.report.spread("join lag p50 "+kind, "s"), b.report.spread("join lag p99 "+kind, "s")))
	}
	b.report.note("Longest time for which another program cannot lock the file meanwhile: " + b.report.spread("join lock", "s") + ".")
	return nil
}

func (b *bench) joinBeside(ctx context.Context, kind string) error {
	if err := recreate(ctx, b.source, "joined"); err != nil {
		return err
	}
	for _, sql := range []string{"CREATE TABLE quick (id bigint PRIMARY KEY, v text)", tableSQL(b.rows)} {
		if err := execute(ctx, b.source, "joined", sql); err != nil {
			return err
		}
	}
	dir := filepath.Join(b.dir, "joined")
	config := process.Config{Name: "joined", Source: b.source.URL("joined"), Mirror: "tables: {include: [public.quick]}"}
	if kind == "sqlite" {
		config.SinkFile = filepath.Join(dir, "joined.db")
	} else {
		if err := recreate(ctx, b.sink, "joined"); err != nil {
			return err
		}
		config.Sink = b.sink.URL("joined")
	}
	if _, _, err := b.runOnce(ctx, config); err != nil {
		return err
	}
	config.Mirror = "tables: {include: [\"public.*\"]}"
	path, err := config.Write(dir)
	if err != nil {
		return err
	}
	p, err := process.Start(dir, b.program, "run", path, "--log-format", "text")
	if err != nil {
		return err
	}
	defer p.Kill()
	watched, stop := context.WithCancel(ctx)
	defer stop()
	g, watched := errgroup.WithContext(watched)
	q := &quick{commits: make(chan time.Time, 10_000)}
	g.Go(func() error { return q.write(watched, b.source.URL("joined")) })
	g.Go(func() error { return q.read(watched, config) })
	if kind == "sqlite" {
		g.Go(func() error {
			longest, err := probeLock(watched, config.SinkFile)
			b.report.seconds("join lock", longest)
			return err
		})
	}
	joined := p.Log.Await("table is streaming\" mirror=joined table=public.bench", 10*time.Minute)
	stop()
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if !joined {
		return fmt.Errorf("the table does not join\n%s", p.Log.Tail(20))
	}
	lags := q.lags
	slices.Sort(lags)
	b.report.seconds("join lag p50 "+kind, lags[len(lags)/2])
	b.report.seconds("join lag p99 "+kind, lags[len(lags)*99/100])
	b.report.seconds("join lag "+kind, lags[len(lags)-1])
	if _, err := p.Stop(time.Minute); err != nil {
		return err
	}
	return b.forget(ctx, "joined", "joined")
}

// quick is a table with a row each 10 ms, and how long each took from its commit until a reader of the sink saw it.
type quick struct {
	commits   chan time.Time // of the rows in order, from the writer to the reader
	committed []time.Time
	lags      []time.Duration
}

func (q *quick) write(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for id := 0; ; id++ {
		if _, err := conn.Exec(ctx, "INSERT INTO quick VALUES ($1, 'v')", id); err != nil {
			return err
		}
		select {
		case q.commits <- time.Now():
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *quick) read(ctx context.Context, c process.Config) error {
	count, closeSink, err := counter(ctx, c)
	if err != nil {
		return err
	}
	defer closeSink()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for seen := 0; ; {
		n, err := count()
		if err != nil {
			return err
		}
		now := time.Now()
		for len(q.commits) > 0 {
			q.committed = append(q.committed, <-q.commits)
		}
		for ; seen < min(n, len(q.committed)); seen++ {
			q.lags = append(q.lags, now.Sub(q.committed[seen]))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// counter returns what counts the rows of quick in a sink.
func counter(ctx context.Context, c process.Config) (count func() (int, error), closeSink func(), err error) {
	const sql = "SELECT count(*) FROM quick"
	if c.SinkFile == "" {
		conn, err := pgx.Connect(ctx, c.Sink)
		if err != nil {
			return nil, nil, err
		}
		return func() (n int, err error) { return n, conn.QueryRow(ctx, sql).Scan(&n) }, func() { conn.Close(context.Background()) }, nil
	}
	conn, err := sqlite.OpenConn(c.SinkFile, sqlite.OpenReadOnly)
	if err != nil {
		return nil, nil, err
	}
	return func() (n int, err error) {
		err = sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{ResultFunc: func(s *sqlite.Stmt) error { n = s.ColumnInt(0); return nil }})
		return n, err
	}, func() { conn.Close() }, nil
}

// probeLock tries to lock a file again and again and returns the longest time for which it could not.
func probeLock(ctx context.Context, path string) (longest time.Duration, err error) {
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetBusyTimeout(0)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for free := time.Now(); ; {
		switch err := sqlitex.ExecuteTransient(conn, "BEGIN IMMEDIATE", nil); {
		case err == nil:
			longest, free = max(longest, time.Since(free)), time.Now()
			if err := sqlitex.ExecuteTransient(conn, "ROLLBACK", nil); err != nil {
				return longest, err
			}
		case sqlite.ErrCode(err).ToPrimary() != sqlite.ResultBusy:
			return longest, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return longest, nil
		}
	}
}
