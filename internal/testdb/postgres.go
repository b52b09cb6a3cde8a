// Package testdb starts real database servers for tests: in a temporary folder, on a free port of the loopback address,
// ended with the test process. Test code alone imports it.
package testdb

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoServer says that this machine has no PostgreSQL server to start.
var ErrNoServer = errors.New("no PostgreSQL server found; run `make setup`, or set SLUICE_TEST_PGBIN to the folder of its programs")

// startTimeout bounds the wait for a server that has just been started.
const startTimeout = 60 * time.Second

// Postgres is a running server with wal_level=logical. Its superuser is "postgres", without a password.
type Postgres struct {
	Port int
	Dir  string // its own folder: data/ and log

	bin       string
	settings  []string
	owner     *syscall.Credential
	cmd       *exec.Cmd
	exited    chan struct{} // closed when the server process is gone
	databases atomic.Int64
}

// defaultSettings make a server quick to test on; a caller's settings come after them and win.
var defaultSettings = []string{
	"wal_level=logical", "max_wal_senders=40", "max_replication_slots=40", "max_connections=200",
	"max_prepared_transactions=20", "fsync=off", "shared_buffers=64MB", "wal_sender_timeout=10s",
	"max_wal_size=4GB", "listen_addresses=127.0.0.1", "log_min_messages=warning",
}

// Main is a TestMain that starts one server for the package's tests and keeps it in *server. Without a server it fails
// in CI (CI=true) and elsewhere leaves *server nil, for which [Postgres.Database] skips the test.
func Main(m *testing.M, server **Postgres, settings ...string) {
	os.Exit(Run(m, server, settings...))
}

// Run is [Main] for a TestMain that has to clean up itself: it returns the exit code. With -short no server is started.
func Run(m *testing.M, server **Postgres, settings ...string) int {
	flag.Parse() // for testing.Short
	if fuzzing() || testing.Short() {
		return m.Run()
	}
	p, err := StartPostgres(settings...)
	switch {
	case err == nil:
		*server = p
	case errors.Is(err, ErrNoServer) && os.Getenv("CI") != "true":
		fmt.Fprintln(os.Stderr, "SKIPPING every test that needs a server:", err)
	default:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if p != nil {
		defer p.Remove()
	}
	return m.Run()
}

// fuzzing reports whether this process runs a fuzz test alone, or is one of its workers. A decoder needs no server.
func fuzzing() bool {
	return slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz=") || strings.HasPrefix(arg, "-test.fuzzworker")
	})
}

// StartPostgres makes a cluster and starts it. Settings are "name=value".
func StartPostgres(settings ...string) (*Postgres, error) {
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	return startFrom(bin, settings)
}

// Sink returns the server that the databases of sinks are made in: of the programs in SLUICE_TEST_PGBIN_SINK, which ends
// with the test, or where that is not set the server p itself.
func (p *Postgres) Sink(t testing.TB) *Postgres {
	t.Helper()
	bin := os.Getenv("SLUICE_TEST_PGBIN_SINK")
	if bin == "" || p == nil {
		return p
	}
	sink, err := startFrom(bin, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sink.Remove)
	return sink
}

func startFrom(bin string, settings []string) (*Postgres, error) {
	dir, err := os.MkdirTemp("", "sluice-pg-")
	if err != nil {
		return nil, err
	}
	p := &Postgres{Dir: dir, bin: bin, settings: slices.Concat(defaultSettings, settings)}
	if err := p.init(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	if err := p.Start(); err != nil {
		p.Remove()
		return nil, err
	}
	return p, nil
}

func findPostgres() (string, error) {
	if dir := os.Getenv("SLUICE_TEST_PGBIN"); dir != "" {
		return dir, nil
	}
	dirs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(dirs) == 0 {
		if path, err := exec.LookPath("initdb"); err == nil {
			return filepath.Dir(path), nil
		}
		return "", ErrNoServer
	}
	version := func(dir string) int { v, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir))); return v }
	return slices.MaxFunc(dirs, func(a, b string) int { return version(a) - version(b) }), nil
}

