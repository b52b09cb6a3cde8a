package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

var metricsURL = regexp.MustCompile(`url=(http://127\.0\.0\.1:\d+)/metrics`)

// get returns status and body.
func get(url string) (int, string, error) {
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

func TestMetricsOfARunningMirror(t *testing.T) {
	source, sink := testServer.Database(t), testServer.Database(t)
	testdb.Exec(t, source, `CREATE TABLE items (id int PRIMARY KEY, v int); CREATE TABLE narrow (id int PRIMARY KEY, v int);
		INSERT INTO items SELECT i, i FROM generate_series(1, 1000) i; ANALYZE`)
	s := process.New(t, program, process.Config{Name: "counted", Source: source, Sink: sink, Mirror: "{}"})
	p := s.Run(t, "--metrics", "0")
	if !p.Log.Await("metrics are served", screenLimit) {
		t.Fatal("no address is told")
	}
	base := metricsURL.FindStringSubmatch(p.Log.Tail(1000))[1]
	has := func(wants ...string) {
		t.Helper()
		testdb.Eventually(t, func() error {
			code, body, err := get(base + "/metrics")
			if err != nil || code != http.StatusOK {
				return fmt.Errorf("%d, %v: %s", code, err, body)
			}
			for _, want := range wants {
				if !strings.Contains(body, want+"\n") {
					return fmt.Errorf("%s is not there:\n%s", want, body)
				}
			}
			return nil
		})
	}
	answers := func(path string, want int, text string) {
		t.Helper()
		testdb.Eventually(t, func() error {
			if code, body, err := get(base + path); code != want || !strings.Contains(body, text) {
				return fmt.Errorf("%s: %d %q, %v", path, code, body, err)
			}
			return nil
		})
	}
	has(`sluice_up{mirror="counted"} 1`, `sluice_tables{mirror="counted",phase="streaming"} 2`, `sluice_tables{mirror="counted",phase="paused"} 0`,
		`sluice_table_rows_copied_total{mirror="counted",table="public.items"} 1000`,
		`sluice_table_phase{mirror="counted",phase="streaming",table="public.items"} 1`,
		`sluice_table_lag_seconds{mirror="counted",table="public.items"} 0`, `sluice_spool_bytes{mirror="counted"} 0`)
	answers("/healthz", http.StatusOK, "ok")
	answers("/readyz", http.StatusOK, "ready")

	testdb.Exec(t, source, "INSERT INTO items SELECT i FROM generate_series(2001, 2100) i")
	has(`sluice_table_changes_applied_total{mirror="counted",table="public.items"} 100`)
	testdb.Exec(t, sink, "ALTER TABLE narrow ADD CHECK (v < 100)")
	testdb.Exec(t, source, "INSERT INTO narrow VALUES (1, 200)")
	has(`sluice_table_phase{mirror="counted",phase="paused",table="public.narrow"} 1`, `sluice_errors_total{kind="bad_row",mirror="counted"} 1`,
		`sluice_tables{mirror="counted",phase="streaming"} 1`)
	answers("/readyz", http.StatusServiceUnavailable, "1 tables are being copied, paused or refused")
	answers("/healthz", http.StatusOK, "ok")

	_, body, err := get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	lint(t, body)
	for _, name := range []string{"batch_duration_seconds_count", "apply_delay_seconds_bucket", "retained_log_bytes", "table_lane_bytes", "table_applied_bytes_total",
		"table_copied_bytes_total", "table_rows_estimated", "table_failures", "build_info", "lag_seconds"} {
		if !strings.Contains(body, "\nsluice_"+name+"{") {
			t.Errorf("sluice_%s is not there", name)
		}
	}

	// The address is taken.
	p2, err := process.Start(filepath.Dir(s.Config), s.Program, "run", s.Config, "--metrics", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if code, err := p2.Wait(screenLimit); err != nil || code != 2 || !p2.Log.Await("address already in use", 0) {
		t.Errorf("a taken address: exit code %d, %v\n%s", code, err, p2.Log.Tail(10))
	}
	if code, err := p.Stop(stopLimit); err != nil || code != exitNotAll {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// lint judges our metrics by Prometheus's conventions.
func lint(t *testing.T, body string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "sluice_") {
			t.Error(errors.New(p.Metric + ": " + p.Text))
		}
	}
}
