package main

import (
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/internal/testdb"
)

// execute runs statements on a database of a server, several at once if they are joined by semicolons.
func execute(ctx context.Context, server *testdb.Postgres, database, sql string) error {
	conn, err := pgx.Connect(ctx, server.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return fmt.Errorf("%w, in %.100s", err, sql)
	}
	return nil
}

func queryText(ctx context.Context, server *testdb.Postgres, database, sql string) (string, error) {
	conn, err := pgx.Connect(ctx, server.URL(database))
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var s string
	if err := conn.QueryRow(ctx, sql).Scan(&s); err != nil {
		return "", fmt.Errorf("%w, in %.100s", err, sql)
	}
	return s, nil
}

// recreate makes a database anew.
func recreate(ctx context.Context, server *testdb.Postgres, database string) error {
	if err := execute(ctx, server, "postgres", "DROP DATABASE IF EXISTS "+database+" WITH (FORCE)"); err != nil {
		return err
	}
	return execute(ctx, server, "postgres", "CREATE DATABASE "+database)
}

// settle writes out what earlier work left behind, so that it does not count against the next.
func (b *bench) settle(ctx context.Context) error {
	for _, server := range []*testdb.Postgres{b.source, b.sink} {
		if err := execute(ctx, server, "postgres", "CHECKPOINT"); err != nil {
			return err
		}
	}
	return nil
}

// until asks every few milliseconds whether a query on the sink or the source returns true.
func until(ctx context.Context, server *testdb.Postgres, database, sql string) error {
	conn, err := pgx.Connect(ctx, server.URL(database))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var met bool
		if err := conn.QueryRow(ctx, sql).Scan(&met); err != nil || met {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// connections returns the most connections of the mirror to a database that were seen until ctx ended.
func connections(ctx context.Context, server *testdb.Postgres, database string) (most int, err error) {
	conn, err := pgx.Connect(context.WithoutCancel(ctx), server.URL("postgres"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var n int
		err := conn.QueryRow(context.WithoutCancel(ctx), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = $1 AND application_name LIKE 'sluice%' AND backend_type <> 'parallel worker'`, database).Scan(&n)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
		select {
		case <-ctx.Done():
			return most, nil
		case <-tick.C:
		}
	}
}

// equal fails if a table is not the same on both sides: a figure for wrong work is worth nothing.
func (b *bench) equal(ctx context.Context, source, sink string) error {
	p, err := testdb.NewPair(ctx, b.source.URL(source), b.sink.URL(sink))
	if err != nil {
		return err
	}
	defer p.Close()
	diff, err := p.Compare(ctx, "public.bench", "public.bench")
	if err == nil && diff != "" {
		err = fmt.Errorf("the sides differ: %s", diff)
	}
	return err
}

// shell runs a command line and returns how long it took.
func shell(ctx context.Context, line string) (time.Duration, error) {
	begin := time.Now()
	out, err := exec.CommandContext(ctx, "bash", "-o", "pipefail", "-c", line).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w: %s: %s", err, line, out)
	}
	return time.Since(begin), nil
}
