package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

const (
	// applicationID is "SLCE", in the header of every state file (SQLite: PRAGMA application_id).
	applicationID = 0x534c4345
	// formatVersion is that of the schema below (PRAGMA user_version). A change of the schema raises it.
	formatVersion = 1

	damagedHint = "the file is damaged: restore it, or move it away to begin with an empty state"
)

// format1 is the schema. STRICT makes a value of another type damage that inspect finds. Times are nanoseconds since
// 1970, 0 for none.
const format1 = `
CREATE TABLE mirror (
	one         INTEGER PRIMARY KEY CHECK (one = 1),
	id          TEXT NOT NULL,
	floor       TEXT NOT NULL,
	saved       INTEGER NOT NULL,
	clock_ahead INTEGER NOT NULL
) STRICT;
INSERT INTO mirror VALUES (1, '', '', 0, 0);

CREATE TABLE mirrored_table (
	id                 TEXT PRIMARY KEY,
	schema             TEXT NOT NULL,
	name               TEXT NOT NULL,
	destination_schema TEXT NOT NULL,
	destination        TEXT NOT NULL,
	phase              TEXT NOT NULL,
	reason             TEXT NOT NULL,
	remedy             TEXT NOT NULL,
	paused_by          TEXT NOT NULL,
	since              INTEGER NOT NULL,
	retry_at           INTEGER NOT NULL,
	copy               INTEGER NOT NULL,
	checkpoint         TEXT NOT NULL,
	fingerprint        TEXT NOT NULL,
	rows_copied        INTEGER NOT NULL,
	rows_reread        INTEGER NOT NULL,
	rows_estimated     INTEGER NOT NULL,
	changes_applied    INTEGER NOT NULL,
	behind_since       INTEGER NOT NULL,
	behind_bytes       INTEGER NOT NULL,
	lane_bytes         INTEGER NOT NULL,
	failures           INTEGER NOT NULL,
	quarantined        INTEGER NOT NULL,
	last_error         TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE segment (
	table_id TEXT NOT NULL,
	number   INTEGER NOT NULL,
	size     INTEGER NOT NULL,
	PRIMARY KEY (table_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
	number INTEGER PRIMARY KEY AUTOINCREMENT,
	at     INTEGER NOT NULL,
	schema TEXT NOT NULL,
	name   TEXT NOT NULL,
	kind   TEXT NOT NULL,
	text   TEXT NOT NULL
) STRICT;

CREATE TABLE command (
	number      INTEGER PRIMARY KEY AUTOINCREMENT,
	kind        TEXT NOT NULL,
	table_id    TEXT NOT NULL,
	schema      TEXT NOT NULL,
	name        TEXT NOT NULL,
	row         TEXT NOT NULL,
	asked_at    INTEGER NOT NULL,
	asked_by    TEXT NOT NULL,
	accepted_at INTEGER NOT NULL,
	copy        INTEGER NOT NULL,
	done_at     INTEGER NOT NULL,
	failed      INTEGER NOT NULL,
	outcome     TEXT NOT NULL
) STRICT;
`

// create makes an empty state file under another name and renames it: a file of this name is whole or damaged, never
// half made.
func create(ctx context.Context, path string) error {
	draft := path + ".new"
	if err := errors.Join(removeIfExists(draft), removeIfExists(draft+"-journal")); err != nil {
		return err
	}
	// SQLite would make the file readable for all; those that it makes beside it take after it.
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := writeFormat(ctx, draft); err != nil {
		return err
	}
	if err := os.Rename(draft, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func removeIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func writeFormat(ctx context.Context, path string) error {
	conn, err := sqlite.OpenConn(path, sqlite.OpenReadWrite)
	if err != nil {
		return err
	}
	conn.SetInterrupt(ctx.Done())
	script := fmt.Sprintf("%s PRAGMA application_id = %d; PRAGMA user_version = %d;", format1, applicationID, formatVersion)
	return errors.Join(sqlitex.ExecuteScript(conn, script, nil), conn.Close())
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// inspect refuses a database that this program would misread. The version comes first: nothing else is known of a newer
// one. The whole file is checked since it is small, and since a mirror that believes a damaged state loses rows.
func inspect(conn *sqlite.Conn, path string) error {
	id, err := pragma(conn, "application_id")
	if err != nil {
		return fault(path, "open", err)
	}
	version, err := pragma(conn, "user_version")
	if err != nil {
		return fault(path, "open", err)
	}
	switch {
	case id == 0 && version == 0:
		return &Error{Path: path, Op: "open", Err: errors.New("it is no state file of sluice, or it was emptied"), Hint: damagedHint}
	case id != applicationID:
		return &Error{Path: path, Op: "open", Err: errors.New("it is a database of another program"), Hint: "set state.path to another file"}
	case version > formatVersion:
		return &Error{
			Path: path, Op: "open",
			Err:  fmt.Errorf("it has format %d, this program knows formats up to %d", version, formatVersion),
			Hint: "run the mirror with the newer version of sluice that wrote it",
		}
	case version < 1:
		return &Error{Path: path, Op: "open", Err: fmt.Errorf("it has format %d, which never existed", version), Hint: damagedHint}
	}
	return checkIntegrity(conn, path)
}

func pragma(conn *sqlite.Conn, name string) (value int, err error) {
	err = sqlitex.ExecuteTransient(conn, "PRAGMA "+name, &sqlitex.ExecOptions{ResultFunc: func(r *sqlite.Stmt) error {
		value = r.ColumnInt(0)
		return nil
	}})
	return value, err
}

func checkIntegrity(conn *sqlite.Conn, path string) error {
	finding := ""
	err := sqlitex.ExecuteTransient(conn, "PRAGMA integrity_check(1)", &sqlitex.ExecOptions{ResultFunc: func(r *sqlite.Stmt) error {
		finding = r.ColumnText(0)
		return nil
	}})
	if err != nil {
		return fault(path, "check", err)
	}
	if finding != "ok" {
		return &Error{Path: path, Op: "check", Err: errors.New(finding), Hint: damagedHint}
	}
	return nil
}