// init runs initdb, as the user postgres if we are root, whom it refuses.
func (p *Postgres) init() error {
	if os.Getuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			return fmt.Errorf("a server is not started as root: %w", err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		p.owner = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(p.Dir, uid, gid); err != nil {
			return err
		}
	}
	if err := os.Chmod(p.Dir, 0o755); err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(p.bin, "initdb"), "-D", p.data(), "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	cmd.Dir = p.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	hba := "local all all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
	return os.WriteFile(filepath.Join(p.data(), "pg_hba.conf"), []byte(hba), 0o644)
}

// Program returns the path of a program that belongs to the server (psql, pg_recvlogical): from its own folder, or else
// from the command search path.
func (p *Postgres) Program(name string) (string, error) {
	if path := filepath.Join(p.bin, name); exists(path) {
		return path, nil
	}
	return exec.LookPath(name)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (p *Postgres) data() string { return filepath.Join(p.Dir, "data") }

// Start starts the server of an existing cluster, after Stop or Kill on the port that it had.
func (p *Postgres) Start() error {
	var err error
	for range 5 { // another process may take the free port between the look and the start
		if p.Port == 0 {
			if p.Port, err = freePort(); err != nil {
				return err
			}
			defer func() {
				if err != nil {
					p.Port = 0
				}
			}()
		}
		if err = p.start(); err == nil {
			return nil
		}
	}
	return err
}

func (p *Postgres) start() error {
	args := []string{"-D", p.data(), "-p", strconv.Itoa(p.Port), "-k", p.Dir}
	for _, s := range p.settings {
		args = append(args, "-c", s)
	}
	log, err := os.OpenFile(filepath.Join(p.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Dir, log, log
	// SIGQUIT is an immediate shutdown: a test process that is killed leaves no server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.owner, Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	started, exited := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the parent-death signal is tied to the thread that starts the process
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // its exit status does not matter: Kill is part of what tests do
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.exited = cmd, exited
	return p.waitReady()
}

func (p *Postgres) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, p.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.exited:
			out, _ := os.ReadFile(filepath.Join(p.Dir, "log"))
			return fmt.Errorf("server on port %d ended: %s", p.Port, bytes.TrimSpace(out))
		case <-ctx.Done():
			return fmt.Errorf("server on port %d: %w", p.Port, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Clone starts a server of its own on a copy of the files of p, which must not run: what a disk that was restored from a
// snapshot is.
func (p *Postgres) Clone() (*Postgres, error) {
	return p.derive(func(c *Postgres) *exec.Cmd { return exec.Command("cp", "-a", p.data(), c.data()) })
}

// Standby starts a standby that follows p, which is stopped for a moment. It has none of p's slots. Not every package of
// the server has pg_basebackup, hence by hand.
func (p *Postgres) Standby() (*Postgres, error) {
	const fill = `set -e
		cp -a "$1" "$2"
		rm -rf "$2"/pg_replslot/*
		touch "$2"/standby.signal
		echo "primary_conninfo = '$3'" >>"$2"/postgresql.auto.conf`
	p.Stop()
	c, err := p.derive(func(c *Postgres) *exec.Cmd {
		return exec.Command("sh", "-c", fill, "sh", p.data(), c.data(), p.URL("postgres"))
	})
	if startErr := p.Start(); startErr != nil {
		if c != nil {
			c.Remove()
		}
		return nil, errors.Join(err, startErr)
	}
	return c, err
}

// derive starts a server with the settings of p whose files fill makes.
func (p *Postgres) derive(fill func(*Postgres) *exec.Cmd) (*Postgres, error) {
	dir, err := os.MkdirTemp("", "sluice-pg-")
	if err != nil {
		return nil, err
	}
	c := &Postgres{Dir: dir, bin: p.bin, settings: p.settings, owner: p.owner}
	if c.owner != nil {
		err = os.Chown(dir, int(c.owner.Uid), int(c.owner.Gid))
	}
	if err == nil {
		cmd := fill(c)
		cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: p.owner}
		if out, fillErr := cmd.CombinedOutput(); fillErr != nil {
			err = fmt.Errorf("%w: %s", fillErr, out)
		}
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		c.Remove()
		return nil, err
	}
	return c, nil
}

// Stop ends the server in an orderly way (SIGINT: fast shutdown) and waits for it.
func (p *Postgres) Stop() { p.signal(syscall.SIGINT) }

// Kill ends the server's processes at once, as a crash does, and waits for them.
func (p *Postgres) Kill() { p.signal(syscall.SIGKILL) }

func (p *Postgres) signal(s syscall.Signal) {
	if p.cmd == nil {
		return
	}
	pid := p.cmd.Process.Pid
	if s == syscall.SIGKILL {
		pid = -pid // the postmaster cannot tell its children any more
	}
	_ = syscall.Kill(pid, s) // it may be gone already
	<-p.exited
	p.cmd = nil
}

// Remove ends the server and deletes its folder.
func (p *Postgres) Remove() {
	p.signal(syscall.SIGQUIT)
	os.RemoveAll(p.Dir)
}

// URL returns the connection string of a database.
func (p *Postgres) URL(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.Port, url.PathEscape(database))
}

// Version returns the server's version as server_version_num has it: 180004 for 18.4.
func (p *Postgres) Version(t testing.TB) int {
	t.Helper()
	if testing.Short() || p == nil {
		t.Skip(ErrNoServer)
	}
	version, err := strconv.Atoi(QueryText(t, p.URL("postgres"), "SHOW server_version_num"))
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// Database makes an empty database for one test and returns its connection string. Slots left in it are dropped with it
// at the test's end.
func (p *Postgres) Database(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a server, which -short does without")
	}
	if p == nil {
		t.Skip(ErrNoServer)
	}
	name := fmt.Sprintf("t%d", p.databases.Add(1))
	admin := p.URL("postgres")
	Exec(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() {
		Exec(t, admin, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '"+name+"' AND active")
		Eventually(t, func() error {
			return try(admin, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '"+name+"'")
		})
		Exec(t, admin, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	return p.URL(name)
}

// Exec runs statements, several at once if they are joined by semicolons, and fails the test on an error.
func Exec(t testing.TB, url, sql string) {
	t.Helper()
	if err := try(url, sql); err != nil {
		t.Fatalf("%v\nin: %.500s", err, sql)
	}
}

func try(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// Query returns the rows of a query as the server's own text, NULL as "∅".
func Query(t testing.TB, url, sql string) [][]string {
	t.Helper()
	rows, err := TryQuery(url, sql)
	if err != nil {
		t.Fatalf("%v\nin: %.500s", err, sql)
	}
	return rows
}

// TryQuery is [Query] for a query that may fail.
func TryQuery(url, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	results, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for _, r := range results[len(results)-1].Rows {
		row := make([]string, len(r))
		for i, v := range r {
			row[i] = "∅"
			if v != nil {
				row[i] = string(v)
			}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// QueryText returns what Query does in one string: columns joined by "|", rows by newlines.
func QueryText(t testing.TB, url, sql string) string {
	t.Helper()
	var lines []string
	for _, row := range Query(t, url, sql) {
		lines = append(lines, strings.Join(row, "|"))
	}
	return strings.Join(lines, "\n")
}

// Eventually calls f until it returns nil, and fails the test with its last error after 30 seconds.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	EventuallyWithin(t, 30*time.Second, f)
}

// EventuallyWithin is Eventually with another limit, for what a busy machine makes slow.
func EventuallyWithin(t testing.TB, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(5 * time.Millisecond) // between two looks at a condition, not instead of one
	}
}
