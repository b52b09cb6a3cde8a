package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/internal/view"
	"github.com/sluicehq/sluice/schema"
)

func (a *app) eventsCommand() *cobra.Command {
	var limit int
	var asJSON bool
	c := &cobra.Command{
		Use:   "events FILE [TABLE]",
		Short: "Show what happened to the mirror, or to tables of it; changes nothing",
		Long:  "Show what happened to the mirror, the newest entries last. TABLE is a name or a pattern like public.*.",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			var keep func(schema.Name) bool
			if len(args) > 1 {
				pattern, err := config.ParsePattern(args[1])
				if err != nil {
					return usageError{err}
				}
				keep = func(n schema.Name) bool { return n != schema.Name{} && pattern.Match(n) }
			}
			events, err := m.Events(c.Context(), keep, max(limit, 0))
			if err != nil {
				return err
			}
			if asJSON {
				return printEventsJSON(a.stdout, events)
			}
			printEvents(a.stdout, events)
			return nil
		},
	}
	c.Flags().IntVarP(&limit, "number", "n", 50, "show at most so many, the newest")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printEvents(w io.Writer, events []state.Event) {
	if len(events) == 0 {
		fmt.Fprintln(w, "Nothing has happened yet.")
		return
	}
	t := view.NewGrid("TIME", "TABLE", "EVENT", "")
	for _, e := range events {
		t.Add(e.At.Local().Format(time.DateTime), nameOrNone(e.Table), e.Kind, e.Text)
	}
	t.Print(w, "")
}

func nameOrNone(n schema.Name) string {
	if n == (schema.Name{}) {
		return ""
	}
	return n.String()
}

// eventJSON is an element of `events --json`. Its keys are promised to stay.
type eventJSON struct {
	At    time.Time `json:"at"`
	Table string    `json:"table,omitempty"` // absent: the whole mirror
	Event string    `json:"event"`
	Text  string    `json:"text"`
}

func printEventsJSON(w io.Writer, events []state.Event) error {
	out := make([]eventJSON, len(events))
	for i, e := range events {
		out[i] = eventJSON{e.At, nameOrNone(e.Table), e.Kind, e.Text}
	}
	return writeJSON(w, out)
}
