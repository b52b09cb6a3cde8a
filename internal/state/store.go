// Package state keeps what a mirror must remember between two runs and what the sink does not know: the phases of its
// tables, the position that the source was promised to be free of, and the history of what happened. It is one SQLite
// file beside the config. The sink stays the truth for what is applied.
package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// Store is an open state file. Its methods are safe for concurrent use; they take turns.
type Store struct {
	path string
	lock *os.File          // nil for a Store of OpenRead
	conn chan *sqlite.Conn // holds the one connection while nobody uses it
}

// Error says that the state file cannot be used.
type Error struct {
	Path, Op string
	Err      error
	Hint     string // what to do; "" if that is plain
}

// Error writes the parts that are set in one line.
func (e *Error) Error() string {
	s := fmt.Sprintf("state %s: %s: %v", e.Path, e.Op, e.Err)
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Open opens the state file for the one process that runs the mirror, and makes it and its folder if they do not exist.
// The error is a [*LockedError] if another process holds it, else an [*Error]. The Store is to be closed.
func Open(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &Error{Path: path, Op: "open", Err: err}
	}
	// What is stored names tables and may quote a server's messages: nobody else's business.
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, &Error{Path: path, Op: "make folder", Err: err}
	}
	lock, err := acquire(path)
	if err != nil {
		return nil, err
	}
	conn, err := openLocked(ctx, path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	return newStore(path, conn, lock), nil
}

func openLocked(ctx context.Context, path string) (*sqlite.Conn, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(ctx, path); err != nil {
			return nil, fault(path, "create", err)
		}
	}
	conn, err := connect(ctx, path, path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	// FULL: a commit is on disk when it returns, also through a loss of power; WAL alone does not promise that.
	for _, setting := range []string{"PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL"} {
		if err := sqlitex.ExecuteTransient(conn, setting, nil); err != nil {
			conn.Close()
			return nil, fault(path, "open", err)
		}
	}
	return conn, nil
}

// OpenRead returns the state as it is now, also while another process runs the mirror; it takes no lock and creates
// nothing. The error is fs.ErrNotExist if there is no state. What is written later does not show in this Store, and its
// writing methods must not be used.
func OpenRead(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &Error{Path: path, Op: "open", Err: err}
	}
	if _, err := os.Stat(path); err != nil {
		return nil, &Error{Path: path, Op: "open", Err: err}
	}
	// SQLite makes the files -wal and -shm where it opens a database in WAL mode without them, unless it is told that
	// nobody writes the file. If a writer turned up during the copy, that was wrong, and its -wal is there now.
	if !exists(path + "-wal") {
		conn, err := copyToMemory(ctx, path, "file:"+(&url.URL{Path: path}).EscapedPath()+"?immutable=1")
		if !exists(path + "-wal") {
			if err != nil {
				return nil, err
			}
			return newStore(path, conn, nil), nil
		}
		if err == nil {
			conn.Close()
		}
	}
	conn, err := copyToMemory(ctx, path, path)
	if err != nil {
		return nil, err
	}
	return newStore(path, conn, nil), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// copyToMemory reads the whole database in one read transaction, so that everything read of it later belongs together
// and a reader holds up no checkpoint.
func copyToMemory(ctx context.Context, path, uri string) (*sqlite.Conn, error) {
	file, err := connect(ctx, path, uri, sqlite.OpenReadOnly|sqlite.OpenURI)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	memory, err := sqlite.OpenConn(":memory:", sqlite.OpenReadWrite)
	if err != nil {
		return nil, fault(path, "read", err)
	}
	if err := backup(memory, file); err != nil {
		memory.Close()
		return nil, fault(path, "read", err)
	}
	return memory, nil
}

func backup(to, from *sqlite.Conn) error {
	b, err := sqlite.NewBackup(to, "main", from, "main")
	if err != nil {
		return err
	}
	_, err = b.Step(-1)
	return errors.Join(err, b.Close())
}

// connect opens an existing database and refuses one that is not ours, not whole or of a newer version.
func connect(ctx context.Context, path, uri string, flags sqlite.OpenFlags) (*sqlite.Conn, error) {
	conn, err := sqlite.OpenConn(uri, flags)
	if err != nil {
		return nil, fault(path, "open", err)
	}
	conn.SetInterrupt(ctx.Done())
	if err := inspect(conn, path); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetInterrupt(nil)
	return conn, nil
}

func newStore(path string, conn *sqlite.Conn, lock *os.File) *Store {
	s := &Store{path: path, lock: lock, conn: make(chan *sqlite.Conn, 1)}
	s.conn <- conn
	return s
}

// Close gives the file and its lock back. It waits for calls under way; none may follow.
func (s *Store) Close() error {
	err := (<-s.conn).Close()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close()) // only now: the next owner must not meet our connection
	}
	if err != nil {
		return fault(s.path, "close", err)
	}
	return nil
}

// Remove closes the Store of [Open] and deletes its files; the folder stays. The lock goes last: whoever gets it then finds
// no state.
func (s *Store) Remove() error {
	errs := []error{(<-s.conn).Close()}
	for _, end := range []string{"", "-wal", "-shm"} {
		errs = append(errs, removeIfExists(s.path+end))
	}
	if err := errors.Join(errs...); err != nil {
		return fault(s.path, "remove", errors.Join(err, s.lock.Close()))
	}
	if err := errors.Join(os.Remove(lockPath(s.path)), s.lock.Close()); err != nil {
		return fault(s.path, "remove", err)
	}
	return nil
}

// do lends the connection to f. It ends f's statements at the end of ctx.
func (s *Store) do(ctx context.Context, op string, f func(*sqlite.Conn) error) error {
	var conn *sqlite.Conn
	select {
	case conn = <-s.conn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.conn <- conn }()
	conn.SetInterrupt(ctx.Done())
	defer conn.SetInterrupt(nil)
	if err := f(conn); err != nil {
		if ctx.Err() != nil && sqlite.ErrCode(err) == sqlite.ResultInterrupt {
			return ctx.Err()
		}
		return fault(s.path, op, err)
	}
	return nil
}

// write runs f in one transaction, durable when write returns nil.
func (s *Store) write(ctx context.Context, op string, f func(*sqlite.Conn) error) error {
	return s.do(ctx, op, func(conn *sqlite.Conn) (err error) {
		end, err := sqlitex.ImmediateTransaction(conn)
		if err != nil {
			return err
		}
		defer end(&err)
		return f(conn)
	})
}

// fault makes an *Error of SQLite's error; one in the chain is returned as it is.
func fault(path, op string, err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Path: path, Op: op, Err: err}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultCorrupt, sqlite.ResultNotADB:
		e.Hint = damagedHint
	case sqlite.ResultFull, sqlite.ResultIOErr:
		e.Hint = "look at the disk"
	}
	return e
}
