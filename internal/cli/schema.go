package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of config files, with every setting and its default",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := sluice.Schema()
			if err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s\n", text)
			return nil
		},
	}
}
