package view

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

var update = flag.Bool("update", false, "write the golden files")

var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// sample returns a frame of n tables in all states.
func sampleFrame(n int) *Frame {
	f := &Frame{
		Now: began.Add(3*time.Minute + 7*time.Second), Rates: map[schema.ID]float64{},
		Live: mirror.Live{
			State: mirror.Running, LagBytes: 9000,
			Status: mirror.Status{
				Mirror: "shop", Running: true, Since: began, Position: "7301/1/16B3748", Lag: 12400 * time.Millisecond, SpoolBytes: 5 << 20,
				RetainedBytes: 31 << 20, Source: mirror.Side{State: "reachable"}, Sink: mirror.Side{State: "reachable"},
			},
		},
	}
	for i := range n {
		t := mirror.TableStatus{Table: state.Table{
			ID: schema.ID(fmt.Sprint(i)), Name: schema.Name{Schema: "public", Table: fmt.Sprintf("table_%04d", i)}, Phase: string(mirror.Streaming),
			RowsEstimated: 2_000_000,
		}}
		t.RowsCopied, t.ChangesApplied = int64(2_000_000+i), int64(17*i)
		switch i {
		case 1:
			t.Phase, t.RowsCopied, t.Lag = string(mirror.Copying), 900_000, 12400*time.Millisecond
			f.Rates[t.ID] = 61_234
		case 2:
			t.Phase, t.Reason, t.Failures = string(mirror.Paused), "sink postgres: write rows, table public.table_0002, column total: numeric field overflow", 3
			t.Lag, t.LaneBytes = 75*time.Second, 3<<20
		case 4:
			t.Name.Table, t.Lag, t.LaneBytes = "a_name_that_is_as_long_as_postgresql_lets_a_name_be_which_is_63", 4100*time.Millisecond, 9000
			f.Rates[t.ID] = 812
		case 5:
			t.Name.Table = "大きなテーブル\x1b[31m\u202e"
			f.Rates[t.ID] = 3.5
		case 6:
			t.Phase, t.Reason, t.Lag, t.RowsCopied = string(mirror.Refused), "it has no primary key", -1, 0
		case 7:
			t.Phase, t.Reason = string(mirror.Copying), "process 4711 of the source holds it since 03:04:05"
			t.RowsCopied = 0
		case 8:
			t.Phase, t.RowsCopied, t.Lag = string(mirror.Pending), 0, -1
		case 9:
			t.Phase = string(mirror.CatchingUp)
		}
		f.Live.Tables = append(f.Live.Tables, t)
		f.Live.Counts = append(f.Live.Counts, mirror.TableCounts{RowsCopied: t.RowsCopied, ChangesApplied: t.ChangesApplied})
	}
	return f
}

func TestFramesLookAsTheyAreKept(t *testing.T) {
	for _, tables := range []int{1, 10, 1000} {
		for _, width := range []int{40, 80, 200} {
			f := sampleFrame(tables)
			f.Width, f.Height = width, 24
			golden(t, fmt.Sprintf("%d_tables_%d_columns", tables, width), f)
		}
	}
	f := sampleFrame(3)
	f.Width, f.Height, f.Colors = 80, 24, true
	golden(t, "colors", f)
	f.Colors, f.Draining = false, true
	golden(t, "stopping", f)
	f = sampleFrame(3)
	f.Width, f.Height = 80, 24
	f.Live.State, f.Live.Error, f.Live.RetryAt = mirror.Waiting, "sink sqlite: commit: database is locked", f.Now.Add(4*time.Second)
	f.Live.Sink = mirror.Side{State: "unreachable"}
	golden(t, "waiting", f)
	golden(t, "starting", &Frame{Now: began, Width: 80, Height: 24, Live: mirror.Live{
		State: mirror.Starting, LagBytes: -1,
		Status: mirror.Status{Mirror: "shop", Since: began, Lag: -1, RetainedBytes: -1, Source: mirror.Side{State: "connecting"}, Sink: mirror.Side{State: "connecting"}},
	}})
}

func golden(t *testing.T, name string, f *Frame) {
	t.Helper()
	got := strings.ReplaceAll(strings.Join(f.Lines(), "\n")+"\n", "\x1b", "ESC")
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", name, diff)
	}
}

func TestFrameFitsAnyTerminalAndShowsNoControlCharacter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := sampleFrame(rapid.IntRange(0, 40).Draw(t, "tables"))
		f.Width, f.Height = rapid.IntRange(1, 250).Draw(t, "width"), rapid.IntRange(1, 60).Draw(t, "height")
		f.Live.Mirror = rapid.StringN(0, 40, -1).Draw(t, "mirror")
		for i := range f.Live.Tables {
			table := &f.Live.Tables[i]
			table.Name.Table = string(rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "bytes")) + rapid.StringN(0, 60, -1).Draw(t, "name")
			table.Phase = rapid.SampledFrom([]string{"pending", "copying", "catching_up", "streaming", "paused", "refused", "dropped"}).Draw(t, "phase")
			table.Reason = rapid.SampledFrom([]string{"", "line one\nline two\ttab", strings.Repeat("long ", 60)}).Draw(t, "reason")
		}
		lines := f.Lines()
		if len(lines) >= f.Height {
			t.Fatalf("%d lines for a terminal of %d", len(lines), f.Height)
		}
		for _, line := range lines {
			if Width(line) > f.Width {
				t.Fatalf("%d columns for a terminal of %d: %q", Width(line), f.Width, line)
			}
			if Safe(line) != line {
				t.Fatalf("not safe to show: %q", line)
			}
		}
	})
}

