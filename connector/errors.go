package connector

import (
	"errors"
	"strings"

	"github.com/sluicehq/sluice/schema"
)

// Kind is what an error means; each has one reaction of the engine. Only BadRow and TableFault count against a table.
type Kind uint8

// The kinds of errors.
const (
	Internal    Kind = iota // our own broken invariant: stop
	Unavailable             // the system cannot be reached or is overloaded: back off and go on
	Conflict                // deadlock, serialization, lock time-out: repeat the batch; after some tries TableFault
	Constraint              // refused as a set: repeat row by row
	BadRow                  // Error.Row is refused: quarantine it, or pause the table
	TableFault              // the table cannot go on: back off, then pause
	Setup                   // a person must act
	ViewLost                // the Snapshot is gone: take another
	Gap                     // the log lacks what is needed, or is another one (OtherHistoryError): a new copy, which a person may have to want
	Fenced                  // another process writes this mirror: stop
)

// String returns the kind's name in snake case, for logs, events and metrics.
func (k Kind) String() string {
	names := [...]string{"internal", "unavailable", "conflict", "constraint", "bad_row", "table_fault", "setup", "view_lost", "gap", "fenced"}
	if int(k) >= len(names) {
		return "unknown"
	}
	return names[k]
}

// Error says where, what, why and what to do; never a value of a row.
type Error struct {
	Kind                     Kind
	System, Op, Column, Hint string // System: "source postgres"; Op: "write rows"
	Table                    schema.Name
	Position                 Position
	Row                      int // index into the Rows passed, for BadRow
	Err                      error
}

// Error writes the parts that are set in one line:
// sink postgres: write rows, table public.orders, column total, at 0/16B3748: numeric field overflow; widen the column.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.System)
	b.WriteString(": ")
	b.WriteString(e.Op)
	if e.Table.Table != "" {
		b.WriteString(", table ")
		b.WriteString(e.Table.String())
	}
	if e.Column != "" {
		b.WriteString(", column ")
		b.WriteString(e.Column)
	}
	if e.Position != "" {
		b.WriteString(", at ")
		b.WriteString(string(e.Position))
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the Kind of the first *Error in err's chain, Internal if there is none: an error that a connector did
// not classify is a bug of it.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// OtherHistoryError is the cause of a Gap where the source is not, or may not be, what the positions are of: another
// server, one that was restored, a standby that was promoted before it had everything. A mistake in the configuration
// looks like that too, so nothing is given up until a person has agreed.
type OtherHistoryError struct{ Err error }

// Error returns the text of Err.
func (e *OtherHistoryError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *OtherHistoryError) Unwrap() error { return e.Err }
