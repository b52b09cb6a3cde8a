package main

import (
	"context"
	"fmt"
	"time"
)

// baseRows are in the table before the changes.
const baseRows = 800_000

// changesSQL is a procedure that makes n changes, half of them inserts, a third updates, the rest deletes, each in a
// transaction of its own or all in one; from is where they go on.
const changesSQL = `
	CREATE PROCEDURE make_changes(at bigint, n bigint, single boolean) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN at .. at + n - 1 LOOP
			CASE i % 6
			WHEN 0, 2, 4 THEN
				INSERT INTO bench VALUES (10000000 + i, i % 50000, i / 100.0, timestamptz '2024-01-01 00:00+00' + i * interval '1 second', 'new', md5(i::text), false);
			WHEN 1, 3 THEN
				UPDATE bench SET status = 'sent', amount = i / 100.0 WHERE id = 1 + (i::bigint * 7919) % 400000;
			ELSE
				DELETE FROM bench WHERE id = 400001 + i / 6;
			END CASE;
			IF single THEN COMMIT; END IF;
		END LOOP;
	END $$`

// prepareChanges makes the source anew, lets start open what is to follow its log, and makes the changes.
func (b *bench) prepareChanges(ctx context.Context, start func(context.Context) error) error {
	if err := recreate(ctx, b.source, "streamed"); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "streamed", tableSQL(baseRows)); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "streamed", changesSQL); err != nil {
		return err
	}
	if err := start(ctx); err != nil {
		return err
	}
	half := b.changes / 2
	if err := execute(ctx, b.source, "streamed", fmt.Sprintf("SET synchronous_commit = off; CALL make_changes(0, %d, false)", half)); err != nil {
		return err
	}
	// A procedure that commits cannot stand beside another statement.
	if err := execute(ctx, b.source, "streamed", "ALTER DATABASE streamed SET synchronous_commit = off"); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "streamed", fmt.Sprintf("CALL make_changes(%d, %d, true)", half, b.changes-half)); err != nil {
		return err
	}
	if err := execute(ctx, b.source, "streamed", "ALTER DATABASE streamed RESET synchronous_commit"); err != nil {
		return err
	}
	return b.settle(ctx)
}

func (b *bench) measureStream(ctx context.Context) error {
	for i := range b.n {
		if err := b.streamRound(ctx, i%2 == 0); err != nil {
			return err
		}
	}
	b.report.add("backlog of changes", "CREATE SUBSCRIPTION", "stream native", "stream sluice", "≥ 1.2 × its rate", atLeast(1.2))
	b.report.noise("stream native", "stream native again")
	b.report.limit("our CPU per change", "stream CPU", "µs", 3)
	b.report.limit("peak memory of a stream", "stream memory", "MiB", 150)
	return nil
}

// streamRound lets two native subscriptions and the mirror drain the same changes, one after the other.
func (b *bench) streamRound(ctx context.Context, nativeFirst bool) error {
	subscriptions := []string{"native", "native_again"}
	err := b.prepareChanges(ctx, func(ctx context.Context) error {
		if err := execute(ctx, b.source, "streamed", "CREATE PUBLICATION native FOR TABLE bench"); err != nil {
			return err
		}
		for _, s := range subscriptions {
			if err := b.subscribe(ctx, s); err != nil {
				return err
			}
		}
		if err := recreate(ctx, b.sink, "streamed"); err != nil {
			return err
		}
		_, _, err := b.once(ctx, "streamed", "streamed", "stream")
		return err
	})
	if err != nil {
		return err
	}
	drains := []func(context.Context) error{
		func(ctx context.Context) error { return b.drainNative(ctx, "native", "stream native") },
		func(ctx context.Context) error { return b.drainNative(ctx, "native_again", "stream native again") },
		b.drainSluice,
	}
	if !nativeFirst {
		drains[0], drains[2] = drains[2], drains[0]
	}
	for _, drain := range drains {
		if err := b.settle(ctx); err != nil {
			return err
		}
		if err := drain(ctx); err != nil {
			return err
		}
	}
	for _, s := range subscriptions {
		if err := execute(ctx, b.sink, s, "DROP SUBSCRIPTION s"); err != nil {
			return err
		}
	}
	return b.forget(ctx, "streamed", "stream")
}

// subscribe fills a database of this name with what the source holds now and makes a subscription in it that waits.
func (b *bench) subscribe(ctx context.Context, name string) error {
	if err := recreate(ctx, b.sink, name); err != nil {
		return err
	}
	if err := execute(ctx, b.sink, name, tableSQL(baseRows)); err != nil {
		return err
	}
	return execute(ctx, b.sink, name, fmt.Sprintf(
		"CREATE SUBSCRIPTION s CONNECTION '%s' PUBLICATION native WITH (copy_data = false, enabled = false, slot_name = %s)",
		b.source.URL("streamed"), name))
}

func (b *bench) drainNative(ctx context.Context, name, figure string) error {
	end, err := queryText(ctx, b.source, "streamed", "SELECT pg_current_wal_lsn()::text")
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := execute(ctx, b.sink, name, "ALTER SUBSCRIPTION s ENABLE"); err != nil {
		return err
	}
	err = until(ctx, b.source, "streamed", fmt.Sprintf("SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots WHERE slot_name = '%s'", end, name))
	if err != nil {
		return err
	}
	b.report.seconds(figure, time.Since(begin))
	return b.equal(ctx, "streamed", name)
}

func (b *bench) drainSluice(ctx context.Context) error {
	p, took, err := b.once(ctx, "streamed", "streamed", "stream")
	if err != nil {
		return err
	}
	b.report.seconds("stream sluice", took)
	b.report.value("stream CPU", float64(p.CPU().Microseconds())/float64(b.changes))
	b.report.value("stream memory", float64(p.PeakMemoryAtExit())/(1<<20))
	return b.equal(ctx, "streamed", "streamed")
}
