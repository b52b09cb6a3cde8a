package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/view"
)

func (a *app) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Find every set-up problem at once, with what mends it; changes nothing",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			found, err := m.Check(c.Context(), a.log.With("mirror", m.Name()))
			if err != nil {
				return err
			}
			printCheck(a.stdout, found)
			if err := found.Err(); err != nil {
				return err
			}
			if found.Faults() > 0 {
				return errNotInOrder
			}
			return nil
		},
	}
}

// printCheck writes the problems first and then what is only worth knowing, each with what to do.
func printCheck(w io.Writer, c *mirror.Check) {
	switch faults := c.Faults(); {
	case faults == 1:
		fmt.Fprintln(w, "1 problem:")
	case faults > 1:
		fmt.Fprintf(w, "%s problems:\n", view.Count(int64(faults)))
	case c.Err() == nil:
		fmt.Fprintln(w, "No problems found.")
	}
	printFindings(w, c, false)
	if len(c.Findings) > c.Faults() {
		fmt.Fprintln(w, "\nWorth knowing:")
	}
	printFindings(w, c, true)
}

func printFindings(w io.Writer, c *mirror.Check, notes bool) {
	for _, f := range c.Findings {
		if f.Note != notes {
			continue
		}
		where := f.Side
		if f.Table != "" {
			where += ", table " + f.Table
		}
		fmt.Fprintf(w, "  %s: %s\n", view.Safe(where), view.Safe(f.What))
		if f.Fix != "" {
			fmt.Fprintf(w, "      %s\n", view.Safe(f.Fix))
		}
	}
}
