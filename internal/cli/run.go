package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/view"
)

func (a *app) runCommand() *cobra.Command {
	var once bool
	var address string
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Mirror: copy what is not copied yet, then follow the changes until Ctrl-C",
		Long: `Mirror: copy what is not copied yet, then follow the changes until Ctrl-C, which drains and stops.

SIGHUP has the config file read again: tables that are selected now join, those that are not any more are left out, and
those whose settings changed pause until the change is undone or ` + "`sluice resync`" + ` accepts it. What else has changed is
named and needs a restart.

On a terminal a live view takes the place of the log: warnings and errors stand above it, --log-format text brings the log
back, and NO_COLOR takes the colours away. Anywhere else there are log lines.

--metrics ADDRESS serves /metrics for Prometheus; /healthz, which answers 200 as long as the process works, also while it
waits for source or sink; and /readyz, which answers 200 when both can be reached and the sink has every selected table.
ADDRESS is HOST:PORT; without a host it is this machine alone (127.0.0.1).`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			summary, err := a.run(c, m, once, address)
			if summary != nil && len(summary.Tables) > 0 {
				printSummary(a.stdout, summary)
			}
			if err == nil && !summary.InOrder() {
				return errNotInOrder
			}
			return err
		},
	}
	c.Flags().BoolVar(&once, "once", false, "copy, catch up with the end of the log as it is now, and exit")
	c.Flags().StringVar(&address, "metrics", "", "serve /metrics for Prometheus, /healthz and /readyz on this address; a port alone is one of this machine only")
	return c
}

// run runs the mirror with what shows how it stands: the live view, and the metrics.
func (a *app) run(c *cobra.Command, m *sluice.Mirror, once bool, address string) (*mirror.Summary, error) {
	ctx, log := c.Context(), a.log
	watched := a.watches(c)
	if watched {
		log = a.newLog(max(a.level, slog.LevelWarn)) // the view shows the rest
	}
	log = log.With("mirror", m.Name())
	var monitor sluice.Monitor
	ended := make(chan struct{})
	var shows sync.WaitGroup
	defer shows.Wait()
	defer close(ended)
	if address != "" {
		serve, err := listen(address, &monitor, log)
		if err != nil {
			return nil, err
		}
		shows.Go(func() { serve(ended) })
	}
	if watched {
		shows.Go(func() { view.Watch(a.screen, &monitor, os.Getenv("NO_COLOR") == "", ctx.Done(), ended) })
	}
	reload, stop := reloadOnSignal()
	defer stop()
	return m.Run(ctx, sluice.RunOptions{Once: once, Log: log, Monitor: &monitor, Reload: reload})
}

// watches reports whether a run is shown by the live view: where its log would go to a terminal, unless the form of the log
// was asked for.
func (a *app) watches(c *cobra.Command) bool {
	_, _, terminal := a.screen.Size()
	kind := os.Getenv("TERM")
	return terminal && kind != "" && kind != "dumb" && !c.Flags().Changed("log-format")
}

func printSummary(w io.Writer, s *mirror.Summary) {
	t := view.NewGrid("TABLE", "DESTINATION", "PHASE", "ROWS COPIED", "CHANGES APPLIED")
	for _, table := range s.Tables {
		t.Add(table.Table.String(), table.Destination.String(), table.Phase, view.Count(table.RowsCopied), view.Count(table.ChangesApplied))
	}
	t.Print(w, "")
	for _, table := range s.Tables {
		if table.Reason == "" {
			continue
		}
		fmt.Fprintf(w, "\n%s is %s: %s\n", view.Safe(table.Table.String()), table.Phase, view.Safe(table.Reason))
		if !strings.Contains(table.Reason, table.Remedy) {
			fmt.Fprintf(w, "  %s\n", view.Safe(table.Remedy))
		}
	}
	for _, note := range s.Notes {
		fmt.Fprintf(w, "\n%s\n", view.Safe(note))
	}
}
