package lane

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
)

// benchItem is frames of so many transactions of one row of 100 bytes.
func benchItem(rows int) Item {
	row := string(bytes.Repeat([]byte("x"), 96))
	it := change(1, table1(1), row)
	for i := 1; i < rows; i++ {
		more := change(i+1, table1(1), row)
		it.Frames.Data = append(it.Frames.Data, more.Frames.Data...)
		it.Frames.Commits = append(it.Frames.Commits, more.Frames.Commits...)
		it.Frames.Commits[i].Position = connector.Position(fmt.Sprintf("7312345678901234567/00000001/0000001A/%08X", i*200))
	}
	return it
}

// BenchmarkSpool writes frames to the spool and reads them back, without forcing them to disk.
func BenchmarkSpool(b *testing.B) {
	for _, rows := range []int{1, 10, 1000} {
		it := benchItem(rows)
		b.Run(fmt.Sprintf("append/rows=%d", rows), func(b *testing.B) {
			_, l := openSpool(b, b.TempDir(), nil, Limits{Max: 1 << 40})
			l.budget.max = 0
			benchRows(b, it, rows)
			for b.Loop() {
				if err := l.Append(it); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("read/rows=%d", rows), func(b *testing.B) {
			s, l := openSpool(b, b.TempDir(), nil, Limits{Max: 1 << 40})
			benchRows(b, it, rows)
			for range b.N {
				if err := l.Append(it); err != nil {
					b.Fatal(err)
				}
				s.relieve()
			}
			b.ResetTimer()
			for !l.Empty() {
				if _, err := l.Take(10_000, 16<<20, time.Minute); err != nil {
					b.Fatal(err)
				}
				l.Done()
			}
		})
	}
}

func benchRows(b *testing.B, it Item, rows int) {
	b.SetBytes(int64(len(it.Frames.Data)))
	b.ReportAllocs()
	b.Cleanup(func() { b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*rows), "ns/row") })
}
