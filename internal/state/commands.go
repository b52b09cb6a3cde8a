package state

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/sluicehq/sluice/schema"
)

// CommandKind is what is to be done with a table.
type CommandKind string

// The kinds of commands.
const (
	Pause  CommandKind = "pause"
	Resume CommandKind = "resume"
	Resync CommandKind = "resync"
	Retry  CommandKind = "retry" // rows in quarantine
	Drop   CommandKind = "drop"  // rows from quarantine
)

// Command is what a person asked of one table. It is open until DoneAt; an open one survives the process that works on it.
type Command struct {
	Number     int64 // in the order in which they were asked for
	Kind       CommandKind
	Table      schema.ID
	Name       schema.Name // of the table, when it was asked for
	Row        string      // of Retry and Drop, which row, as the quarantine names it; "": all that are there
	AskedAt    time.Time
	AskedBy    string    // for people
	AcceptedAt time.Time // when a run took note of it; zero: none has
	Copy       int       // of an accepted Resync: the copy in place then; a later one fulfils it
	DoneAt     time.Time
	Failed     bool   // done without what was asked for
	Outcome    string // for people, once it is done
}

// maxCommands bounds the commands that are done: the oldest ones go. Open ones are few for each table, see AddCommands.
const maxCommands = 300

// superseded is the outcome of a command after which another one was given.
const superseded = "a later command took its place"

// OpenBeside opens an existing state file to give commands, also while another process runs the mirror: it takes no lock.
// The error is fs.ErrNotExist if there is no state. Only the methods that have to do with commands, and those that read,
// may be used. The Store is to be closed.
func OpenBeside(ctx context.Context, path string) (*Store, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, &Error{Path: path, Op: "open", Err: err}
	}
	if _, err := os.Stat(path); err != nil {
		return nil, &Error{Path: path, Op: "open", Err: err}
	}
	conn, err := connect(ctx, path, path, sqlite.OpenReadWrite)
	if err != nil {
		return nil, err
	}
	if err := sqlitex.ExecuteTransient(conn, "PRAGMA synchronous = FULL", nil); err != nil {
		conn.Close()
		return nil, fault(path, "open", err)
	}
	return newStore(path, conn, nil), nil
}

// AddCommands records commands, all or none, and returns their numbers. A Pause or Resume takes the place of open ones of
// its table, a Resync, Retry or Drop that of the same one that was not accepted.
func (s *Store) AddCommands(ctx context.Context, commands ...Command) ([]int64, error) {
	numbers := make([]int64, len(commands))
	err := s.write(ctx, "record a command", func(conn *sqlite.Conn) error {
		for i := range commands {
			if err := addCommand(conn, &commands[i]); err != nil {
				return err
			}
			numbers[i] = conn.LastInsertRowID()
		}
		return sqlitex.Execute(conn, `DELETE FROM command WHERE done_at <> 0 AND number <=
			(SELECT number FROM command WHERE done_at <> 0 ORDER BY number DESC LIMIT 1 OFFSET ?)`,
			&sqlitex.ExecOptions{Args: []any{maxCommands}})
	})
	return numbers, err
}

func addCommand(conn *sqlite.Conn, c *Command) error {
	replaced, args := "kind IN ('pause', 'resume')", []any{fromTime(c.AskedAt), superseded, string(c.Table)}
	if c.Kind != Pause && c.Kind != Resume {
		replaced, args = "kind = ? AND row = ? AND accepted_at = 0", append(args, string(c.Kind), c.Row)
	}
	err := sqlitex.Execute(conn, "UPDATE command SET done_at = ?, failed = 1, outcome = ? WHERE table_id = ? AND done_at = 0 AND "+replaced,
		&sqlitex.ExecOptions{Args: args})
	if err != nil {
		return err
	}
	return sqlitex.Execute(conn, `INSERT INTO command (kind, table_id, schema, name, row, asked_at, asked_by, accepted_at, copy, done_at, failed, outcome)
		VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, '')`,
		&sqlitex.ExecOptions{Args: []any{string(c.Kind), string(c.Table), c.Name.Schema, c.Name.Table, c.Row, fromTime(c.AskedAt), c.AskedBy}})
}

// OpenCommands returns the commands that are not done, in the order in which they were given.
func (s *Store) OpenCommands(ctx context.Context) ([]Command, error) {
	return s.commands(ctx, "done_at = 0")
}

// CommandsFrom returns the commands with this number and later ones, as far as they are kept.
func (s *Store) CommandsFrom(ctx context.Context, number int64) ([]Command, error) {
	return s.commands(ctx, fmt.Sprintf("number >= %d", number))
}

func (s *Store) commands(ctx context.Context, condition string) ([]Command, error) {
	var commands []Command
	err := s.do(ctx, "read the commands", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, "SELECT * FROM command WHERE "+condition+" ORDER BY number",
			&sqlitex.ExecOptions{ResultFunc: func(r *sqlite.Stmt) error {
				commands = append(commands, Command{
					Number: r.GetInt64("number"), Kind: CommandKind(r.GetText("kind")), Table: schema.ID(r.GetText("table_id")),
					Name:    schema.Name{Schema: r.GetText("schema"), Table: r.GetText("name")},
					Row:     r.GetText("row"),
					AskedAt: toTime(r.GetInt64("asked_at")), AskedBy: r.GetText("asked_by"),
					AcceptedAt: toTime(r.GetInt64("accepted_at")), Copy: int(r.GetInt64("copy")),
					DoneAt: toTime(r.GetInt64("done_at")), Failed: r.GetBool("failed"), Outcome: r.GetText("outcome"),
				})
				return nil
			}})
	})
	return commands, err
}

// SaveCommand keeps how far a command is. One that is done by now, because a later one took its place, stays as it is.
func (s *Store) SaveCommand(ctx context.Context, c Command) error {
	return s.write(ctx, "save a command", func(conn *sqlite.Conn) error {
		return sqlitex.Execute(conn, `UPDATE command SET accepted_at = ?, copy = ?, done_at = ?, failed = ?, outcome = ?
			WHERE number = ? AND done_at = 0`,
			&sqlitex.ExecOptions{Args: []any{fromTime(c.AcceptedAt), c.Copy, fromTime(c.DoneAt), c.Failed, c.Outcome, c.Number}})
	})
}
