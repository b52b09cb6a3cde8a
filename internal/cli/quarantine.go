package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/view"
)

func (a *app) quarantineCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "quarantine",
		Short: "Show the rows that the sink has refused, try them again or drop them",
		Long: `With on_bad_row: quarantine a row that the sink refuses goes into quarantine, and its table goes on. What the sink holds
under its key is an earlier state of the row, or nothing, until a change brings the row whole and the sink takes it, or
the row is deleted, or tried again.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	var again, dropped sluice.CommandOptions
	retry := a.commandWith(&again, "retry", "Read rows in quarantine from the source and put them into the sink as they are now",
		`Read the rows of the tables that are in quarantine from the source, and put them into the sink as they are there now. A row
that is gone at the source is deleted. What the sink takes leaves the quarantine.`, (*sluice.Mirror).RetryQuarantined)
	drop := a.commandWith(&dropped, "drop", "Take rows out of quarantine and leave the sink as it is",
		`Take the rows of the tables out of quarantine and leave the sink as it is. There they differ from the source until a change
brings them whole, or until resync: changes that leave values out are applied to what the sink holds.`, (*sluice.Mirror).DropQuarantined)
	retry.Flags().StringVar(&again.Row, "key", "", "only the row with this key, as list shows it")
	drop.Flags().StringVar(&dropped.Row, "key", "", "only the row with this key, as list shows it")
	c.AddCommand(a.quarantineListCommand(), retry, drop)
	return c
}

func (a *app) quarantineListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "list FILE [TABLE...]",
		Short: "Show the rows in quarantine, and why the sink refused them; changes nothing",
		Long: `Show the rows in quarantine, also of a mirror that runs. It prints the rows' keys and, with --json, their values as the
source sent them last, long ones cut. TABLE is a name or a pattern like public.*.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeTables,
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			rows, err := m.Quarantine(c.Context(), args[1:], a.log.With("mirror", m.Name()))
			if err != nil {
				return err
			}
			if asJSON {
				return printQuarantineJSON(a.stdout, rows)
			}
			printQuarantine(a.stdout, rows)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printQuarantine(w io.Writer, rows []apply.Quarantined) {
	if len(rows) == 0 {
		fmt.Fprintln(w, "No row is in quarantine.")
		return
	}
	t := view.NewGrid("TABLE", "KEY", "OP", "SINCE", "POSITION", "TRIES", "REASON")
	for i := range rows {
		q := &rows[i]
		t.Add(q.Table, sluice.ShownKey(q), q.Op, q.Since.Local().Format(time.DateTime), string(q.Position), view.Count(int64(q.Attempts)), q.Reason)
	}
	t.Print(w, "")
}

// quarantinedJSON is an element of `quarantine list --json`. Its keys are promised to stay.
type quarantinedJSON struct {
	Table     string             `json:"table"`
	Key       []string           `json:"key"`
	Op        string             `json:"op"` // copy, insert, update, delete
	Position  string             `json:"position"`
	Committed *time.Time         `json:"committed_at"`
	Since     time.Time          `json:"since"`
	Reason    string             `json:"reason"`
	Attempts  int                `json:"attempts"`
	Row       map[string]*string `json:"row"`     // without what the source did not send
	Cut       bool               `json:"row_cut"` // values are shortened or left out for their size
}

func printQuarantineJSON(w io.Writer, rows []apply.Quarantined) error {
	out := make([]quarantinedJSON, len(rows))
	for i, q := range rows {
		out[i] = quarantinedJSON{
			Table: q.Table, Key: q.Shown, Op: q.Op, Position: string(q.Position), Committed: known(q.Committed, !q.Committed.IsZero()), Since: q.Since,
			Reason: q.Reason, Attempts: q.Attempts, Row: q.Row, Cut: q.Cut,
		}
	}
	return writeJSON(w, out)
}
