package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/view"
)

func (a *app) discoverCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "discover FILE",
		Short: "List the tables of the source, selected or not; changes nothing",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			found, err := m.Discover(c.Context(), a.log.With("mirror", m.Name()))
			if err != nil {
				return err
			}
			printFound(a.stdout, found)
			return nil
		},
	}
}

func printFound(w io.Writer, found []mirror.Found) {
	if len(found) == 0 {
		fmt.Fprintln(w, "The source has no tables.")
		return
	}
	t := view.NewGrid("TABLE", "SELECTED", "ROWS, ABOUT", "SIZE, ABOUT", "KEY")
	var refused []mirror.Found
	for _, f := range found {
		selected, key := "no", strings.Join(f.Key, ", ")
		if f.Selected {
			selected = "yes"
		}
		switch {
		case f.Refused != "":
			key = "refused"
			refused = append(refused, f)
		case key == "":
			key = "none"
		}
		t.Add(f.Table.String(), selected, view.Count(f.Rows), view.Size(f.Bytes), key)
	}
	t.Print(w, "")
	if len(refused) > 0 {
		fmt.Fprintln(w, "\nRefused:")
	}
	for _, f := range refused {
		fmt.Fprintf(w, "  %s: %s\n", view.Safe(f.Table.String()), view.Safe(f.Refused))
	}
}
