// Package metrics serves what a mirror counts to Prometheus. It is apart from the library, which tells plain numbers, so
// that only who wants Prometheus links it:
//
//	var monitor sluice.Monitor
//	http.Handle("/metrics", metrics.Handler(&monitor))
//	mirror.Run(ctx, sluice.RunOptions{Log: log, Monitor: &monitor})
//
// Series are few and bounded. Labels are mirror; table, the tables that are mirrored, paused or refused, not those that are
// gone; phase and kind, of which there are seven and ten. A table has one series of each metric, so a mirror of 1,000
// tables has some 11,000. Counters begin at zero with the process.
package metrics

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
)

// Handler serves the metrics of a mirror's run in Prometheus's forms.
func Handler(monitor *sluice.Monitor) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(monitor))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// NewCollector returns the metrics of a mirror's run, for a registry of the caller. There are none before the run begins.
func NewCollector(monitor *sluice.Monitor) prometheus.Collector { return &collector{monitor.Live} }

type collector struct{ live func() (mirror.Live, bool) }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, append([]string{"mirror"}, labels...), nil)
}

// Of the whole mirror.
var (
	descUp       = describe("up", "Whether the mirror runs and reaches source and sink: 1 or 0.")
	descTables   = describe("tables", "Tables, by the phase they are in.", "phase")
	descLag      = describe("lag_seconds", "Age of the oldest change that is not durable in the sink, by the source's clock; 0 if there is none.")
	descLagBytes = describe("lag_bytes", "Log at the source from the oldest change on that is not durable in the sink. Absent while not known.")
	descSpool    = describe("spool_bytes", "Size of the spool: changes that wait on disk.")
	descRetained = describe("retained_log_bytes", "Log that the source keeps for the mirror. Absent while not known.")
	descBatches  = describe("batch_duration_seconds", "Time from the start of a batch of changes until it was durable in the sink.")
	descDelays   = describe("apply_delay_seconds", "Time from the commit at the source of a batch's oldest change, by the source's clock, until it was durable in the sink.")
	descErrors   = describe("errors_total", "Errors that were reacted to, by what they mean.", "kind")
)

// Of each table.
var (
	descPhase        = describe("table_phase", "The phase the table is in: always 1, and absent for the phases it is not in.", "table", "phase")
	descRowsCopied   = describe("table_rows_copied_total", "Rows copied into the sink.", "table")
	descBytesCopied  = describe("table_copied_bytes_total", "Rows copied into the sink, in bytes as columns in memory.", "table")
	descChanges      = describe("table_changes_applied_total", "Row changes that have become durable in the sink.", "table")
	descBytesApplied = describe("table_applied_bytes_total", "Row changes that have become durable in the sink, in bytes as the source sent them.", "table")
	descEstimate     = describe("table_rows_estimated", "Rows at the source when the table was planned, as its statistics say. Absent while not known.", "table")
	descTableLag     = describe("table_lag_seconds", "Age of the table's oldest change that is not durable in the sink, by the source's clock; 0 if there is none.", "table")
	descTableBytes   = describe("table_lag_bytes", "Log at the source from the table's oldest change on that is not durable in the sink. Absent while not known.", "table")
	descLane         = describe("table_lane_bytes", "Changes of the table that wait, in memory and in the spool.", "table")
	descFailures     = describe("table_failures", "Faults of the table in a row.", "table")
	descQuarantined  = describe("table_quarantined_rows", "Rows of the table in quarantine: the sink does not have them as the source does.", "table")
)

var phases = []mirror.Phase{
	mirror.Pending, mirror.Copying, mirror.CatchingUp, mirror.Streaming, mirror.Paused, mirror.Refused, mirror.Dropped,
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descUp, descTables, descLag, descLagBytes, descSpool, descRetained, descBatches, descDelays, descErrors, descPhase, descRowsCopied,
		descBytesCopied, descChanges, descBytesApplied, descEstimate, descTableLag, descTableBytes, descLane, descFailures, descQuarantined,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	live, ok := c.live()
	if !ok {
		return
	}
	o := output{out, live.Mirror}
	o.gauge(descUp, oneIf(live.State == mirror.Running))
	o.gauge(descSpool, float64(live.SpoolBytes))
	o.known(descLag, live.Lag >= 0, live.Lag.Seconds())
	o.known(descLagBytes, live.LagBytes >= 0, float64(live.LagBytes))
	o.known(descRetained, live.RetainedBytes >= 0, float64(live.RetainedBytes))
	o.histogram(descBatches, live.Batches)
	o.histogram(descDelays, live.Delays)
	for kind, n := range live.Errors {
		o.counter(descErrors, n, kind)
	}
	inPhase := map[mirror.Phase]int{}
	names := map[string]bool{}
	for i, t := range live.Tables {
		inPhase[mirror.Phase(t.Phase)]++
		// A table that was dropped and made again is there twice for a while.
		name := strings.ToValidUTF8(t.Name.String(), "\uFFFD")
		if mirror.Phase(t.Phase) == mirror.Dropped || names[name] {
			continue
		}
		names[name] = true
		o.table(name, &t, &live.Counts[i])
	}
	for _, p := range phases {
		o.gauge(descTables, float64(inPhase[p]), string(p))
	}
}

// output is where the metrics of one mirror go.
type output struct {
	out    chan<- prometheus.Metric
	mirror string
}

func (o output) table(name string, t *mirror.TableStatus, n *mirror.TableCounts) {
	o.gauge(descPhase, 1, name, t.Phase)
	o.counter(descRowsCopied, n.RowsCopied, name)
	o.counter(descBytesCopied, n.BytesCopied, name)
	o.counter(descChanges, n.ChangesApplied, name)
	o.counter(descBytesApplied, n.BytesApplied, name)
	o.known(descEstimate, t.RowsEstimated >= 0, float64(t.RowsEstimated), name)
	o.known(descTableLag, t.Lag >= 0, t.Lag.Seconds(), name)
	o.known(descTableBytes, t.LagBytes >= 0, float64(t.LagBytes), name)
	o.gauge(descLane, float64(t.LaneBytes), name)
	o.gauge(descFailures, float64(t.Failures), name)
	o.gauge(descQuarantined, float64(t.Quarantined), name)
}

func (o output) gauge(d *prometheus.Desc, v float64, labels ...string) {
	o.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{o.mirror}, labels...)...)
}

// known leaves out a gauge whose value is not known.
func (o output) known(d *prometheus.Desc, is bool, v float64, labels ...string) {
	if is {
		o.gauge(d, v, labels...)
	}
}

func (o output) counter(d *prometheus.Desc, n int64, labels ...string) {
	o.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{o.mirror}, labels...)...)
}

func (o output) histogram(d *prometheus.Desc, h mirror.Histogram) {
	within := make(map[float64]uint64, len(h.Within))
	for bound, n := range h.Within {
		within[bound.Seconds()] = n
	}
	o.out <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), within, o.mirror)
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
