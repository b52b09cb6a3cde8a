package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

func sampleStatus() *mirror.Status {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	table := func(name string, phase mirror.Phase) state.Table {
		n := schema.Name{Schema: "public", Table: name}
		return state.Table{Name: n, Destination: n, Phase: string(phase), Since: at, RowsEstimated: 2000}
	}
	orders, items, bare := table("orders", mirror.Copying), table("items", mirror.Paused), table("bare", mirror.Refused)
	orders.RowsCopied = 1000
	orders.Reason = "process 7 holds it"
	items.Progress = state.Progress{RowsCopied: 5, RowsReread: 3, ChangesApplied: 12345, LaneBytes: 9, Failures: 3, Quarantined: 4, LastError: "row refused"}
	items.Reason, items.Remedy, items.RetryAt, items.PausedBy = "row refused", "widen the column", at.Add(time.Minute), "fault"
	bare.Reason, bare.RowsEstimated = "it has no key; ALTER TABLE ...", -1
	return &mirror.Status{
		Mirror: "shop", Running: true, PID: 42, Since: at, Position: "7/1/0", Lag: 90 * time.Second, RetainedBytes: 3 << 20,
		Kept: `replication slot "sluice_shop"`, Source: mirror.Side{State: "reachable"}, Sink: mirror.Side{State: "unreachable", Error: "no answer within 5s"},
		Tables: []mirror.TableStatus{
			{Table: orders, Selected: true, LagBytes: -1},
			{Table: items, Selected: true, Lag: 90 * time.Second, LagBytes: 2048},
			{Table: bare, Selected: true, Lag: -1, LagBytes: -1},
		},
	}
}

func TestStatusShowsEachTableAndWhatToDo(t *testing.T) {
	var b bytes.Buffer
	printStatus(&b, sampleStatus())
	want := `shop runs in process 42 since 2026-01-02 03:04:05
source reachable
sink unreachable: no answer within 5s
replication slot "sluice_shop" keeps 3.0 MiB of log at the source
3 tables: 1 paused, 1 refused, 1 copying
lag 1m30s

TABLE          DESTINATION    PHASE    SINCE                ROWS COPIED           CHANGES APPLIED  LAG    LOG BEHIND  WAITING  QUARANTINED
public.orders  public.orders  copying  2026-01-02 03:04:05  1,000 of about 2,000  0                0.0s   ?
public.items   public.items   paused   2026-01-02 03:04:05  5                     12,345           1m30s  2.0 KiB     9 B      4
public.bare    public.bare    refused  2026-01-02 03:04:05  0                     0

public.orders waits to be copied: process 7 holds it

public.items is paused: row refused
  widen the column
  it is tried again at 2026-01-02 03:05:05

public.bare is refused: it has no key; ALTER TABLE ...
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestStatusAsJSONKeepsItsKeys(t *testing.T) {
	s := sampleStatus()
	s.Since, s.Tables = time.Time{}, s.Tables[1:2]
	s.Tables[0].Since, s.Tables[0].RetryAt = time.Time{}, time.Time{}
	var b bytes.Buffer
	if err := writeJSON(&b, statusToJSON(s)); err != nil {
		t.Fatal(err)
	}
	want := `{"mirror":"shop","running":true,"pid":42,"since":null,"position":"7/1/0","lag_seconds":90,"spool_bytes":0,
		"retained_log_bytes":3145728,"source":{"state":"reachable","error":""},"sink":{"state":"unreachable","error":"no answer within 5s"},
		"tables":[{"table":"public.items","destination":"public.items","phase":"paused","since":null,"reason":"row refused",
		"remedy":"widen the column","paused_by":"fault","retry_at":null,"rows_copied":5,"rows_reread":3,"rows_estimated":2000,"changes_applied":12345,
		"lag_seconds":90,"lag_bytes":2048,"lane_bytes":9,"failures":3,"last_error":"row refused","quarantined":4,"policy_hits":{}}]}`
	squeeze := strings.NewReplacer("\n", "", "\t", "", `": `, `":`, "  ", "")
	if diff := cmp.Diff(squeeze.Replace(want), squeeze.Replace(b.String())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestCheckShowsProblemsBeforeNotes(t *testing.T) {
	c := &mirror.Check{SinkErr: errors.New("not reachable"), Findings: []mirror.Finding{
		{Side: "source", Problem: connector.Problem{What: "the disk may fill", Fix: "ALTER SYSTEM ...", Note: true}},
		{Side: "source", Problem: connector.Problem{Table: "public.a", What: "it has no key", Fix: "ALTER TABLE ..."}},
		{Side: "sink", Problem: connector.Problem{What: "no right", Fix: "GRANT ..."}},
	}}
	var b bytes.Buffer
	printCheck(&b, c)
	want := `2 problems:
  source, table public.a: it has no key
      ALTER TABLE ...
  sink: no right
      GRANT ...

Worth knowing:
  source: the disk may fill
      ALTER SYSTEM ...
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