func TestTablesAtWorkAreSeenThoughManyNeedAPerson(t *testing.T) {
	f := sampleFrame(1000)
	for i := 100; i < 1000; i++ {
		f.Live.Tables[i].Phase, f.Live.Tables[i].Reason = string(mirror.Refused), "it has no primary key"
	}
	f.Width, f.Height = 100, 24
	text := strings.Join(f.Lines(), "\n")
	for _, want := range []string{"table_0001", "table_0002", "table_0009", "a_name_that", "more: "} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not shown:\n%s", want, text)
		}
	}
	if len(f.Lines()) != 23 {
		t.Errorf("%d lines of 23 are used", len(f.Lines()))
	}
}

func TestRatesTellWhatMovedInTheLastSeconds(t *testing.T) {
	var r rates
	live := &mirror.Live{Status: mirror.Status{Tables: []mirror.TableStatus{{Table: state.Table{ID: "a"}}}}, Counts: make([]mirror.TableCounts, 1)}
	for i := range 100 {
		live.Counts[0] = mirror.TableCounts{RowsCopied: int64(i) * 10, ChangesApplied: int64(i) * 15}
		got := r.take(began.Add(time.Duration(i)*250*time.Millisecond), live)["a"]
		if i >= 2 && (got < 99 || got > 101) {
			t.Fatalf("after %d looks: %v rows a second, want 100", i, got)
		}
	}
	if len(r.samples) > 8 {
		t.Errorf("%d samples are kept", len(r.samples))
	}
	if got := r.take(began.Add(time.Hour), live)["a"]; got > 0.1 {
		t.Errorf("a table that rests moves %v rows a second", got)
	}
}

func TestTextIsSafeAndCutByColumns(t *testing.T) {
	for _, c := range []struct{ in, safe string }{
		{"plain", "plain"}, {"a\x1b[31mb", `a\x1b[31mb`}, {"a\nb\tc", `a\nb\tc`}, {"x\u202ey", `x\u202ey`}, {"\xff", `\xff`},
		{"\u200b", `\u200b`}, {"e\u0301", "e\u0301"}, {"大", "大"}, {"\u0085", `\u0085`}, {"it's \"q\" \\", `it's "q" \`}, {"\u00a0", `\u00a0`},
	} {
		if got := Safe(c.in); got != c.safe {
			t.Errorf("%q is shown as %q, want %q", c.in, got, c.safe)
		}
	}
	for _, c := range []struct {
		in    string
		width int
		want  string
	}{
		{"table", 5, "table"}, {"table", 4, "tab…"}, {"大大大", 5, "大大…"}, {"大大大", 4, "大…"}, {"大", 1, "…"}, {"a", 0, ""}, {"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
	} {
		if got := Cut(c.in, c.width); got != c.want {
			t.Errorf("%q in %d columns is %q, want %q", c.in, c.width, got, c.want)
		}
	}
	if got := cutMiddle("public.measurements_2026_01", 16); got != "public.m…2026_01" {
		t.Errorf("cut in the middle: %q", got)
	}
	for _, c := range []struct {
		in   time.Duration
		want string
	}{{0, "0s"}, {61 * time.Second, "1m01s"}, {3 * time.Hour, "3h00m"}, {50 * time.Hour, "2d02h"}} {
		if got := Duration(c.in); got != c.want {
			t.Errorf("%v is %q, want %q", c.in, got, c.want)
		}
	}
}

func FuzzSafeTextHasNoControlCharacterAndIsCutToItsWidth(f *testing.F) {
	f.Add("a\x1b[31m大e\u0301\u202e\xff", 3)
	f.Fuzz(func(t *testing.T, s string, width int) {
		safe := Safe(s)
		if Safe(safe) != safe {
			t.Fatalf("%q is shown as %q, which is not safe", s, safe)
		}
		width = max(0, width%300)
		for _, cut := range []string{Cut(safe, width), cutMiddle(safe, width)} {
			if Width(cut) > width {
				t.Fatalf("%q takes %d columns of %d", cut, Width(cut), width)
			}
		}
	})
}

func BenchmarkFrame(b *testing.B) {
	for _, tables := range []int{10, 1000} {
		b.Run(fmt.Sprint(tables, "_tables"), func(b *testing.B) {
			f := sampleFrame(tables)
			f.Width, f.Height = 120, 50
			var r rates
			b.ReportAllocs()
			for i := range b.N {
				f.Rates = r.take(began.Add(time.Duration(i)*refreshEvery), &f.Live)
				f.Lines()
			}
		})
	}
}
