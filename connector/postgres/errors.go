package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// The two ends, as errors and logs name them.
const (
	sourceSystem = "source postgres"
	sinkSystem   = "sink postgres"
)

// wrapError makes an *Error of a driver's error: its Kind from the SQLSTATE, its text without row values. An *Error in
// the chain is returned as it is, and so is the end of the caller's context, which is no fault of the server. A host that
// did not answer within the time to connect is one, though the driver says it by a context of its own.
func wrapError(err error, system, op string, table schema.Name) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*connector.Error](err); ok {
		return err
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	late := errors.Is(err, context.DeadlineExceeded)
	if errors.Is(err, context.Canceled) || late && !connecting {
		return err
	}
	if late {
		err = errors.New(err.Error()) // nobody is to take it for the end of the caller's time
		return &connector.Error{Kind: connector.Unavailable, System: system, Op: op, Table: table, Err: err}
	}
	e := &connector.Error{System: system, Op: op, Table: table, Err: err}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		e.Kind, e.Hint = kindOfState(pg.Code), pg.Hint
		if pg.Code == "23505" && pg.SchemaName == "pg_catalog" {
			e.Kind = connector.Conflict // two statements made objects of one name at the same moment
		}
		e.Column = pg.ColumnName
		e.Err = serverError{pg}
		return e
	}
	if isNetwork(err) {
		e.Kind = connector.Unavailable
	}
	return e
}

// serverError shows a server's error without the values of rows that it quotes: in its detail, and in the message of a
// data exception (class 22).
type serverError struct{ *pgconn.PgError }

func (e serverError) Error() string {
	message := e.Message
	first, last := strings.IndexByte(message, '"'), strings.LastIndexByte(message, '"')
	if strings.HasPrefix(e.Code, "22") && first >= 0 {
		message = message[:first] + `"..."` + message[last+1:] // a value may hold quotes itself
	}
	return e.Severity + " " + e.Code + ": " + message
}

func (e serverError) Unwrap() error { return e.PgError }

// isState reports whether err is a server's, with one of these SQLSTATEs.
func isState(err error, codes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(codes, pg.Code)
}

func isNetwork(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		pgconn.Timeout(err) || pgconn.SafeToRetry(err) || strings.Contains(err.Error(), "conn closed")
}

// kindOfState maps an SQLSTATE (PostgreSQL, appendix A "Error Codes") to what the engine does about it.
func kindOfState(code string) connector.Kind {
	switch code {
	case "40001", "40P01", "55P03", "57014": // serialization, deadlock, lock not available, statement time-out
		return connector.Conflict
	case "42501", "28000", "28P01", "3D000", "0A000": // rights, authorization, no such database, unsupported
		return connector.Setup
	case "25006": // read only: no fault of a table, and a failover passes
		return connector.Unavailable
	case "54000", "21000": // a row or value too large; two rows of a set that are one to the server
		return connector.Constraint
	}
	switch code[:min(2, len(code))] {
	case "08", "53", "57", "58": // connection, resources, operator intervention, system
		return connector.Unavailable
	case "22", "23", "44": // data, integrity, check option
		return connector.Constraint
	}
	return connector.TableFault
}
