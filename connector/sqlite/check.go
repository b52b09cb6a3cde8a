package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Checker = (*Sink)(nil)

const (
	// leastFree is the room on the disk, in bytes, below which nothing is worth beginning: the write-ahead log alone may
	// keep that much (writeSettings).
	leastFree = 64 << 20
	// headerBytes is the length of a database file's header (https://www.sqlite.org/fileformat2.html, 1.3).
	headerBytes = 100
)

// Check finds what keeps the mirror from writing destinations of these names; see connector.Checker. It makes no file. Whether
// a table that exists can be used as it is declared, and with its rows, is Plan's to judge.
func (s *Sink) Check(ctx context.Context, ts []*schema.Table) ([]connector.Problem, error) {
	c := &fileCheck{sink: s, tables: ts}
	c.checkFile()
	c.checkFolder()
	var err error
	if c.database {
		outside := c.problems
		err = c.sink.read(ctx, func(conn *sqlite.Conn) error { // it may be called twice
			c.problems = slices.Clone(outside)
			return c.checkContents(conn)
		})
	} else {
		c.lookForRoom(ts)
	}
	err = wrapError(err, "check the set-up", schema.Name{})
	if e, ok := errors.AsType[*connector.Error](err); ok && e.Kind == connector.Setup {
		c.fault("", e.Hint, "the file %s cannot be used: %v", s.path, e.Err)
		err = nil
	}
	return c.problems, err
}

// fileCheck is one Check under way.
type fileCheck struct {
	sink     *Sink
	tables   []*schema.Table
	database bool  // the file is a database that can be read
	free     int64 // bytes that the disk has left; -1 unknown
	problems []connector.Problem
}

func (c *fileCheck) fault(table, fix, format string, args ...any) {
	c.problems = append(c.problems, connector.Problem{Table: table, What: fmt.Sprintf(format, args...), Fix: fix})
}

func (c *fileCheck) note(fix, format string, args ...any) {
	c.problems = append(c.problems, connector.Problem{What: fmt.Sprintf(format, args...), Fix: fix, Note: true})
}

// checkFile looks at the file, which need not exist, and at those that SQLite keeps beside it.
func (c *fileCheck) checkFile() {
	path := c.sink.path
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		c.fault("", "set `path` to a file in a folder that this user may use", "the file cannot be reached: %v", err)
		return
	case !info.Mode().IsRegular():
		c.fault("", "set `path` to a file", "%s is no file (%s)", path, info.Mode().Type())
		return
	}
	for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
		if err := mayWrite(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.fault("", "make the file writable for this user", "%s%s cannot be written: %v", path, suffix, err)
		}
	}
	c.checkHeader(info.Size())
}

// checkHeader tells from the file's beginning whether it is a database, and which kind of journal it has.
func (c *fileCheck) checkHeader(size int64) {
	if size == 0 {
		return // SQLite takes it for a new one
	}
	const wal, rollback = 2, 1 // the versions at offset 18, needed to write, and 19, to read
	header := make([]byte, headerBytes)
	file, err := os.Open(c.sink.path)
	if err == nil {
		defer file.Close()
		_, err = io.ReadFull(file, header)
	}
	short := errors.Is(err, io.ErrUnexpectedEOF)
	switch {
	case err != nil && !short:
		c.fault("", "make the file readable for this user", "the file cannot be read: %v", err)
	case short || string(header[:16]) != "SQLite format 3\x00":
		c.fault("", "set `path` to another file, or remove it", "the file %s is no SQLite database", c.sink.path)
	case header[18] > wal || header[19] > wal:
		c.fault("", "use a newer version of sluice for this file", "the file %s has a format that is newer than this SQLite", c.sink.path)
	default:
		c.database = true
		if header[18] == rollback {
			c.note("", "the file has a rollback journal: the mirror changes it to a write-ahead log, which stays")
		}
	}
}

// checkFolder looks at the folder, in which SQLite makes the write-ahead log also if the file exists, and at its disk.
func (c *fileCheck) checkFolder() {
	c.free = -1
	path := c.sink.path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	folder := filepath.Dir(path)
	info, err := os.Stat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.fault("", "make the folder, or set `path` to a file in another one", "the folder %s does not exist", folder)
		return
	case err == nil && !info.IsDir():
		c.fault("", "set `path` to a file in a folder", "%s is no folder", folder)
		return
	case err != nil:
		return // reported of the file
	}
	if err := mayWrite(folder); err != nil {
		c.fault("", "make the folder writable for this user", "in the folder %s no file can be made: %v", folder, err)
	}
	free, network, err := readDisk(folder)
	if err != nil {
		c.note("", "the room on the disk of %s is not known: %v", folder, err)
		return
	}
	c.free = free
	if network != "" {
		c.fault("", "put the file on a local disk", "the folder %s is on a network (%s), where a write-ahead log does not work", folder, network)
	}
}

// mayWrite returns why this process may not write a file, or make files in a folder.
func mayWrite(path string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "access", Path: path, Err: err}
	}
	return nil
}

// lookForRoom compares the disk with the estimated size of the tables that are still to be copied.
func (c *fileCheck) lookForRoom(missing []*schema.Table) {
	var need int64
	for _, t := range missing {
		need += max(t.Rows, 0) * max(t.RowBytes, 0)
	}
	switch {
	case c.free < 0:
	case c.free < leastFree:
		c.fault("", "make room on the disk", "the disk has %.1f MiB left, less than the %d MiB of the write-ahead log", mebibytes(c.free), leastFree>>20)
	case c.free < need:
		c.note("make room on the disk, or put the file on another one",
			"the disk has %.1f MiB left, and the tables to be copied take about %.1f MiB at the source", mebibytes(c.free), mebibytes(need))
	}
}

func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// checkContents looks at what the file holds.
func (c *fileCheck) checkContents(conn *sqlite.Conn) error {
	err := c.checkMirror(conn)
	var missing []*schema.Table
	for _, t := range c.tables {
		if err != nil {
			break
		}
		var d destination
		target := &connector.Target{Table: t, Name: destinationOf(t.Name)}
		if d, err = c.sink.findDestination(conn, target); err != nil {
			break
		}
		if what, fix := d.foreign(target.Name.Table); what != "" {
			c.fault(t.Name.String(), fix, "%s", what)
		}
		if !d.exists {
			missing = append(missing, t)
		}
	}
	if err == nil {
		c.lookForRoom(missing)
	}
	return err
}

// checkMirror looks for another mirror of our name, and for what a newer version of sluice has made.
func (c *fileCheck) checkMirror(conn *sqlite.Conn) error {
	kept, err := queryText(conn, "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'sluice_mirror'")
	if err != nil || kept == "" {
		return err
	}
	name, id := c.sink.mirrorIDs()
	return query(conn, "SELECT id, format FROM sluice_mirror WHERE name = ?1 OR format > ?2", func(row *sqlite.Stmt) {
		stored, format := row.ColumnText(0), row.ColumnInt(1)
		switch {
		case format > sinkFormat:
			c.fault("", "use the newer version of sluice for this file", "the tables sluice_... have format %d, newer than %d", format, sinkFormat)
		case id == "":
			c.note("if that is another mirror, give this one another name",
				"a mirror named %q writes here already, and this one was never run with the present state: a run takes the other over", name)
		case stored != id:
			c.fault("", "give this mirror another name, or tear the other one down", "another mirror named %q already writes here", name)
		}
	}, name, sinkFormat)
}
