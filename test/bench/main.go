// Command bench measures the built command beside yardsticks that run in the same minutes on the same servers, and writes
// the figures as ratios to docs/benchmarks.md.
//
//	go run ./test/bench -n 3
//
// It starts two servers of its own in temporary folders.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

// settings of both servers. Durability is on, as it is where data matters; what single sessions change is said in the report.
var settings = []string{
	"fsync=on", "synchronous_commit=on", "shared_buffers=512MB", "maintenance_work_mem=256MB", "max_wal_size=8GB",
	"checkpoint_timeout=30min", "logical_decoding_work_mem=64MB", "autovacuum=off", "wal_sender_timeout=60s",
	"wal_retrieve_retry_interval=10ms", // a subscription that is switched on starts at once, not up to 5 s later
}

// bench is what every measurement needs.
type bench struct {
	n             int // rounds; figures are medians over them
	rows, changes int
	source, sink  *testdb.Postgres
	program       string // the built command
	dir           string // temporary
	load          string // of the machine at the start
	report        report
}

func main() {
	b := &bench{}
	flag.IntVar(&b.n, "n", 3, "rounds")
	flag.IntVar(&b.rows, "rows", 2_000_000, "rows to copy")
	flag.IntVar(&b.changes, "changes", 600_000, "changes to stream")
	only := flag.String("only", "", "copy, stream, read, latency, tables, file, join or isolation: measure only this, and write nothing to docs")
	flag.StringVar(&b.program, "program", "", "the built command; by default it is built from this source")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := b.run(ctx, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context, only string) (err error) {
	if b.dir, err = os.MkdirTemp("", "sluice-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	b.load = load()
	if b.program == "" {
		if b.program, err = process.Build(b.dir); err != nil {
			return err
		}
	}
	for _, server := range []**testdb.Postgres{&b.source, &b.sink} {
		if *server, err = testdb.StartPostgres(settings...); err != nil {
			return err
		}
		defer (*server).Remove()
	}
	parts := []struct {
		name    string
		measure func(context.Context) error
	}{
		{"copy", b.measureCopy}, {"stream", b.measureStream}, {"read", b.measureRead}, {"latency", b.measureLatency},
		{"tables", b.measureTables}, {"file", b.measureFile}, {"join", b.measureJoin},
		{"isolation", b.measureIsolation},
	}
	for _, p := range parts {
		if only != "" && only != p.name {
			continue
		}
		if err := p.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	text, err := b.text(ctx)
	if err != nil {
		return err
	}
	fmt.Print(text)
	if only != "" {
		return nil
	}
	return os.WriteFile(filepath.Join("docs", "benchmarks.md"), []byte(text), 0o644)
}
