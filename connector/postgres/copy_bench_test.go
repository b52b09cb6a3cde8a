package postgres

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
)

// BenchmarkCopyTable reads a table of 7 columns from the server, whole. Beside the time it shows our own CPU time.
func BenchmarkCopyTable(b *testing.B) {
	const rows = 500_000
	src, _ := openTestSource(b, `CREATE TABLE t (id bigint PRIMARY KEY, a int, b text, c numeric, d timestamptz, e bool, f text);
		INSERT INTO t SELECT n, n % 1000, 'some text of a row', n / 7.0, now(), n % 2 = 0, md5(n::text) FROM generate_series(1, 500000) n; ANALYZE t`)
	snap := mustSnapshot(b, src, discover(b, src)["public.t"])
	defer snap.Close()
	chunks := mustChunks(b, snap, 10*rows)
	cpu := ownTime(b)
	for b.Loop() {
		if n := drain(b, snap, chunks[0]); n != rows {
			b.Fatalf("%d rows", n)
		}
	}
	b.ReportMetric(float64((ownTime(b)-cpu).Nanoseconds())/float64(b.N)/rows, "cpu-ns/row")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
}

func drain(b *testing.B, snap connector.Snapshot, c connector.Chunk) int {
	r, err := snap.Read(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	n := 0
	for {
		rows, err := r.Next(b.Context())
		if err == io.EOF {
			return n
		}
		if err != nil {
			b.Fatal(err)
		}
		n += rows.Len()
		rows.Release()
	}
}

// ownTime is the CPU time that this process has used.
func ownTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
