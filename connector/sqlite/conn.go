package sqlite

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// maxStatements bounds the prepared statements that are kept beyond a transaction.
const maxStatements = 256

// writeSettings are those of the write connection.
//
// synchronous = FULL puts a commit on disk before it returns; NORMAL in WAL mode would not, and the source's log is
// released on it. foreign_keys = OFF: tables are mirrored independently, so a child may come before its parent.
// legacy_alter_table = ON keeps a rename from looking into views and triggers, which go by names and must not be
// rewritten. The page cache is 32 MiB, and a write-ahead log that a large transaction has blown up shrinks to 64 MiB.
var writeSettings = []string{
	"PRAGMA synchronous = FULL", "PRAGMA foreign_keys = OFF", "PRAGMA legacy_alter_table = ON",
	"PRAGMA cache_size = -32768", "PRAGMA journal_size_limit = 67108864",
}

// writer is the one connection that writes, with what is known of it. Whoever took it from Sink.writer has it alone.
type writer struct {
	conn       *sqlite.Conn // nil before the first Claim
	file       fs.FileInfo  // of the file that conn has open
	claim      claim
	entries    map[string]string // as stored
	layouts    map[string]*layout
	statements map[string]*sqlite.Stmt
}

// claim is what a transaction proves before it does anything.
type claim struct {
	mirror, id string
	epoch      int64
}

// open connects, making the file if it does not exist. A connection to a file that is not at this path any more is given
// up for a new one.
func (w *writer) open(ctx context.Context, path string, wait time.Duration) error {
	if w.conn != nil && !w.replaced(path) {
		return nil
	}
	w.close()
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite, sqlite.OpenCreate)
	if err != nil {
		return err
	}
	w.conn, w.layouts, w.statements = conn, map[string]*layout{}, map[string]*sqlite.Stmt{}
	err = w.bounded(ctx, wait, w.useLog)
	for _, setting := range writeSettings {
		if err == nil {
			err = w.bounded(ctx, wait, func() error { return w.exec(setting) })
		}
	}
	if err == nil {
		err = w.proveUnbound()
	}
	if err == nil {
		w.file, err = os.Stat(path)
	}
	if err != nil {
		w.close()
	}
	return err
}

// proveUnbound asks whether foreign keys are off: SQLite says nothing where it does not follow a setting.
func (w *writer) proveUnbound() error {
	on, err := queryText(w.conn, "PRAGMA foreign_keys")
	if err == nil && on != "0" {
		err = fault(connector.Internal, "open the file", schema.Name{}, "", "foreign keys cannot be switched off")
	}
	return err
}

// useLog gives the file a write-ahead log.
func (w *writer) useLog() error {
	mode, err := queryText(w.conn, "PRAGMA journal_mode = WAL")
	if err == nil && mode != "wal" {
		err = fault(connector.Setup, "open the file", schema.Name{}, "put the file on a local disk", "it cannot be used with a write-ahead log (mode %s)", mode)
	}
	return err
}

// replaced reports whether the file at path is another one than the connection's, or gone: what is written then is lost.
func (w *writer) replaced(path string) bool {
	now, err := os.Stat(path)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, w.file)
}

func (w *writer) close() error {
	if w.conn == nil {
		return nil
	}
	w.forget()
	err := w.conn.Close()
	w.conn = nil
	return err
}

// bounded runs f, one statement, which ends with ctx. A lock that another program holds is waited for no longer than wait.
func (w *writer) bounded(ctx context.Context, wait time.Duration, f func() error) error {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	w.conn.SetInterrupt(limited.Done())
	defer w.conn.SetInterrupt(nil)
	err := f()
	switch code := sqlite.ErrCode(err).ToPrimary(); {
	case err == nil || code != sqlite.ResultInterrupt && code != sqlite.ResultBusy:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fault(connector.Unavailable, "lock the file", schema.Name{}, "end the transaction of the other program",
			"another program has held it locked for %s", wait)
	}
	return err
}

// exec runs one statement that is not worth keeping.
func (w *writer) exec(sql string, args ...any) error {
	return sqlitex.ExecuteTransient(w.conn, sql, &sqlitex.ExecOptions{Args: args})
}

// query runs one statement that is not worth keeping and hands its rows to each.
func (w *writer) query(sql string, each func(*sqlite.Stmt), args ...any) error {
	return query(w.conn, sql, each, args...)
}

func query(conn *sqlite.Conn, sql string, each func(*sqlite.Stmt), args ...any) error {
	return sqlitex.ExecuteTransient(conn, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: func(s *sqlite.Stmt) error {
		if each != nil {
			each(s)
		}
		return nil
	}})
}

// queryText returns the first column of the last row, "" where there is none.
func queryText(conn *sqlite.Conn, sql string, args ...any) (text string, err error) {
	err = query(conn, sql, func(s *sqlite.Stmt) { text = s.ColumnText(0) }, args...)
	return text, err
}

// prepare returns a statement that is kept, to be bound anew in full.
func (w *writer) prepare(sql string) (*sqlite.Stmt, error) {
	if s := w.statements[sql]; s != nil {
		return s, nil
	}
	s, _, err := w.conn.PrepareTransient(sql)
	if err == nil {
		w.statements[sql] = s
	}
	return s, err
}

// run executes a statement that returns no rows and readies it for the next values.
func run(s *sqlite.Stmt) error {
	if _, err := s.Step(); err != nil {
		return err
	}
	return s.Reset()
}

// forget drops the prepared statements.
func (w *writer) forget() {
	for _, s := range w.statements {
		_ = s.Finalize() // repeats the error of its last run
	}
	clear(w.statements)
}

// reader is the connection that Plan reads with, beside a transaction that may be under way.
type reader struct {
	conn      *sqlite.Conn
	immutable bool // opened as if nobody wrote the file
}

// read lends f a connection that only reads; f is not called if the file does not exist. Nothing is made beside the file:
// SQLite would make -wal and -shm for a database in WAL mode that has none, unless told that nobody writes it. If a writer
// turned up meanwhile that was wrong, so f is called again.
func (s *Sink) read(ctx context.Context, f func(*sqlite.Conn) error) error {
	var r *reader
	select {
	case r = <-s.reader:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.reader <- r }()
	for {
		if err := r.open(s.path); err != nil || r.conn == nil {
			return err
		}
		r.conn.SetInterrupt(ctx.Done())
		err := f(r.conn)
		r.conn.SetInterrupt(nil)
		if r.immutable && exists(s.path+"-wal") {
			r.close()
			continue
		}
		if err != nil {
			r.close()
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return err
	}
}

func (r *reader) open(path string) (err error) {
	if r.conn != nil || !exists(path) {
		return nil
	}
	if r.immutable = !exists(path+"-wal") && !exists(path+"-journal"); r.immutable {
		r.conn, err = sqlite.OpenConn("file:"+(&url.URL{Path: path}).EscapedPath()+"?immutable=1", sqlite.OpenReadOnly, sqlite.OpenURI)
	} else {
		r.conn, err = sqlite.OpenConn(path, sqlite.OpenReadOnly)
	}
	if err == nil {
		r.conn.SetBusyTimeout(busyWait)
	}
	return err
}

func (r *reader) close() {
	if r.conn != nil {
		_ = r.conn.Close() // it has only read
		r.conn = nil
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
