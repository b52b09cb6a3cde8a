package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// report collects figures by name, a value a round, and the lines that put them beside each other.
type report struct {
	values map[string][]float64
	lines  []string
	noises []string
	limits []string
	growth []string // lines of a table
	notes  []string
}

func (r *report) value(name string, v float64) {
	if r.values == nil {
		r.values = map[string][]float64{}
	}
	r.values[name] = append(r.values[name], v)
	fmt.Fprintf(os.Stderr, "%-24s %10.2f\n", name, v)
}

func (r *report) seconds(name string, d time.Duration) { r.value(name, d.Seconds()) }

func (r *report) has(name string) bool { return len(r.values[name]) > 0 }

func (r *report) note(text string) { r.notes = append(r.notes, text) }

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}

// spread writes the values of a figure: median (least–most).
func (r *report) spread(name, unit string) string {
	v := r.values[name]
	return fmt.Sprintf("%.2f %s (%.2f–%.2f)", median(v), unit, slices.Min(v), slices.Max(v))
}

// goal judges the ratio of our time to the yardstick's; it returns the ratio as the goal words it.
type goal func(ours, yardstick float64) (ratio float64, reached bool)

// atMost is a goal for the time.
func atMost(limit float64) goal {
	return func(ours, yardstick float64) (float64, bool) { return ours / yardstick, ours/yardstick <= limit }
}

// atLeast is a goal for the rate.
func atLeast(limit float64) goal {
	return func(ours, yardstick float64) (float64, bool) { return yardstick / ours, yardstick/ours >= limit }
}

// add puts a figure of ours beside its yardstick.
func (r *report) add(work, yardstick, theirs, ours, reach string, g goal) {
	ratio, reached := g(median(r.values[ours]), median(r.values[theirs]))
	r.lines = append(r.lines, fmt.Sprintf("| %s | %s | %s | %s | %.2f | %s | %s |",
		work, yardstick, r.spread(theirs, "s"), r.spread(ours, "s"), ratio, reach, yes(reached)))
}

// limit holds a figure against the most that it may be.
func (r *report) limit(what, name, unit string, most float64) {
	r.limits = append(r.limits, fmt.Sprintf("| %s | %s | ≤ %g %s | %s |", what, r.spread(name, unit), most, unit, yes(median(r.values[name]) <= most)))
}

// best is limit for the best of the rounds, where a disturbance can only make a figure worse.
func (r *report) best(what, name, unit string, most float64) {
	least := slices.Min(r.values[name])
	r.limits = append(r.limits, fmt.Sprintf("| %s | %.1f %s (all rounds: %.1f–%.1f) | ≤ %g %s | %s |",
		what, least, unit, least, slices.Max(r.values[name]), most, unit, yes(least <= most)))
}

// percentile returns the value that the given part of v, at least one value, does not exceed.
func percentile(v []float64, part float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[min(int(part*float64(len(v))), len(v)-1)]
}

// noise says how far the yardstick is from itself.
func (r *report) noise(a, b string) {
	var worst float64
	for i := range r.values[a] {
		worst = max(worst, math.Abs(r.values[a][i]/r.values[b][i]-1))
	}
	medians := math.Abs(median(r.values[a])/median(r.values[b]) - 1)
	r.noises = append(r.noises, fmt.Sprintf("| %s | %s | %s | %.0f %% | %.0f %% |", a, r.spread(a, "s"), r.spread(b, "s"), 100*medians, 100*worst))
}

func yes(reached bool) string {
	if reached {
		return "yes"
	}
	return "**no**"
}

