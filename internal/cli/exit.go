package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/state"
)

// Exit codes.
const (
	exitDone       = 0
	exitNotInOrder = 1   // it ran, but a table is paused or refused
	exitUsage      = 2   // command line or config file
	exitUnusable   = 3   // source, sink or state cannot be used
	exitBug        = 4   // our own broken invariant
	exitAtOnce     = 130 // as a shell reports a process that SIGINT ended
)

const bugNotice = "This is a bug in sluice; please report it with the lines above."

// errNotInOrder ends a command whose result, already printed, says what is not in order.
var errNotInOrder = errors.New("not in order")

// usageError says that the command line is wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// report prints an error and returns the exit code for it.
func report(ctx context.Context, stderr io.Writer, err error) int {
	code := exitCode(ctx, err)
	if err == nil || errors.Is(err, errNotInOrder) {
		return code
	}
	fmt.Fprintf(stderr, "sluice: %v\n", err)
	switch code {
	case exitUsage:
		if _, ok := errors.AsType[usageError](err); ok {
			fmt.Fprintln(stderr, "`sluice help` lists the commands and their options.")
		}
	case exitBug:
		fmt.Fprintln(stderr, bugNotice)
	}
	return code
}

func exitCode(ctx context.Context, err error) int {
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNotInOrder), errors.Is(err, sluice.ErrTimeout):
		return exitNotInOrder
	case isA[usageError](err) || isA[*config.Error](err) || isA[fileError](err) || isA[*sluice.NoTableError](err) || isA[*sluice.NoRowError](err):
		return exitUsage
	case isA[*state.LockedError](err) || isA[*state.Error](err):
		return exitUnusable
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitAtOnce // a command that has nothing to drain
	}
	switch connector.KindOf(err) {
	case connector.Unavailable, connector.Conflict, connector.Setup, connector.Fenced:
		return exitUnusable
	case connector.Constraint, connector.BadRow, connector.TableFault, connector.ViewLost, connector.Gap:
		return exitNotInOrder
	default:
		return exitBug
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
