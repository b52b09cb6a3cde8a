package state

import (
	"context"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/schema"
)

// Table is what is remembered of one table. Times are kept to the nanosecond, in UTC.
type Table struct {
	ID                       schema.ID
	Name, Destination        schema.Name
	Phase                    string // pending, copying, catching_up, streaming, paused, refused, dropped
	Reason, Remedy, PausedBy string // for paused and refused
	Since, RetryAt           time.Time
	Copy                     int    // number of the copy under way, or last ready
	Checkpoint               string // as last seen in the sink
	Fingerprint              string // of the settings and columns under which it runs
	RowsEstimated            int64
	Progress
}

// Progress is what changes of a table while it is mirrored.
type Progress struct {
	RowsCopied     int64     // of the newest copy
	RowsReread     int64     // from the source, since the table was first mirrored, to replay changes over a copy of several moments
	ChangesApplied int64     // since the table was first mirrored
	BehindSince    time.Time // by the source's clock, when the oldest change that is not durable was committed; zero: none
	BehindBytes    int64     // of log from there on; -1: not known
	LaneBytes      int64     // of changes that wait in memory
	Failures       int       // in a row
	Quarantined    int       // rows in quarantine
	LastError      string
}

// Run is what the process that runs the mirror, or ran it last, has told of itself.
type Run struct {
	Saved      time.Time     // when it did
	ClockAhead time.Duration // the source's clock, less this machine's
}

// Event is an entry of the history.
type Event struct {
	At         time.Time
	Table      schema.Name // zero for the whole mirror
	Kind, Text string
}

// maxEvents bounds the history: the oldest ones go.
const maxEvents = 10_000

// MirrorID returns the mirror's id, "" if it has none yet.
func (s *Store) MirrorID(ctx context.Context) (string, error) {
	return s.readMirror(ctx, "read the mirror's id", "SELECT id FROM mirror")
}

// SetMirrorID keeps the mirror's id.
func (s *Store) SetMirrorID(ctx context.Context, id string) error {
	return s.write(ctx, "save the mirror's id", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "UPDATE mirror SET id = ?", &sqlitex.ExecOptions{Args: []any{id}})
	})
}

// Run returns what SaveProgress kept last, zero if nothing.
func (s *Store) Run(ctx context.Context) (run Run, err error) {
	err = s.do(ctx, "read the last run", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT saved, clock_ahead FROM mirror",
			&sqlitex.ExecOptions{ResultFunc: func(r *sqlite.Stmt) error {
				run = Run{Saved: toTime(r.GetInt64("saved")), ClockAhead: time.Duration(r.GetInt64("clock_ahead"))}
				return nil
			}})
	})
	return run, err
}

// SaveProgress keeps how far a run is, and its tables. What else is kept of a table stays, in particular its checkpoint;
// a table that was never saved is passed over.
func (s *Store) SaveProgress(ctx context.Context, run Run, tables map[schema.ID]Progress) error {
	return s.write(ctx, "save the progress", func(conn *sqlite.Conn) error {
		err := sqlitex.Execute(conn, "UPDATE mirror SET saved = ?, clock_ahead = ?",
			&sqlitex.ExecOptions{Args: []any{fromTime(run.Saved), int64(run.ClockAhead)}})
		for id, p := range tables {
			if err != nil {
				return err
			}
			err = sqlitex.Execute(conn, `UPDATE mirrored_table SET rows_copied = ?, rows_reread = ?, changes_applied = ?, behind_since = ?,
				behind_bytes = ?, lane_bytes = ?, failures = ?, quarantined = ?, last_error = ? WHERE id = ?`,
				&sqlitex.ExecOptions{Args: []any{
					p.RowsCopied, p.RowsReread, p.ChangesApplied, fromTime(p.BehindSince), p.BehindBytes, p.LaneBytes, p.Failures, p.Quarantined, p.LastError, string(id),
				}})
		}
		return err
	})
}

// Floor returns what SaveFloor kept last, "" if nothing.
func (s *Store) Floor(ctx context.Context) (string, error) {
	return s.readMirror(ctx, "read the floor", "SELECT floor FROM mirror")
}

func (s *Store) readMirror(ctx context.Context, op, query string) (value string, err error) {
	err = s.do(ctx, op, func(conn *sqlite.Conn) (err error) {
		stmt, err := conn.Prepare(query)
		if err != nil {
			return err
		}
		value, err = sqlitex.ResultText(stmt)
		return err
	})
	return value, err
}

// SaveFloor keeps the floor, together with the checkpoints of tables that were saved before; the others keep theirs. It
// stands between the sink's commit and the source's acknowledgement.
func (s *Store) SaveFloor(ctx context.Context, floor string, checkpoints map[schema.ID]string) error {
	return s.write(ctx, "save the floor", func(conn *sqlite.Conn) error {
		err := sqlitex.Execute(conn, "UPDATE mirror SET floor = ?", &sqlitex.ExecOptions{Args: []any{floor}})
		if err != nil {
			return err
		}
		for id, checkpoint := range checkpoints {
			err := sqlitex.Execute(conn, "UPDATE mirrored_table SET checkpoint = ? WHERE id = ?",
				&sqlitex.ExecOptions{Args: []any{checkpoint, string(id)}})
			if err != nil {
				return err
			}
			if conn.Changes() != 1 {
				return fmt.Errorf("the table with id %s was never saved", id)
			}
		}
		return nil
	})
}

// Tables returns every table ever saved, by name.
func (s *Store) Tables(ctx context.Context) ([]Table, error) {
	var tables []Table
	err := s.do(ctx, "read the tables", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT * FROM mirrored_table ORDER BY schema, name, id",
			&sqlitex.ExecOptions{ResultFunc: func(r *sqlite.Stmt) error {
				tables = append(tables, readTable(r))
				return nil
			}})
	})
	return tables, err
}

