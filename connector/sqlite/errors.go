package sqlite

import (
	"context"
	"errors"
	"fmt"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// sinkSystem is how errors and logs name this end.
const sinkSystem = "sink sqlite"

// wrapError makes an *Error of SQLite's error: its Kind from the result code. SQLite's messages name tables and columns,
// never values. An *Error in the chain is returned as it is, and so is the end of a context. What a person must mend is a
// fault of the file, and so of no table.
func wrapError(err error, op string, table schema.Name) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connector.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := &connector.Error{System: sinkSystem, Op: op, Table: table, Err: err}
	if e.Kind, e.Hint = kindOf(sqlite.ErrCode(err).ToPrimary()); e.Kind == connector.Setup {
		e.Table = schema.Name{}
	}
	return e
}

// kindOf maps a result code (https://www.sqlite.org/rescode.html) to what the engine does about it, with a hint for people.
func kindOf(code sqlite.ResultCode) (connector.Kind, string) {
	switch code {
	case sqlite.ResultBusy, sqlite.ResultLocked:
		return connector.Unavailable, "another program holds the file locked; end its transaction"
	case sqlite.ResultFull:
		return connector.Unavailable, "make room on the disk"
	case sqlite.ResultIOErr:
		return connector.Unavailable, "look at the disk"
	case sqlite.ResultNoMem:
		return connector.Unavailable, ""
	case sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultTooBig:
		return connector.Constraint, ""
	case sqlite.ResultCantOpen:
		return connector.Setup, "the folder must exist and be writable, and so must the file"
	case sqlite.ResultReadOnly, sqlite.ResultPerm, sqlite.ResultAuth:
		return connector.Setup, "make the file and its folder writable for this user"
	case sqlite.ResultCorrupt:
		return connector.Setup, "the file is damaged; restore it, or remove it and every table is copied anew"
	case sqlite.ResultNotADB:
		return connector.Setup, "the file is no SQLite database; choose another path, or remove it"
	}
	return connector.TableFault, ""
}

// fault makes an error of ours, one that SQLite did not report.
func fault(kind connector.Kind, op string, table schema.Name, hint, format string, args ...any) error {
	return &connector.Error{Kind: kind, System: sinkSystem, Op: op, Table: table, Hint: hint, Err: fmt.Errorf(format, args...)}
}
