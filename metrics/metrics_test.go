package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// scrape returns what a collector tells.
func scrape(t *testing.T, c prometheus.Collector) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("%d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

func TestNothingIsToldBeforeTheRun(t *testing.T) {
	var monitor sluice.Monitor
	if text := scrape(t, NewCollector(&monitor)); text != "" {
		t.Errorf("told: %s", text)
	}
}

func TestTablesThatAreGoneOrNamedAlikeDoNotSpoilTheScrape(t *testing.T) {
	table := func(name string, phase mirror.Phase) mirror.TableStatus {
		return mirror.TableStatus{Table: state.Table{Name: schema.Name{Schema: "public", Table: name}, Phase: string(phase), RowsEstimated: -1}, Lag: -1, LagBytes: -1}
	}
	live := mirror.Live{
		State: mirror.Running, LagBytes: -1, Errors: map[string]int64{"bad_row": 3},
		Status: mirror.Status{Mirror: "shop", Lag: 1500 * time.Millisecond, RetainedBytes: -1, Tables: []mirror.TableStatus{
			table("a", mirror.Dropped), table("a", mirror.Streaming), table("a", mirror.Pending), table("b\xff", mirror.Paused), table("b\xfe", mirror.Paused),
		}},
		Counts:  []mirror.TableCounts{{RowsCopied: 1}, {RowsCopied: 2}, {RowsCopied: 3}, {}, {}},
		Batches: mirror.Histogram{Within: map[time.Duration]uint64{time.Second: 2}, Count: 3, Sum: 5 * time.Second},
	}
	text := scrape(t, &collector{func() (mirror.Live, bool) { return live, true }})
	for _, want := range []string{
		`sluice_table_rows_copied_total{mirror="shop",table="public.a"} 2`, `sluice_tables{mirror="shop",phase="dropped"} 1`,
		`sluice_tables{mirror="shop",phase="paused"} 2`, `sluice_lag_seconds{mirror="shop"} 1.5`, `sluice_errors_total{kind="bad_row",mirror="shop"} 3`,
		`sluice_batch_duration_seconds_bucket{mirror="shop",le="1"} 2`, `sluice_batch_duration_seconds_bucket{mirror="shop",le="+Inf"} 3`,
		`sluice_batch_duration_seconds_sum{mirror="shop"} 5`, "table=\"public.b\uFFFD\"",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not there:\n%s", want, text)
		}
	}
	for _, not := range []string{"sluice_retained_log_bytes", "sluice_lag_bytes", "sluice_table_lag_seconds{"} {
		if strings.Contains(text, not) {
			t.Errorf("%s is told though it is not known", not)
		}
	}
}

func TestSeriesOfAThousandTablesAreAsManyAsSaid(t *testing.T) {
	live := mirror.Live{State: mirror.Running, Status: mirror.Status{Mirror: "shop"}, Counts: make([]mirror.TableCounts, 1000)}
	for i := range live.Counts {
		live.Tables = append(live.Tables, mirror.TableStatus{Table: state.Table{Name: schema.Name{Table: string(rune(0x4e00 + i))}, Phase: "streaming"}})
	}
	series := 0
	for line := range strings.Lines(scrape(t, &collector{func() (mirror.Live, bool) { return live, true }})) {
		if !strings.HasPrefix(line, "#") {
			series++
		}
	}
	if series < 11_000 || series > 11_100 {
		t.Errorf("%d series", series)
	}
}
