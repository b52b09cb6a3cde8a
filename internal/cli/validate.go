package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
)

func (a *app) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a config file; opens no connection",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := sluice.Load(args[0]); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s is in order\n", args[0])
			return nil
		},
	}
}
