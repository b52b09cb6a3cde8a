package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/view"
	"github.com/sluicehq/sluice/schema"
)

func (a *app) teardownCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use:   "teardown FILE",
		Short: "Remove what a mirror has made beside its destinations: slot, publications, checkpoints, state",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			if !yes {
				return usageError{errors.New("teardown drops the slot and the publications that the mirror has made at the source, what the sink keeps of the mirror, and the state; " +
					"only the destinations stay, and another mirror does not take them over unless they are emptied: say --yes")}
			}
			stay, err := m.Teardown(c.Context(), a.log.With("mirror", m.Name()))
			if err != nil {
				return err
			}
			printTeardown(a.stdout, m.Name(), stay)
			return nil
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	return c
}

func printTeardown(w io.Writer, name string, stay []schema.Name) {
	fmt.Fprintf(w, "The mirror %s is removed: its slot and its own publications at the source, what the sink kept of it, and the state.\n", name)
	if len(stay) > 0 {
		fmt.Fprintln(w, "\nThese stay in the sink with their rows:")
	}
	for _, n := range stay {
		fmt.Fprintf(w, "  %s\n", view.Safe(n.String()))
	}
}
