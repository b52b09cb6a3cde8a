package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/postgres"
	"github.com/sluicehq/sluice/schema"
)

func (b *bench) measureRead(ctx context.Context) error {
	for i := range b.n {
		if err := b.readRound(ctx, i%2 == 0); err != nil {
			return err
		}
	}
	b.report.add("reading alone", "pg_recvlogical to /dev/null", "read native", "read sluice", "≥ 1.2 × its rate", atLeast(1.2))
	b.report.noise("read native", "read native again")
	b.report.limit("our CPU per change, reading alone", "read CPU", "µs", 3)
	return nil
}

// readRound lets pg_recvlogical twice and our reader read the same changes, one after the other.
func (b *bench) readRound(ctx context.Context, nativeFirst bool) error {
	slots := []string{"read_native", "read_native_again"}
	reader := &reader{bench: b}
	defer reader.close()
	err := b.prepareChanges(ctx, func(ctx context.Context) error {
		if err := execute(ctx, b.source, "streamed", "CREATE PUBLICATION native FOR TABLE bench"); err != nil {
			return err
		}
		for _, s := range slots {
			if err := execute(ctx, b.source, "streamed", "SELECT pg_create_logical_replication_slot('"+s+"', 'pgoutput')"); err != nil {
				return err
			}
		}
		return reader.open(ctx)
	})
	if err != nil {
		return err
	}
	reads := []func(context.Context) error{
		func(ctx context.Context) error { return b.recvlogical(ctx, slots[0], "read native") },
		func(ctx context.Context) error { return b.recvlogical(ctx, slots[1], "read native again") },
		reader.measure,
	}
	if !nativeFirst {
		reads[0], reads[2] = reads[2], reads[0]
	}
	for _, read := range reads {
		if err := b.settle(ctx); err != nil {
			return err
		}
		if err := read(ctx); err != nil {
			return err
		}
	}
	for _, s := range slots {
		if err := execute(ctx, b.source, "streamed", "SELECT pg_drop_replication_slot('"+s+"')"); err != nil {
			return err
		}
	}
	reader.close()
	return b.forget(ctx, "streamed", "read")
}

func (b *bench) recvlogical(ctx context.Context, slot, figure string) error {
	program, err := b.source.Program("pg_recvlogical")
	if err != nil {
		return err
	}
	// The end must be one that the log has passed: the position of a message written for it.
	end, err := queryText(ctx, b.source, "streamed", "SELECT pg_logical_emit_message(true, 'bench', 'end')::text")
	if err != nil {
		return err
	}
	took, err := shell(ctx, fmt.Sprintf("%s -d '%s' --slot %s --start --no-loop --endpos %s -o proto_version=1 -o publication_names=native -f /dev/null",
		program, b.source.URL("streamed"), slot, end))
	b.report.seconds(figure, took)
	return err
}

// reader is our reader of the change stream without anything behind it.
type reader struct {
	*bench
	source *postgres.Source
	table  *schema.Table
	log    string
	from   connector.Positions
}

// open makes the slot, notes where it begins and lets go of it.
func (r *reader) open(ctx context.Context) error {
	config := postgres.NewConfig().(*postgres.Config)
	config.URL = r.bench.source.URL("streamed")
	env := connector.Env{Mirror: "read", ID: "read", Dir: r.dir, Log: slog.New(slog.DiscardHandler), Alloc: memory.DefaultAllocator}
	var err error
	if r.source, err = postgres.OpenSource(ctx, config, env); err != nil {
		return err
	}
	tables, err := r.source.Tables(ctx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if t.Name.Table == "bench" {
			r.table, r.log = t, t.Log
		}
	}
	if r.table == nil {
		return errors.New("the source does not list the table bench")
	}
	stream, err := r.source.Stream(ctx, r.log, nil)
	if err != nil {
		return err
	}
	r.from, err = stream.Add(ctx, r.table)
	return errors.Join(err, stream.Close())
}

func (r *reader) close() {
	if r.source != nil {
		_ = r.source.Close()
		r.source = nil
	}
}

func (r *reader) measure(ctx context.Context) error {
	head, err := r.source.Head(ctx, r.log)
	if err != nil {
		return err
	}
	before, begin := cpu(), time.Now()
	stream, err := r.source.Stream(ctx, r.log, r.from)
	if err != nil {
		return err
	}
	rows, err := r.drain(ctx, stream, head)
	took := time.Since(begin)
	if err := errors.Join(err, stream.Close()); err != nil {
		return err
	}
	if rows != r.changes {
		return fmt.Errorf("%d changes were read, of %d", rows, r.changes)
	}
	r.report.seconds("read sluice", took)
	r.report.value("read CPU", float64((cpu()-before).Microseconds())/float64(rows))
	return nil
}

// drain reads up to head and returns how many row messages came.
func (r *reader) drain(ctx context.Context, stream connector.Stream, head connector.Positions) (rows int, err error) {
	if _, err := stream.Add(ctx, r.table); err != nil {
		return 0, err
	}
	for {
		event, err := stream.Next(ctx)
		if err != nil {
			return rows, err
		}
		switch e := event.(type) {
		case *connector.Frames:
			for _, c := range e.Commits {
				rows += c.Rows
			}
		case *connector.Progress:
			order, err := r.source.Compare(e.UpTo[""], head[""])
			if err != nil || order >= 0 {
				return rows, err
			}
		}
	}
}

// cpu is the processor time of this process so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
