package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"sluice": func() { os.Exit(Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
		},
	})
}

// exits is a script's command: exits CODE PROGRAM ARGS... runs a program that must end with this code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	if e, ok := errors.AsType[interface {
		error
		ExitCode() int
	}](err); ok {
		code = fmt.Sprint(e.ExitCode())
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}

func TestErrorsHaveTheDocumentedExitCodes(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	kind := func(k connector.Kind) error {
		return fmt.Errorf("run: %w", &connector.Error{Kind: k, System: "sink postgres", Op: "write rows"})
	}
	for _, c := range []struct {
		ctx  context.Context
		err  error
		want int
	}{
		{t.Context(), nil, 0},
		{t.Context(), errNotInOrder, 1},
		{t.Context(), kind(connector.TableFault), 1},
		{t.Context(), kind(connector.Gap), 1},
		{t.Context(), usageError{errors.New("unknown flag")}, 2},
		{t.Context(), &config.Error{Path: "x.yaml", Findings: []config.Finding{{Text: "wrong"}}}, 2},
		{t.Context(), fileError{fs.ErrExist}, 2},
		{t.Context(), kind(connector.Unavailable), 3},
		{t.Context(), kind(connector.Setup), 3},
		{t.Context(), kind(connector.Fenced), 3},
		{t.Context(), &state.LockedError{PID: 1}, 3},
		{t.Context(), &state.Error{Op: "open", Err: fs.ErrPermission}, 3},
		{t.Context(), kind(connector.Internal), 4},
		{t.Context(), errors.New("unclassified"), 4},
		{t.Context(), context.Canceled, 4},
		{ended, fmt.Errorf("plan: %w", context.Canceled), 130},
	} {
		if got := exitCode(c.ctx, c.err); got != c.want {
			t.Errorf("%v: exit code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestFirstSignalDrainsAndSecondEndsAtOnce(t *testing.T) {
	exited := make(chan int, 1)
	ctx, stop := drainOnSignal(t.Context(), &bytes.Buffer{}, func(code int) { exited <- code })
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	select {
	case <-exited:
		t.Fatal("the first signal ended the process")
	default:
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := <-exited; code != exitAtOnce {
		t.Errorf("exit code %d", code)
	}
}

func samplePlan() *mirror.Plan {
	name := func(table string) schema.Name { return schema.Name{Schema: "public", Table: table} }
	return &mirror.Plan{Tables: []mirror.TablePlan{
		{
			Table: name("orders"), Destination: name("orders_live"), Action: "copy", Mode: "current", Key: []string{"region", "id"},
			Rows: 1234567, Bytes: 99,
			Columns: []mirror.ColumnPlan{
				{Name: "id", SourceType: "bigint", SinkName: "id", SinkType: "bigint"},
				{Name: "total", SourceType: "numeric", SinkName: "total", SinkType: "text"},
				{Name: "at", SourceType: "date", SinkName: "at", SinkType: "date", Misfit: "infinity"},
				{Name: "twice", SourceType: "integer"},
			},
		},
		{Table: name("log"), Destination: name("log"), Action: "continue", Mode: "history", Deletes: "hard", Rows: -1, Bytes: -1},
		{Table: name("Odd.Name"), Action: "refuse", Deletes: "hard", Refused: "it has no key; ALTER TABLE ...", Rows: 0},
	}}
}

func TestPlanShowsActionsDifferencesAndRefusals(t *testing.T) {
	var b bytes.Buffer
	printPlan(&b, samplePlan())
	want := `3 tables: 1 to copy, 1 to go on with, 1 refused

TABLE              DESTINATION         ACTION    MODE     KEY         ROWS, ABOUT
public.orders      public.orders_live  copy      current  region, id  1,234,567
public.log         public.log          continue  history  none        ?
public."Odd.Name"                      refuse                         0

Stored otherwise than at the source:
  COLUMN                AT THE SOURCE  IN THE SINK  NOT STORED
  public.orders, total  numeric        text
  public.orders, at     date           date         infinity
  public.orders, twice  integer        left out

Refused:
  public."Odd.Name": it has no key; ALTER TABLE ...
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNamesAndTextsFromOutsideDoNotReachTheTerminalAsTheyAre(t *testing.T) {
	const evil = "a\x1b[2J\u202e"
	name := schema.Name{Schema: "public", Table: evil}
	var b bytes.Buffer
	printPlan(&b, &mirror.Plan{Notes: []string{evil}, Unused: []string{evil}, Tables: []mirror.TablePlan{
		{Table: name, Destination: name, Action: "refuse", Refused: evil},
		{Table: name, Destination: name, Action: "copy", Notes: []string{evil}, Filter: evil},
	}})
	printFindings(&b, &mirror.Check{Findings: []mirror.Finding{{Side: "sink", Problem: connector.Problem{Table: evil, What: evil, Fix: evil}}}}, false)
	printTeardown(&b, "m", []schema.Name{name})
	printSide(&b, "sink", mirror.Side{Error: evil})
	report(t.Context(), &b, errors.New("first\n"+evil))
	if at := strings.IndexFunc(b.String(), func(r rune) bool { return r == '\x1b' || r == '\u202e' }); at >= 0 {
		t.Errorf("in %q", b.String()[max(0, at-60):at+10])
	}
	if !strings.Contains(b.String(), "first\n") {
		t.Error("an error's lines are not kept")
	}
}

func TestPlanAsJSONKeepsItsKeys(t *testing.T) {
	var b bytes.Buffer
	if err := printPlanJSON(&b, &mirror.Plan{Tables: samplePlan().Tables[2:]}); err != nil {
		t.Fatal(err)
	}
	want := `{"tables":[{"table":"public.\"Odd.Name\"","destination":"\"\"","action":"refuse",
		"refused":"it has no key; ALTER TABLE ...","mode":"","deletes":"hard","key":[],"columns":[],"rows":0,"bytes":0}]}`
	squeeze := strings.NewReplacer("\n", "", "\t", "", `": `, `":`, "  ", "")
	if diff := cmp.Diff(squeeze.Replace(want), squeeze.Replace(b.String())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestSummaryShowsPausedTablesWithRemedies(t *testing.T) {
	var b bytes.Buffer
	printSummary(&b, &mirror.Summary{
		Tables: []mirror.TableSummary{
			{Table: schema.Name{Table: "a"}, Destination: schema.Name{Table: "a"}, Phase: "streaming", RowsCopied: 1000, ChangesApplied: 7},
			{Table: schema.Name{Table: "b"}, Destination: schema.Name{Table: "b"}, Phase: "paused", Reason: "row refused", Remedy: "widen the column"},
		},
		Notes: []string{"the slot sluice_shop stays"},
	})
	want := `TABLE  DESTINATION  PHASE      ROWS COPIED  CHANGES APPLIED
a      a            streaming  1,000        7
b      b            paused     0            0

b is paused: row refused
  widen the column

the slot sluice_shop stays
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
