// Package cli is the command line: one file for each command, which calls the library and prints what it answers.
// Results go to stdout, logs and errors to stderr.
package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice/internal/view"
)

// Main runs the command with these arguments and returns its exit code. A signal that ends the process at once does not
// return.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(stderr, "sluice: %v\n%s%s\n", p, debug.Stack(), bugNotice)
			code = exitBug
		}
	}()
	screen := view.NewScreen(stderr) // with the live view of a run, all that is said stands above it
	stderr = screen
	ctx, stop := drainOnSignal(ctx, stderr, os.Exit)
	defer stop()
	a := &app{stdout: stdout, stderr: stderr, screen: screen}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.begun {
		err = usageError{err}
	}
	return report(ctx, stderr, err)
}

// app is what the commands share.
type app struct {
	stdout, stderr      io.Writer
	screen              *view.Screen // stderr
	logFormat, logLevel string
	level               slog.Level
	log                 *slog.Logger
	begun               bool // arguments and flags were in order
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sluice",
		Short: "Mirror databases: copy every table, then follow its changes, exactly once",
		Long: `Sluice copies the tables of a database from a recorded position of its change log and then follows the log, each table
by itself, exactly once.

Exit codes: 0 done, also after Ctrl-C; 1 it ran, but something is not in order; 2 the command line or the config file is
wrong; 3 the source, the sink or the state cannot be used; 4 a bug in sluice; 130 ended at once by a second Ctrl-C.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.begin() },
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.PersistentFlags().StringVar(&a.logFormat, "log-format", "text", "form of the log: text or json")
	root.PersistentFlags().StringVar(&a.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")
	root.AddCommand(a.checkCommand(), a.statusCommand(), a.eventsCommand(), a.discoverCommand(), a.teardownCommand())
	root.AddCommand(a.runCommand(), a.planCommand(), a.validateCommand(), a.schemaCommand(), a.initCommand(), a.versionCommand())
	root.AddCommand(a.pauseCommand(), a.resumeCommand(), a.resyncCommand(), a.quarantineCommand())
	return root
}

// begin runs when the command line has been understood, before the command itself.
func (a *app) begin() error {
	if err := a.level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return fmt.Errorf("--log-level %q: expected debug, info, warn or error", a.logLevel)
	}
	if a.logFormat != "text" && a.logFormat != "json" {
		return fmt.Errorf("--log-format %q: expected text or json", a.logFormat)
	}
	a.log = a.newLog(a.level)
	a.begun = true
	return nil
}

// newLog returns a log in the form that was asked for.
func (a *app) newLog(least slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: least}
	if a.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(a.stderr, options))
	}
	return slog.New(slog.NewTextHandler(a.stderr, options))
}