// text is the whole page.
func (b *bench) text(ctx context.Context) (string, error) {
	version, err := queryText(ctx, b.source, "postgres", "SELECT current_setting('server_version')")
	if err != nil {
		return "", err
	}
	var s strings.Builder
	s.WriteString("# Benchmarks\n\nWritten by `make bench` (`go run ./test/bench`). Each figure of ours stands beside a yardstick that was measured in the\nsame run; only the ratios mean something on another machine.\n")
	fmt.Fprintf(&s, "\n## Machine and method\n\n%s, %d processors, %s, %s; PostgreSQL %s; source and sink are two servers on this\nmachine, talking over TCP on the loopback address. Load average at the start: %s; figures taken beside other work are worth little.\n", processor(), runtime.NumCPU(), memorySize(), runtime.Version(), version, b.load)
	fmt.Fprintf(&s, "Both servers: `%s`.\n%s", strings.Join(settings, "`, `"), b.method())
	if len(b.report.lines) > 0 {
		s.WriteString("\n## Beside the yardsticks\n\nTimes are medians, with the least and the most.\n\n| work | yardstick | its time | our time | ratio | to reach | reached |\n|---|---|---|---|---|---|---|\n")
		s.WriteString(strings.Join(b.report.lines, "\n") + "\n")
	}
	if len(b.report.limits) > 0 {
		s.WriteString("\n## What it costs\n\n| what | measured | to reach | reached |\n|---|---|---|---|\n" + strings.Join(b.report.limits, "\n") + "\n")
	}
	if len(b.report.growth) > 0 {
		fmt.Fprintf(&s, "\n## Growth with the number of tables\n\nThe same %d rows and %d changes, over ever more tables. Medians.\n\n%s\n", growthRows, growthChanges, strings.Join(b.report.growth, "\n"))
	}
	if len(b.report.noises) > 0 {
		s.WriteString("\n## Noise\n\nThe yardstick against itself in the same round. A difference below this is no result.\n\n| yardstick | first | second | medians differ by | worst round |\n|---|---|---|---|---|\n" + strings.Join(b.report.noises, "\n") + "\n")
	}
	for _, n := range b.report.notes {
		s.WriteString("\n" + n + "\n")
	}
	return s.String(), nil
}

func (b *bench) method() string {
	return fmt.Sprintf(`
%d rounds; in a round each contender does the work once, after a checkpoint of both servers, and both sides are compared by
value afterwards.

- Copy: one table of %d rows and 7 columns into an empty database, its primary key there at the end. Ours is the whole
  `+"`sluice run --once`"+`, start, slot and publication included.
- Stream: a backlog of %d changes (half inserts, a third updates, the rest deletes; half of them in one transaction, half in
  transactions of one row) to a table of %d rows at first, drained by a subscription that is switched on and by
  `+"`sluice run --once`"+`. The backlog is written with synchronous_commit=off; a subscription applies with
  synchronous_commit=off, its default, we with on.
- Reading: the same backlog, read and thrown away by `+"`pg_recvlogical -f /dev/null`"+` and by our reader.
- Commit to visible: %d connections commit one-row inserts on a fixed beat, together %d a second, with synchronous_commit=on,
  while the mirror streams; a client's clock is read when COMMIT has returned. Meanwhile a reader asks the sink for the rows
  it has not seen yet, with %v between two looks; its clock (the same machine's) is read when the answer is there. A row's
  figure is the difference, the reader's share included, and 0 where the reader was faster than the client's answer. %v of
  warm-up, then %v. Whatever else the machine does makes it longer, so the best round counts; all are shown.
- One table in trouble: %d tables, one-row inserts as above but %d a second, the tables in turn. One of them, of %d rows, has
  its rows refused until it pauses; is mended and resumed; has its destination locked; is copied anew again and again; each for
  %v at least. Figures are of the other tables' rows, by the phase in which they were committed.
- Growth: tables of 3 columns, copied and then streamed by `+"`sluice run --once`"+` at its default settings; 100 updates a
  transaction, the tables in turn. Connections are the most that were seen at once while copying, the stream's included.
`, b.n, b.rows, b.changes, baseRows, latencyClients, latencyRate, pollPause, latencyWarm, latencyTime,
		isolationTables, isolationRate, isolationRows, isolationTime)
}

func processor() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range bytes.Lines(info) {
			if name, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(name)) == "model name" {
				return string(bytes.TrimSpace(value))
			}
		}
	}
	return runtime.GOARCH
}

func memorySize() string {
	info, err := os.ReadFile("/proc/meminfo")
	if err == nil {
		var kib int64
		if _, err := fmt.Sscanf(string(info), "MemTotal: %d kB", &kib); err == nil {
			return fmt.Sprintf("%d GiB of memory", kib>>20)
		}
	}
	return "memory unknown"
}

// load is the machine's load average over one, five and fifteen minutes.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], ", ")
}
