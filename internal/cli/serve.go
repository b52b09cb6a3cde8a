package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/metrics"
)

const (
	// requestTimeout bounds a request, from its first byte to the last one of the answer.
	requestTimeout = 10 * time.Second
	// headerBytes bounds what a client may send.
	headerBytes = 16 << 10
)

// listen takes an address for the metrics of a run. serve answers there until the channel ended is closed. An address that
// cannot be had is a fault of the command line.
func listen(address string, monitor *sluice.Monitor, log *slog.Logger) (serve func(ended <-chan struct{}), err error) {
	host, port, err := splitAddress(address)
	if err != nil {
		return nil, usageError{fmt.Errorf("--metrics %q: %w", address, err)}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, usageError{fmt.Errorf("--metrics %q: %w", address, err)}
	}
	server := &http.Server{
		Handler: handler(monitor), ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, MaxHeaderBytes: headerBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	log.Info("metrics are served", "url", "http://"+listener.Addr().String()+"/metrics")
	return func(ended <-chan struct{}) { serveUntil(ended, server, listener, log) }, nil
}

// splitAddress takes a port alone for one of this machine only.
func splitAddress(address string) (host, port string, err error) {
	if !strings.Contains(address, ":") {
		address = ":" + address
	}
	if host, port, err = net.SplitHostPort(address); err != nil {
		return "", "", fmt.Errorf("expected HOST:PORT or PORT")
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return host, port, nil
}

func serveUntil(ended <-chan struct{}, server *http.Server, listener net.Listener, log *slog.Logger) {
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are served no more", "error", err)
		}
	})
	<-ended
	_ = server.Close() // nothing is lost with an answer that is cut off
}

// handler answers on the three paths.
func handler(monitor *sluice.Monitor) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewCollector(monitor), buildInfo(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := notReady(monitor); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	return mux
}

// notReady says what is missing for the sink to hold every selected table and to follow the source; "": nothing. It names
// no table and no error: whoever can reach the address may read it.
func notReady(monitor *sluice.Monitor) string {
	live, ok := monitor.Live()
	switch {
	case !ok:
		return string(mirror.Starting)
	case live.State != mirror.Running:
		return string(live.State)
	}
	missing := 0
	for _, t := range live.Tables {
		switch mirror.Phase(t.Phase) {
		case mirror.Pending, mirror.Copying, mirror.Paused, mirror.Refused:
			missing++
		}
	}
	if missing > 0 {
		return fmt.Sprintf("%d tables are being copied, paused or refused", missing)
	}
	return ""
}

func buildInfo() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_build_info", Help: "The version of sluice; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
}
