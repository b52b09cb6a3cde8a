package cli

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/view"
)

func (a *app) statusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "status FILE",
		Short: "Show phase, rows, lag and faults of each table, also of a mirror that runs; changes nothing",
		Long: `Show phase, rows, lag and faults of each table, also of a mirror that runs. What a run tells of itself is at most a few
seconds old; source and sink are asked only whether they can be reached.

The lag of a table is the age of its oldest change that is not in the sink, by the source's clock, and nothing if there is
none. While the mirror does not run nobody knows of new changes: then a table counts as behind since it stopped.

Exit code 1: a selected table is paused or refused, or the source keeps more log than retained_log.max.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			s, err := m.Status(c.Context(), a.log.With("mirror", m.Name()))
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(a.stdout, statusToJSON(s))
			} else {
				printStatus(a.stdout, s)
			}
			if err == nil && !s.InOrder() {
				return errNotInOrder
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printStatus(w io.Writer, s *mirror.Status) {
	fmt.Fprintf(w, "%s %s\n", s.Mirror, runs(s))
	printSide(w, "source", s.Source)
	printSide(w, "sink", s.Sink)
	if s.RetainedBytes >= 0 {
		more := ""
		if s.TooMuchLog() {
			more = ", more than retained_log.max, " + view.Size(s.RetainedMax)
		}
		fmt.Fprintf(w, "%s keeps %s of log at the source%s\n", s.Kept, view.Size(s.RetainedBytes), more)
	}
	if s.SpoolBytes > 0 {
		fmt.Fprintf(w, "the spool holds %s\n", view.Size(s.SpoolBytes))
	}
	if len(s.Tables) == 0 {
		return
	}
	fmt.Fprintln(w, view.Summary(s.Tables))
	if s.Lag >= 0 {
		fmt.Fprintf(w, "lag %s\n", view.Lag(s.Lag))
	}
	fmt.Fprintln(w)
	t := view.NewGrid("TABLE", "DESTINATION", "PHASE", "SINCE", "ROWS COPIED", "CHANGES APPLIED", "LAG", "LOG BEHIND", "WAITING", "QUARANTINED")
	for _, table := range s.Tables {
		behind := ""
		if table.Lag >= 0 {
			behind = view.Size(table.LagBytes)
		}
		t.Add(table.Name.String(), table.Destination.String(), table.Phase, table.Since.Local().Format(time.DateTime), copied(table),
			view.Count(table.ChangesApplied), view.Lag(table.Lag), behind, view.Waiting(&table), quarantined(&table))
	}
	t.Print(w, "")
	for _, table := range s.Tables {
		printReason(w, table)
	}
}

// quarantined shows how many rows are in quarantine, if there are any.
func quarantined(t *mirror.TableStatus) string {
	if t.Quarantined == 0 {
		return ""
	}
	return view.Count(int64(t.Quarantined))
}

func runs(s *mirror.Status) string {
	switch {
	case s.Since.IsZero() && !s.Running:
		return "was never run"
	case !s.Running:
		return "does not run, since " + s.Since.Local().Format(time.DateTime)
	default:
		return fmt.Sprintf("runs in process %d since %s", s.PID, s.Since.Local().Format(time.DateTime))
	}
}

func printSide(w io.Writer, name string, side mirror.Side) {
	if side.Error == "" {
		fmt.Fprintf(w, "%s %s\n", name, side.State)
		return
	}
	fmt.Fprintf(w, "%s %s: %s\n", name, side.State, side.Error)
}

// copied shows how far a copy is, where its end can be guessed.
func copied(t mirror.TableStatus) string {
	if t.Phase == string(mirror.Copying) && t.RowsEstimated > 0 {
		return fmt.Sprintf("%s of about %s", view.Count(t.RowsCopied), view.Count(t.RowsEstimated))
	}
	return view.Count(t.RowsCopied)
}

func printReason(w io.Writer, t mirror.TableStatus) {
	name := view.Safe(t.Name.String())
	switch {
	case t.Reason != "" && t.Phase == string(mirror.Copying):
		fmt.Fprintf(w, "\n%s waits to be copied: %s\n", name, view.Safe(t.Reason))
	case t.Reason != "":
		fmt.Fprintf(w, "\n%s is %s: %s\n", name, t.Phase, view.Safe(t.Reason))
	case t.Failures > 0:
		fmt.Fprintf(w, "\n%s has failed %d times: %s\n", name, t.Failures, view.Safe(t.LastError))
	}
	if t.Remedy != "" && !strings.Contains(t.Reason, t.Remedy) {
		fmt.Fprintf(w, "  %s\n", view.Safe(t.Remedy))
	}
	if !t.RetryAt.IsZero() {
		fmt.Fprintf(w, "  it is tried again at %s\n", t.RetryAt.Local().Format(time.DateTime))
	}
}

// statusJSON is the form of `status --json`. Its keys are promised to stay; null stands for what is not known.
type statusJSON struct {
	Mirror        string            `json:"mirror"`
	Running       bool              `json:"running"`
	PID           *int              `json:"pid"`
	Since         *time.Time        `json:"since"`
	Position      string            `json:"position"`
	LagSeconds    *float64          `json:"lag_seconds"`
	SpoolBytes    int64             `json:"spool_bytes"`
	RetainedBytes *int64            `json:"retained_log_bytes"`
	Source        sideJSON          `json:"source"`
	Sink          sideJSON          `json:"sink"`
	Tables        []tableStatusJSON `json:"tables"`
}

type sideJSON struct {
	State string `json:"state"`
	Error string `json:"error"`
}

type tableStatusJSON struct {
	Table          string           `json:"table"`
	Destination    string           `json:"destination"`
	Phase          string           `json:"phase"`
	Since          *time.Time       `json:"since"`
	Reason         string           `json:"reason"`
	Remedy         string           `json:"remedy"`
	PausedBy       string           `json:"paused_by"`
	RetryAt        *time.Time       `json:"retry_at"`
	RowsCopied     int64            `json:"rows_copied"`
	RowsReread     int64            `json:"rows_reread"`
	RowsEstimated  *int64           `json:"rows_estimated"`
	ChangesApplied int64            `json:"changes_applied"`
	LagSeconds     *float64         `json:"lag_seconds"`
	LagBytes       *int64           `json:"lag_bytes"`
	LaneBytes      int64            `json:"lane_bytes"`
	Failures       int              `json:"failures"`
	LastError      string           `json:"last_error"`
	Quarantined    int64            `json:"quarantined"`
	PolicyHits     map[string]int64 `json:"policy_hits"`
}

func statusToJSON(s *mirror.Status) statusJSON {
	out := statusJSON{
		Mirror: s.Mirror, Running: s.Running, Since: known(s.Since, !s.Since.IsZero()), Position: s.Position,
		PID: known(s.PID, s.PID != 0), LagSeconds: seconds(s.Lag), SpoolBytes: s.SpoolBytes, RetainedBytes: known(s.RetainedBytes, s.RetainedBytes >= 0),
		Source: sideJSON(s.Source), Sink: sideJSON(s.Sink), Tables: []tableStatusJSON{},
	}
	for _, t := range s.Tables {
		out.Tables = append(out.Tables, tableStatusJSON{
			Table: t.Name.String(), Destination: t.Destination.String(), Phase: t.Phase, Since: known(t.Since, !t.Since.IsZero()),
			Reason: t.Reason, Remedy: t.Remedy, PausedBy: t.PausedBy, RetryAt: known(t.RetryAt, !t.RetryAt.IsZero()), RowsCopied: t.RowsCopied, RowsReread: t.RowsReread,
			RowsEstimated: known(t.RowsEstimated, t.RowsEstimated >= 0), ChangesApplied: t.ChangesApplied, LagSeconds: seconds(t.Lag),
			LagBytes: known(t.LagBytes, t.LagBytes >= 0), LaneBytes: t.LaneBytes, Failures: t.Failures, LastError: t.LastError,
			Quarantined: int64(t.Quarantined), PolicyHits: map[string]int64{},
		})
	}
	return out
}

// known returns v, or null where it is not known.
func known[T any](v T, is bool) *T {
	if !is {
		return nil
	}
	return &v
}

// seconds rounds to the millisecond.
func seconds(d time.Duration) *float64 {
	return known(math.Round(d.Seconds()*1000)/1000, d >= 0)
}