func readTable(r *sqlite.Stmt) Table {
	return Table{
		ID:            schema.ID(r.GetText("id")),
		Name:          schema.Name{Schema: r.GetText("schema"), Table: r.GetText("name")},
		Destination:   schema.Name{Schema: r.GetText("destination_schema"), Table: r.GetText("destination")},
		Phase:         r.GetText("phase"),
		Reason:        r.GetText("reason"),
		Remedy:        r.GetText("remedy"),
		PausedBy:      r.GetText("paused_by"),
		Since:         toTime(r.GetInt64("since")),
		RetryAt:       toTime(r.GetInt64("retry_at")),
		Copy:          int(r.GetInt64("copy")),
		Checkpoint:    r.GetText("checkpoint"),
		Fingerprint:   r.GetText("fingerprint"),
		RowsEstimated: r.GetInt64("rows_estimated"),
		Progress: Progress{
			RowsCopied:     r.GetInt64("rows_copied"),
			RowsReread:     r.GetInt64("rows_reread"),
			ChangesApplied: r.GetInt64("changes_applied"),
			BehindSince:    toTime(r.GetInt64("behind_since")),
			BehindBytes:    r.GetInt64("behind_bytes"),
			LaneBytes:      r.GetInt64("lane_bytes"),
			Failures:       int(r.GetInt64("failures")),
			Quarantined:    int(r.GetInt64("quarantined")),
			LastError:      r.GetText("last_error"),
		},
	}
}

// SaveTables keeps these tables, all or none, in place of what is kept under their ids.
func (s *Store) SaveTables(ctx context.Context, tables ...Table) error {
	return s.write(ctx, "save tables", func(conn *sqlite.Conn) error {
		for i := range tables {
			if err := saveTable(conn, &tables[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

func saveTable(conn *sqlite.Conn, t *Table) error {
	return sqlitex.Execute(conn, `
		INSERT OR REPLACE INTO mirrored_table (id, schema, name, destination_schema, destination, phase, reason, remedy,
			paused_by, since, retry_at, copy, checkpoint, fingerprint, rows_copied, rows_reread, rows_estimated, changes_applied,
			behind_since, behind_bytes, lane_bytes, failures, quarantined, last_error)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		&sqlitex.ExecOptions{Args: []any{
			string(t.ID), t.Name.Schema, t.Name.Table, t.Destination.Schema, t.Destination.Table, t.Phase, t.Reason, t.Remedy,
			t.PausedBy, fromTime(t.Since), fromTime(t.RetryAt), t.Copy, t.Checkpoint, t.Fingerprint, t.RowsCopied,
			t.RowsReread, t.RowsEstimated, t.ChangesApplied, fromTime(t.BehindSince), t.BehindBytes, t.LaneBytes, t.Failures, t.Quarantined, t.LastError,
		}})
}

// Segment is a file of the spool with changes of a table: Size bytes of it are on disk for certain.
type Segment struct {
	Table  schema.ID
	Number int
	Size   int64
}

// Segments returns what SaveSegments kept last.
func (s *Store) Segments(ctx context.Context) ([]Segment, error) {
	var segments []Segment
	err := s.do(ctx, "read the list of the spool's files", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT * FROM segment ORDER BY table_id, number",
			&sqlitex.ExecOptions{ResultFunc: func(r *sqlite.Stmt) error {
				segments = append(segments, Segment{
					Table: schema.ID(r.GetText("table_id")), Number: int(r.GetInt64("number")), Size: r.GetInt64("size"),
				})
				return nil
			}})
	})
	return segments, err
}

// SaveSegments keeps these files in place of all that were kept.
func (s *Store) SaveSegments(ctx context.Context, segments []Segment) error {
	return s.write(ctx, "save the list of the spool's files", func(conn *sqlite.Conn) error {
		if err := sqlitex.Execute(conn, "DELETE FROM segment", nil); err != nil {
			return err
		}
		for _, seg := range segments {
			err := sqlitex.Execute(conn, "INSERT INTO segment (table_id, number, size) VALUES (?, ?, ?)",
				&sqlitex.ExecOptions{Args: []any{string(seg.Table), seg.Number, seg.Size}})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// AddEvent appends to the history.
func (s *Store) AddEvent(ctx context.Context, e Event) error {
	return s.write(ctx, "save an event", func(conn *sqlite.Conn) error {
		err := sqlitex.Execute(conn, "INSERT INTO event (at, schema, name, kind, text) VALUES (?, ?, ?, ?, ?)",
			&sqlitex.ExecOptions{Args: []any{fromTime(e.At), e.Table.Schema, e.Table.Table, e.Kind, e.Text}})
		if err != nil {
			return err
		}
		return sqlitex.Execute(conn, "DELETE FROM event WHERE number <= ?",
			&sqlitex.ExecOptions{Args: []any{conn.LastInsertRowID() - maxEvents}})
	})
}

// Events returns the last limit events, oldest first.
func (s *Store) Events(ctx context.Context, limit int) ([]Event, error) {
	var events []Event
	err := s.do(ctx, "read the events", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT * FROM (SELECT * FROM event ORDER BY number DESC LIMIT ?) ORDER BY number",
			&sqlitex.ExecOptions{Args: []any{max(limit, 0)}, ResultFunc: func(r *sqlite.Stmt) error {
				events = append(events, Event{
					At:    toTime(r.GetInt64("at")),
					Table: schema.Name{Schema: r.GetText("schema"), Table: r.GetText("name")},
					Kind:  r.GetText("kind"),
					Text:  r.GetText("text"),
				})
				return nil
			}})
	})
	return events, err
}

func fromTime(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func toTime(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
