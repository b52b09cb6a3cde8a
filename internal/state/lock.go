package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// LockedError says that another process runs the mirror.
type LockedError struct {
	Path string
	PID  int // of that process; 0 if it has not written it yet
}

// Error names the process.
func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("state %s: another process runs this mirror", e.Path)
	}
	return fmt.Sprintf("state %s: process %d runs this mirror", e.Path, e.PID)
}

const (
	// glances is how often a lock that is held is tried again: Running holds it for a moment to look.
	glances     = 10
	glancePause = 20 * time.Millisecond
)

func lockPath(path string) string { return path + ".lock" }

// acquire locks the file that holds the owner's process id. The kernel ends a flock with the process, however that ends
// (flock(2)). A file that Remove has deleted meanwhile is no lock any more: another one may stand in its place.
func acquire(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(lockPath(path), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, &Error{Path: path, Op: "lock", Err: err}
		}
		if err := lockFile(f, path); err != nil {
			f.Close()
			return nil, err
		}
		if !isAt(f, lockPath(path)) {
			f.Close()
			continue
		}
		if err := writePID(f); err != nil {
			f.Close()
			return nil, &Error{Path: path, Op: "lock", Err: err}
		}
		return f, nil
	}
}

func lockFile(f *os.File, path string) error {
	for glance := 0; ; {
		err := flock(f, unix.LOCK_EX)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return &Error{Path: path, Op: "lock", Err: err, Hint: "put the state on a local file system"}
		}
		if glance++; glance == glances {
			return &LockedError{Path: path, PID: readPID(f)}
		}
		time.Sleep(glancePause)
	}
}

// flock takes a lock if that is free now.
func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func isAt(f *os.File, path string) bool {
	is, err := f.Stat()
	there, err2 := os.Stat(path)
	return err == nil && err2 == nil && os.SameFile(is, there)
}

// Owner is the process that holds a state file for itself.
type Owner struct {
	PID   int // 0: it has not told yet
	Since time.Time
}

// Running returns who holds the state file for itself, nil if nobody does. It writes nothing.
func Running(path string) (*Owner, error) {
	f, err := os.Open(lockPath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, &Error{Path: path, Op: "look at the lock", Err: err}
	}
	defer f.Close()
	err = flock(f, unix.LOCK_SH)
	if err == nil { // closing the file gives it back
		return nil, nil
	}
	var told os.FileInfo // the owner wrote it when it got the lock
	if errors.Is(err, unix.EWOULDBLOCK) {
		told, err = f.Stat()
	}
	if err != nil {
		return nil, &Error{Path: path, Op: "look at the lock", Err: err}
	}
	return &Owner{PID: readPID(f), Since: told.ModTime()}, nil
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func readPID(f *os.File) int {
	text, _ := io.ReadAll(io.LimitReader(f, 32)) // the process id only helps the reader of a message
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}
