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

func (a *app) planCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "plan FILE",
		Short: "Show what a run would do, table by table; changes nothing",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			plan, err := m.Plan(c.Context(), a.log.With("mirror", m.Name()))
			if err != nil {
				return err
			}
			if asJSON {
				err = printPlanJSON(a.stdout, plan)
			} else {
				printPlan(a.stdout, plan)
			}
			if err == nil && (refusals(plan) > 0 || len(plan.Unused) > 0) {
				return errNotInOrder
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func refusals(p *mirror.Plan) int { return len(tablesTo(p, "refuse")) }

func tablesTo(p *mirror.Plan, action string) []mirror.TablePlan {
	var tables []mirror.TablePlan
	for _, t := range p.Tables {
		if t.Action == action {
			tables = append(tables, t)
		}
	}
	return tables
}

// printPlan writes an overview, then what is not stored as it is at the source, then what is refused and why.
func printPlan(w io.Writer, p *mirror.Plan) {
	defer printUnused(w, p)
	if len(p.Tables) == 0 {
		fmt.Fprintln(w, "No table of the source is selected.")
		return
	}
	fmt.Fprintf(w, "%s tables: %d to copy, %d to go on with, %d refused\n\n", view.Count(int64(len(p.Tables))),
		len(tablesTo(p, "copy")), len(tablesTo(p, "continue")), refusals(p))
	overview := view.NewGrid("TABLE", "DESTINATION", "ACTION", "MODE", "KEY", "ROWS, ABOUT")
	for _, t := range p.Tables {
		if t.Action == "refuse" {
			overview.Add(t.Table.String(), "", t.Action, "", "", view.Count(t.Rows))
			continue
		}
		overview.Add(t.Table.String(), t.Destination.String(), actionOf(t), modeOf(t), keyOf(t), view.Count(t.Rows))
	}
	overview.Print(w, "")
	for _, note := range p.Notes {
		fmt.Fprintf(w, "\nThe source: %s\n", view.Safe(note))
	}
	printDifferences(w, p)
	printFilters(w, p)
	printNotes(w, p)
	if refusals(p) > 0 {
		fmt.Fprintln(w, "\nRefused:")
	}
	for _, t := range tablesTo(p, "refuse") {
		fmt.Fprintf(w, "  %s: %s\n", view.Safe(t.Table.String()), view.Safe(t.Refused))
	}
}

// actionOf says also what becomes of a destination that somebody else has made.
func actionOf(t mirror.TablePlan) string {
	if t.Action == "copy" && t.Existing != "" {
		return t.Action + ", " + t.Existing
	}
	return t.Action
}

func modeOf(t mirror.TablePlan) string {
	if t.Deletes == "soft" {
		return t.Mode + ", soft deletes"
	}
	return t.Mode
}

func printNotes(w io.Writer, p *mirror.Plan) {
	heading := "\nWorth knowing of the destinations:\n"
	for _, t := range p.Tables {
		for _, note := range t.Notes {
			fmt.Fprintf(w, "%s  %s: %s\n", heading, view.Safe(t.Destination.String()), view.Safe(note))
			heading = ""
		}
	}
}

func printFilters(w io.Writer, p *mirror.Plan) {
	heading := "\nMirrored in part:\n"
	for _, t := range p.Tables {
		if t.Filter != "" {
			fmt.Fprintf(w, "%s  %s: rows for which %s\n", heading, view.Safe(t.Table.String()), view.Safe(t.Filter))
			heading = ""
		}
	}
}

func printUnused(w io.Writer, p *mirror.Plan) {
	if len(p.Unused) > 0 {
		fmt.Fprintln(w, "\nNot used:")
	}
	for _, what := range p.Unused {
		fmt.Fprintf(w, "  %s\n", view.Safe(what))
	}
}

func keyOf(t mirror.TablePlan) string {
	if len(t.Key) == 0 {
		return "none"
	}
	return strings.Join(t.Key, ", ")
}

func printDifferences(w io.Writer, p *mirror.Plan) {
	columns := view.NewGrid("COLUMN", "AT THE SOURCE", "IN THE SINK", "NOT STORED")
	for _, t := range p.Tables {
		for _, c := range t.Columns {
			name := t.Table.String() + ", " + c.Name
			switch {
			case c.SinkName == "":
				columns.Add(name, c.SourceType, "left out", "")
			case c.SinkName != c.Name:
				columns.Add(name, c.SourceType, c.SinkName+" "+c.SinkType, c.Misfit)
			case !sameType(c.SinkType, c.SourceType) || c.Misfit != "":
				columns.Add(name, c.SourceType, c.SinkType, c.Misfit)
			}
		}
	}
	if !columns.Empty() {
		fmt.Fprintln(w, "\nStored otherwise than at the source:")
		columns.Print(w, "  ")
	}
}

// sameType compares two names of types; one side may quote what need not be.
func sameType(a, b string) bool {
	return strings.ReplaceAll(a, `"`, "") == strings.ReplaceAll(b, `"`, "")
}

// planJSON is the form of `plan --json`. Its keys are promised to stay.
type planJSON struct {
	Tables []tablePlanJSON `json:"tables"`
	Notes  []string        `json:"notes,omitempty"`
	Unused []string        `json:"unused,omitempty"`
}

type tablePlanJSON struct {
	Table       string           `json:"table"`
	Destination string           `json:"destination"`
	Action      string           `json:"action"`
	Refused     string           `json:"refused,omitempty"`
	Mode        string           `json:"mode"`
	Deletes     string           `json:"deletes"`
	Existing    string           `json:"existing,omitempty"`
	Notes       []string         `json:"notes,omitempty"`
	Key         []string         `json:"key"`
	Filter      string           `json:"filter,omitempty"`
	Columns     []columnPlanJSON `json:"columns"`
	Rows        int64            `json:"rows"`
	Bytes       int64            `json:"bytes"`
}

type columnPlanJSON struct {
	Name       string `json:"name"`
	SourceType string `json:"source_type"`
	SinkName   string `json:"sink_name,omitempty"`
	SinkType   string `json:"sink_type,omitempty"`
	Misfit     string `json:"misfit,omitempty"`
}

func printPlanJSON(w io.Writer, p *mirror.Plan) error {
	out := planJSON{Tables: []tablePlanJSON{}, Notes: p.Notes, Unused: p.Unused}
	for _, t := range p.Tables {
		table := tablePlanJSON{
			Table: t.Table.String(), Destination: t.Destination.String(), Action: t.Action, Refused: t.Refused, Mode: t.Mode,
			Deletes: t.Deletes, Existing: t.Existing, Notes: t.Notes,
			Key: append([]string{}, t.Key...), Filter: t.Filter, Columns: []columnPlanJSON{}, Rows: t.Rows, Bytes: t.Bytes,
		}
		for _, c := range t.Columns {
			table.Columns = append(table.Columns, columnPlanJSON(c))
		}
		out.Tables = append(out.Tables, table)
	}
	return writeJSON(w, out)
}
