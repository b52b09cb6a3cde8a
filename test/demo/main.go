// Command demo shows a mirror at work: it starts a throw-away PostgreSQL server, fills it with a small shop, lets a writer
// change it all the time, and mirrors it into a SQLite file with the built command, on this terminal. A table joins, the
// process is killed and started again, and at the end both sides are read and compared. All of it is gone afterwards.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	untilTable   = 8 * time.Second // from the start of the mirror until the new table comes
	untilKill    = 5 * time.Second // from when that is mirrored too until the process is killed
	deadFor      = 2 * time.Second // how long nothing mirrors
	untilEnd     = 5 * time.Second // from the second start until the writer stops
	streamLimit  = 60 * time.Second
	askEvery     = 500 * time.Millisecond
	compareLimit = 60 * time.Second
	stopLimit    = 30 * time.Second
	columnsShown = 100 // of a picture of the live view where standard output is no terminal
	linesShown   = 24
)

func main() {
	program := flag.String("sluice", "bin/sluice", "the built command")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *program); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, program string) error {
	program, err := filepath.Abs(program) // it runs in another folder
	if err != nil {
		return err
	}
	say("Starting a throw-away PostgreSQL server and filling a shop of %d tables.", len(shopTables))
	server, err := testdb.StartPostgres()
	if err != nil {
		return err
	}
	defer server.Remove()
	s, err := openShop(ctx, server)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &mirror{dir: dir, program: program, file: filepath.Join(dir, "shop.db"), attached: isTerminal(os.Stdout) && isTerminal(os.Stderr)}
	m.config, err = process.Config{
		Name: "demo", Source: s.url, SinkFile: m.file, Mirror: `tables: {include: ["public.*"], discover_interval: 2s}`,
	}.Write(dir)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(m.config)
	if err != nil {
		return err
	}
	say("This is all that a mirror needs, mirror.yaml:")
	fmt.Println(indent(strings.TrimSpace(string(text))))

	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.write(ctx, writing) })
	g.Go(func() error {
		defer stopWriting()
		return show(ctx, s, m, stopWriting)
	})
	return g.Wait()
}

// show lets the mirror run while the shop is written to. stopWriting ends that.
func show(ctx context.Context, s *shop, m *mirror, stopWriting func()) error {
	defer m.kill()
	say("`sluice run mirror.yaml`, while a writer places, pays and cancels orders. The tables are copied and then follow.\n"+
		"   In %v the shop gets a table more, `%s`: the mirror finds it and lets it join.", untilTable, newTable)
	if err := m.start(ctx, untilTable/4, untilTable-untilTable/4); err != nil {
		return err
	}
	if err := s.addTable(ctx); err != nil {
		return err
	}
	m.note("The shop has a new table, %q, with 20,000 rows.", newTable)
	if err := m.awaitStreaming(ctx, len(shopTables)+1); err != nil { // on a slow machine
		return err
	}
	if err := m.watch(ctx, untilKill); err != nil {
		return err
	}
	m.kill()
	before := s.written.Load()
	say("`kill -9`: the process is gone in the middle of its work. The writer goes on.")
	if !sleep(ctx, deadFor) {
		return ctx.Err()
	}
	say("`sluice run mirror.yaml` again. %d transactions were committed meanwhile; it goes on from the position that stands\n"+
		"   beside the rows in the file, and copies nothing again.", s.written.Load()-before)
	if err := m.start(ctx, untilEnd); err != nil {
		return err
	}
	stopWriting()
	limited, cancel := context.WithTimeout(ctx, compareLimit)
	defer cancel()
	lines, err := compare(limited, s.url, m.file, append(shopTables, newTable))
	if err != nil {
		return m.explain(err)
	}
	if err := m.stop(); err != nil {
		return err
	}
	say("The writer stopped after %d transactions. Every row of both sides was read and compared:", s.written.Load())
	fmt.Println(indent(strings.Join(lines, "\n")))
	return nil
}

func say(format string, args ...any) { fmt.Printf("\n── "+format+"\n\n", args...) }

func indent(text string) string {
	return strings.ReplaceAll("  "+strings.ReplaceAll(text, "\n", "\n  "), "  \n", "\n")
}

// isTerminal reports whether a file is one.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// sleep waits, or ends early with ctx and reports false.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// mirror is the built command at work. On a terminal it has that; elsewhere it has one of its own, of which pictures are
// printed now and then.
type mirror struct {
	dir, program, config, file string
	attached                   bool

	running  *process.Process
	terminal *process.Terminal
}

// start runs the command and watches it for the sum of these times, with a picture after each.
func (m *mirror) start(ctx context.Context, pictures ...time.Duration) (err error) {
	if m.attached {
		m.running, err = process.StartAttached(m.dir, m.program, "run", m.config)
	} else {
		m.running, m.terminal, err = process.StartOnTerminal(m.dir, columnsShown, linesShown, m.program, "run", m.config)
	}
	if err != nil {
		return err
	}
	for _, d := range pictures {
		if err := m.watch(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// watch lets the command run for a while and prints what its terminal shows, if that is not this one.
func (m *mirror) watch(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-m.running.Exited():
		return m.explain(errors.New("sluice ended by itself"))
	case <-ctx.Done():
		return ctx.Err()
	}
	return m.picture()
}

// awaitStreaming waits until so many tables have been copied and follow, as `sluice status` tells.
func (m *mirror) awaitStreaming(ctx context.Context, tables int) error {
	ctx, cancel := context.WithTimeout(ctx, streamLimit)
	defer cancel()
	for {
		p, err := process.Start(m.dir, m.program, "status", "--json", m.config)
		if err != nil {
			return err
		}
		if _, err := p.Wait(streamLimit); err != nil {
			p.Kill()
			return err
		}
		if strings.Count(strings.Join(p.Out.All(), "\n"), `"phase": "streaming"`) == tables {
			return nil
		}
		if !sleep(ctx, askEvery) {
			return m.explain(fmt.Errorf("not all tables follow within %v", streamLimit))
		}
	}
}

func (m *mirror) picture() error {
	if m.attached {
		return nil
	}
	lines, err := m.terminal.Lines()
	fmt.Println(indent(strings.Join(lines, "\n")) + "\n")
	return err
}

// note says something between two pictures; a live view must not be disturbed.
func (m *mirror) note(format string, args ...any) {
	if !m.attached {
		say(format, args...)
	}
}

// stop ends the command in an orderly way.
func (m *mirror) stop() error {
	if !m.attached {
		say("Ctrl-C: it writes down what it has begun and ends.")
	}
	code, err := m.running.Stop(stopLimit)
	if err != nil {
		return m.explain(err)
	}
	if code != 0 {
		return m.explain(fmt.Errorf("exit code %d", code))
	}
	return m.picture()
}

func (m *mirror) kill() {
	if m.running != nil {
		m.running.Kill()
	}
}

// explain adds to an error what the command's terminal shows.
func (m *mirror) explain(err error) error {
	if m.terminal == nil {
		return err
	}
	lines, _ := m.terminal.Lines()
	return fmt.Errorf("%w; the terminal shows:\n%s", err, strings.Join(lines, "\n"))
}
