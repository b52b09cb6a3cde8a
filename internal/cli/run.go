package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
)

func (a *app) runCommand() *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Mirror: copy what is not copied yet, then follow the changes until Ctrl-C",
		Long: `Mirror: copy what is not copied yet, then follow the changes until Ctrl-C, which drains and stops.

SIGHUP has the config file read again: tables that are selected now join, those that are not any more are left out, and
those whose settings changed pause until the change is undone or ` + "`sluice resync`" + ` accepts it. What else has changed is
named and needs a restart.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			reload, stop := reloadOnSignal()
			defer stop()
			summary, err := m.Run(c.Context(), sluice.RunOptions{Once: once, Log: a.log.With("mirror", m.Name()), Reload: reload})
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
	return c
}

func printSummary(w io.Writer, s *mirror.Summary) {
	t := newGrid("TABLE", "DESTINATION", "PHASE", "ROWS COPIED", "CHANGES APPLIED")
	for _, table := range s.Tables {
		t.add(table.Table.String(), table.Destination.String(), table.Phase, count(table.RowsCopied), count(table.ChangesApplied))
	}
	t.print(w, "")
	for _, table := range s.Tables {
		if table.Reason == "" {
			continue
		}
		fmt.Fprintf(w, "\n%s is %s: %s\n", table.Table, table.Phase, table.Reason)
		if !strings.Contains(table.Reason, table.Remedy) {
			fmt.Fprintf(w, "  %s\n", table.Remedy)
		}
	}
	for _, note := range s.Notes {
		fmt.Fprintf(w, "\n%s\n", note)
	}
}
