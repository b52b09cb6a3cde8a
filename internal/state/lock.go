package state

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

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

// acquire locks the file path+".lock", which holds the owner's process id and is never deleted: a second file of that
// name could be locked beside the first. The kernel ends a flock with the process, however that ends (flock(2)).
func acquire(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &Error{Path: path, Op: "lock", Err: err}
	}
	if err := lockFile(f, path); err != nil {
		f.Close()
		return nil, err
	}
	if err := writePID(f); err != nil {
		f.Close()
		return nil, &Error{Path: path, Op: "lock", Err: err}
	}
	return f, nil
}

func lockFile(f *os.File, path string) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return &LockedError{Path: path, PID: readPID(f)}
		default:
			return &Error{Path: path, Op: "lock", Err: err, Hint: "put the state on a local file system"}
		}
	}
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
