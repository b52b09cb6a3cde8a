package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a pseudo terminal of a program under test, and the screen that a person would see on it (pty(7)).
type Terminal struct {
	keyboard *os.File

	mu      sync.Mutex
	screen  screen
	changed chan struct{} // closed and replaced with each change
}

// StartOnTerminal runs a program in dir on a terminal of its own, which is its standard input, output and error.
func StartOnTerminal(dir string, width, height int, program string, args ...string) (*Process, *Terminal, error) {
	t, tty, err := openTerminal(width, height)
	if err != nil {
		return nil, nil, err
	}
	defer tty.Close()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, tty, tty, tty
	cmd.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // Ctrl-C is for it alone
	p, err := start(cmd, newLines(), newLines())
	if err != nil {
		t.keyboard.Close()
		return nil, nil, err
	}
	go t.read()
	return p, t, nil
}

func openTerminal(width, height int) (*Terminal, *os.File, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	t := &Terminal{keyboard: master, changed: make(chan struct{})}
	err = errors.Join(t.Resize(width, height), unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err2 := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err := errors.Join(err, err2); err != nil {
		master.Close()
		return nil, nil, err
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		master.Close()
	}
	return t, tty, err
}

// read takes the program's output until it has ended.
func (t *Terminal) read() {
	defer t.keyboard.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := t.keyboard.Read(b)
		t.mu.Lock()
		t.screen.write(b[:n])
		close(t.changed)
		t.changed = make(chan struct{})
		t.mu.Unlock()
		if err != nil { // EIO: nobody has the other end open any more
			return
		}
	}
}

// Type sends what a person types: "\x03" is Ctrl-C.
func (t *Terminal) Type(keys string) error {
	_, err := t.keyboard.WriteString(keys)
	return err
}

// Resize gives the terminal another size. What is on the screen stays where it is.
func (t *Terminal) Resize(width, height int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.screen.resize(width, height)
	return unix.IoctlSetWinsize(int(t.keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)})
}

// Lines returns what the screen shows, without empty lines at its end. The error names what the screen does not understand.
func (t *Terminal) Lines() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.screen.text(), t.screen.err
}

// History returns the lines that have left the screen at its top.
func (t *Terminal) History() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string{}, t.screen.history...)
}

// Await waits until a line of the screen holds each of these texts, at most for limit.
func (t *Terminal) Await(limit time.Duration, texts ...string) error {
	timeout := time.After(limit)
	for {
		t.mu.Lock()
		lines, changed, err := t.screen.text(), t.changed, t.screen.err
		t.mu.Unlock()
		all := strings.Join(lines, "\n")
		missing := ""
		for _, text := range texts {
			if !strings.Contains(all, text) {
				missing = text
			}
		}
		if missing == "" || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-timeout:
			return fmt.Errorf("%q did not come on the screen within %v:\n%s", missing, limit, all)
		}
	}
}
