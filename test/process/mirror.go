package process

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
)

// Main is a TestMain that builds the command into *program and starts one server for the package's tests, see
// [testdb.Main].
func Main(m *testing.M, program *string, server **testdb.Postgres, settings ...string) {
	os.Exit(run(m, program, server, settings))
}

func run(m *testing.M, program *string, server **testdb.Postgres, settings []string) int {
	flag.Parse() // for testing.Short
	if testing.Short() {
		return testdb.Run(m, server, settings...)
	}
	dir, err := os.MkdirTemp("", "sluice-program-")
	if err == nil {
		defer os.RemoveAll(dir)
		*program, err = Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return testdb.Run(m, server, settings...)
}

// Config is a mirror of a PostgreSQL database.
type Config struct {
	Name         string
	Source, Sink string // connection strings
	SinkFile     string // a SQLite file in place of Sink
	Publication  string // of the source, "": the mirror's own
	Mirror       string // what stands in the block `mirror`, not indented
}

// Write writes the configuration into dir, where the mirror's state and spool go too, and returns its path.
func (c Config) Write(dir string) (string, error) {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) } // JSON strings are YAML strings
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nname: %s\n", c.Name)
	source := "type: postgres, url: " + quote(c.Source)
	if c.Publication != "" {
		source += ", publication: " + quote(c.Publication)
	}
	fmt.Fprintf(&b, "source: {%s}\n", source)
	sink := "type: postgres, url: " + quote(c.Sink)
	if c.SinkFile != "" {
		sink = "type: sqlite, path: " + quote(c.SinkFile)
	}
	fmt.Fprintf(&b, "sink: {%s}\nmirror:\n", sink)
	for line := range strings.Lines(strings.TrimRight(c.Mirror, "\n")) {
		b.WriteString("  " + line)
	}
	path := filepath.Join(dir, "mirror.yaml")
	return path, os.WriteFile(path, []byte(b.String()+"\n"), 0o644)
}

// Sluice is the built command and a folder with the configuration of a mirror.
type Sluice struct {
	Program, Config string
}

// New writes c into a folder of the test.
func New(t testing.TB, program string, c Config) *Sluice {
	t.Helper()
	config, err := c.Write(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &Sluice{Program: program, Config: config}
}

// Run starts `sluice run` with the given options. The process is gone at the test's end, and its log shown if the test
// has failed.
func (s *Sluice) Run(t testing.TB, options ...string) *Process {
	t.Helper()
	args := append([]string{"run", s.Config, "--log-format", "text"}, options...)
	p, err := Start(filepath.Dir(s.Config), s.Program, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("log of `sluice %s`, exit code %d (-1: killed), last lines:\n%s", strings.Join(args, " "), p.ExitCode(), p.Log.Tail(20))
		}
	})
	return p
}

// Once runs `sluice run --once` to its end and fails the test if it does not end with the exit code wanted.
func (s *Sluice) Once(t testing.TB, want int, limit time.Duration) *Process {
	t.Helper()
	p := s.Run(t, "--once")
	switch code, err := p.Wait(limit); {
	case err != nil:
		t.Fatal(err)
	case code != want:
		t.Fatalf("sluice run --once: exit code %d, want %d\n%s", code, want, p.Log.Tail(60))
	}
	return p
}
