// Package process runs the built binary as a child of a test or a benchmark: starts it, reads its log, freezes, stops and
// kills it.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Build compiles the command into dir and returns its path.
func Build(dir string) (string, error) {
	path := filepath.Join(dir, "sluice")
	cmd := exec.Command("go", "build", "-o", path, "github.com/sluicehq/sluice/cmd/sluice")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the command: %w: %s", err, out)
	}
	return path, nil
}

// Process is a running, or ended, command.
type Process struct {
	Out, Log *Lines // standard output and standard error

	cmd    *exec.Cmd
	exited chan struct{}
}

// Start runs a program in dir. It dies with the calling process.
func Start(dir, program string, args ...string) (*Process, error) {
	cmd := exec.Command(program, args...)
	out, log := newLines(), newLines()
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, log
	return start(cmd, out, log)
}

// StartAttached runs a program in dir with the terminal, and the standard output, of the calling process. What it prints is
// not read.
func StartAttached(dir, program string, args ...string) (*Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	return start(cmd, newLines(), newLines())
}

func start(cmd *exec.Cmd, out, log *Lines) (*Process, error) {
	p := &Process{Out: out, Log: log, cmd: cmd, exited: make(chan struct{})}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the parent-death signal is tied to the thread that starts the process
		defer close(p.exited)
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // the exit code is read from ProcessState
		}
		p.Out.end()
		p.Log.end()
	}()
	return p, <-started
}

// Exited is closed when the process is gone and all its output read.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode is the exit code of a process that has exited, -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Wait waits for the process to end by itself.
func (p *Process) Wait(limit time.Duration) (exitCode int, err error) {
	select {
	case <-p.exited:
		return p.ExitCode(), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("the process has not ended within %v", limit)
	}
}

// Stop asks the process to end in an orderly way (SIGTERM) and waits for it.
func (p *Process) Stop(limit time.Duration) (exitCode int, err error) {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	return p.Wait(limit)
}

// Kill ends the process at once (SIGKILL) and waits until it is gone. It does nothing to one that has ended.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.exited
}

// Signal sends a signal: SIGSTOP freezes the process, SIGCONT lets it go on.
func (p *Process) Signal(s syscall.Signal) error {
	select {
	case <-p.exited:
		return os.ErrProcessDone
	default:
		return p.cmd.Process.Signal(s)
	}
}

// PeakMemory returns the largest resident size of the running process so far, in bytes (VmHWM of proc_pid_status(5)).
func (p *Process) PeakMemory() (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc: the process is gone")
}

// CPU returns the processor time, user and system, of a process that has exited.
func (p *Process) CPU() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// PeakMemoryAtExit returns the largest resident size of a process that has exited, in bytes (ru_maxrss of getrusage(2)).
func (p *Process) PeakMemoryAtExit() int64 {
	return p.cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}

// Lines is a process's output as it comes, line by line. It is safe for concurrent use.
type Lines struct {
	mu      sync.Mutex
	lines   []string
	partial []byte
	changed chan struct{} // closed and replaced at each new line
	ended   bool
}

var _ io.Writer = (*Lines)(nil)

func newLines() *Lines { return &Lines{changed: make(chan struct{})} }

// Write takes output.
func (l *Lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, b...)
	for {
		line, rest, ok := bytes.Cut(l.partial, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.lines = append(l.lines, string(line))
		l.partial = rest
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

func (l *Lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	close(l.changed)
}

// All returns the whole lines so far.
func (l *Lines) All() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// Count returns how many lines there are so far.
func (l *Lines) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.lines)
}

// Tail returns the last n lines so far, joined.
func (l *Lines) Tail(n int) string {
	lines := l.All()
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// AwaitCount waits until there are n lines, at most for limit, and reports whether there are.
func (l *Lines) AwaitCount(n int, limit time.Duration) bool {
	return l.await(limit, func(lines []string) bool { return len(lines) >= n })
}

// Await waits until a line holds text, at most for limit, and reports whether one does.
func (l *Lines) Await(text string, limit time.Duration) bool {
	return l.await(limit, func(lines []string) bool {
		return slices.ContainsFunc(lines, func(s string) bool { return strings.Contains(s, text) })
	})
}

func (l *Lines) await(limit time.Duration, met func([]string) bool) bool {
	timeout := time.After(limit)
	for {
		l.mu.Lock()
		lines, changed, ended := l.lines, l.changed, l.ended
		l.mu.Unlock()
		if met(lines) || ended {
			return met(lines)
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		}
	}
}
