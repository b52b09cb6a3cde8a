package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/sluicehq/sluice/test/process"
)

const columns = "id bigint NOT NULL, customer int, amount numeric(12,2), made timestamptz, status text, note text, paid boolean"

// tableSQL makes the table of all measurements with its first rows.
func tableSQL(rows int) string {
	return fmt.Sprintf(`CREATE TABLE bench (%s);
		INSERT INTO bench SELECT i, i %% 50000, (i %% 1000000) / 100.0, timestamptz '2024-01-01 00:00+00' + i * interval '1 second',
			(ARRAY['new', 'paid', 'sent', 'returned'])[1 + i %% 4], md5(i::text), i %% 3 = 0 FROM generate_series(1, %d) i;
		ALTER TABLE bench ADD PRIMARY KEY (id); ANALYZE bench`, columns, rows)
}

func (b *bench) measureCopy(ctx context.Context) error {
	if err := recreate(ctx, b.source, "copied"); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "copied", tableSQL(b.rows)); err != nil {
		return err
	}
	for range b.n {
		for _, m := range []func(context.Context) error{b.copyByPipe, b.copyByPipeAgain, b.copyBySluice, b.copyByPgcopydb} {
			if err := recreate(ctx, b.sink, "copied"); err != nil {
				return err
			}
			if err := b.settle(ctx); err != nil {
				return err
			}
			if err := m(ctx); err != nil {
				return err
			}
		}
	}
	b.report.add("copy of rows", `psql COPY binary \| psql COPY binary, then ADD PRIMARY KEY`, "copy pipe", "copy sluice", "≤ 1.05 × its time", atMost(1.05))
	if b.report.has("copy pgcopydb") {
		b.report.add("copy of rows", "pgcopydb clone", "copy pgcopydb", "copy sluice", "≤ 0.6 × its time", atMost(0.6))
	} else {
		b.report.note("pgcopydb is not installed.")
	}
	b.report.noise("copy pipe", "copy pipe again")
	b.report.limit("our CPU per copied row", "copy CPU", "µs", 1)
	b.report.limit("peak memory of a copy", "copy memory", "MiB", 150)
	return nil
}

func (b *bench) copyByPipe(ctx context.Context) error { return b.pipe(ctx, "copy pipe") }

func (b *bench) copyByPipeAgain(ctx context.Context) error { return b.pipe(ctx, "copy pipe again") }

func (b *bench) pipe(ctx context.Context, name string) error {
	psql, err := b.source.Program("psql")
	if err != nil {
		return err
	}
	if err := execute(ctx, b.sink, "copied", "CREATE TABLE bench ("+columns+")"); err != nil {
		return err
	}
	took, err := shell(ctx, fmt.Sprintf(`%[1]s -Xqc 'COPY bench TO STDOUT (FORMAT binary)' '%[2]s' | %[1]s -Xqc 'COPY bench FROM STDIN (FORMAT binary)' '%[3]s'
		%[1]s -Xqc 'ALTER TABLE bench ADD PRIMARY KEY (id)' '%[3]s'`, psql, b.source.URL("copied"), b.sink.URL("copied")))
	b.report.seconds(name, took)
	return err
}

func (b *bench) copyBySluice(ctx context.Context) error {
	p, took, err := b.once(ctx, "copied", "copied", "copy")
	if err != nil {
		return err
	}
	b.report.seconds("copy sluice", took)
	b.report.value("copy CPU", float64(p.CPU().Microseconds())/float64(b.rows))
	b.report.value("copy memory", float64(p.PeakMemoryAtExit())/(1<<20))
	if err := b.equal(ctx, "copied", "copied"); err != nil {
		return err
	}
	return b.forget(ctx, "copied", "copy")
}

// once runs `sluice run --once` from one database to another and returns the ended process and its time. The state of a
// name is kept between calls.
func (b *bench) once(ctx context.Context, source, sink, name string) (*process.Process, time.Duration, error) {
	return b.runOnce(ctx, process.Config{
		Name: name, Source: b.source.URL(source), Sink: b.sink.URL(sink), Mirror: "tables: {include: [public.bench]}",
	})
}

func (b *bench) runOnce(ctx context.Context, c process.Config) (*process.Process, time.Duration, error) {
	dir := b.dir + "/" + c.Name
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, 0, err
	}
	config, err := c.Write(dir)
	if err != nil {
		return nil, 0, err
	}
	begin := time.Now()
	p, err := process.Start(dir, b.program, "run", config, "--once")
	if err != nil {
		return nil, 0, err
	}
	select {
	case <-ctx.Done():
		p.Kill()
		return nil, 0, ctx.Err()
	case <-p.Exited():
	}
	if p.ExitCode() != 0 {
		return nil, 0, fmt.Errorf("sluice run --once: exit code %d\n%s", p.ExitCode(), p.Log.Tail(20))
	}
	return p, time.Since(begin), nil
}

// forget removes what a mirror left at its source, and its state.
func (b *bench) forget(ctx context.Context, source, name string) error {
	err := execute(ctx, b.source, source, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
		WHERE database = current_database() AND slot_name LIKE 'sluice%' AND NOT active`)
	if err == nil {
		err = dropPublications(ctx, b, source)
	}
	return errors.Join(err, os.RemoveAll(b.dir+"/"+name))
}

func dropPublications(ctx context.Context, b *bench, source string) error {
	return execute(ctx, b.source, source, `DO $$ DECLARE p text; BEGIN
		FOR p IN SELECT quote_ident(pubname) FROM pg_publication WHERE pubname LIKE 'sluice%' LOOP EXECUTE 'DROP PUBLICATION ' || p; END LOOP; END $$`)
}

func (b *bench) copyByPgcopydb(ctx context.Context) error {
	program, err := exec.LookPath("pgcopydb")
	if err != nil {
		return nil // the report says that it is not installed
	}
	took, err := shell(ctx, fmt.Sprintf("%s clone --not-consistent --skip-extensions --dir '%s/pgcopydb' --restart --source '%s' --target '%s'",
		program, b.dir, b.source.URL("copied"), b.sink.URL("copied")))
	b.report.seconds("copy pgcopydb", took)
	return err
}
