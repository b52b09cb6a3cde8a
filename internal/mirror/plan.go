package mirror

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/schema"
)

// planned is a selected table with its place in the sink, or why it has none.
type planned struct {
	table   *schema.Table
	target  *connector.Target // nil if refused
	refused string            // why, and what to do
}

// destination is where the table is, or would be.
func (p planned) destination() schema.Name {
	if p.target != nil {
		return p.target.Name
	}
	return p.table.Name
}

// planTables decides for each selected table where and how it is stored. It changes nothing. Of several tables with one
// destination one keeps it: the one that is stored there as entries, those of the sink, say.
func planTables(
	ctx context.Context, tables []*schema.Table, sel func(*schema.Table) (Settings, bool), sink connector.Sink, entries map[string]string,
) ([]planned, error) {
	var ps []planned
	for _, t := range tables {
		settings, ok := sel(t)
		if !ok {
			continue
		}
		p, err := planTable(ctx, t, settings, sink)
		if err != nil {
			return nil, err
		}
		ps = append(ps, p)
	}
	refuseCollisions(ps, entries)
	return ps, nil
}

func planTable(ctx context.Context, t *schema.Table, s Settings, sink connector.Sink) (planned, error) {
	p := planned{table: t, refused: refusal(t, s)}
	if p.refused != "" {
		return p, nil
	}
	target, err := sink.Plan(ctx, wanted(t, s))
	if e, ok := errors.AsType[*connector.Error](err); ok && !concernsAll(err) && (e.Kind == connector.TableFault || e.Kind == connector.Setup) {
		p.refused = e.Error()
		return p, nil
	}
	p.target = target
	return p, err
}

// wanted is what a sink is asked for.
func wanted(t *schema.Table, s Settings) connector.Target {
	return connector.Target{Table: t, Name: s.Destination, History: s.History}
}

// refusal returns why a table cannot be mirrored in this way into any sink, and what to do; "" if it can.
func refusal(t *schema.Table, s Settings) string {
	if t.Refused == "" && len(t.Key) == 0 && !s.History {
		return t.Keyless + `; or mirror it with "mode: history"`
	}
	return t.Refused
}

func refuseCollisions(ps []planned, entries map[string]string) {
	incumbentsFirst := slices.Clone(ps)
	slices.SortStableFunc(incumbentsFirst, func(a, b planned) int {
		return cmp.Or(cmp.Compare(b.copyIn(entries), a.copyIn(entries)), strings.Compare(a.table.Name.String(), b.table.Name.String()))
	})
	owner := map[schema.Name]schema.Name{}
	loser := map[schema.ID]schema.Name{}
	for _, p := range incumbentsFirst {
		if p.target == nil {
			continue
		}
		if first, taken := owner[p.target.Name]; taken {
			loser[p.table.ID] = first
			continue
		}
		owner[p.target.Name] = p.table.Name
	}
	for i := range ps {
		if first, lost := loser[ps[i].table.ID]; lost {
			ps[i].refuseFor(first)
		}
	}
}

// refuseFor refuses a table because its destination is that of another one.
func (p *planned) refuseFor(owner schema.Name) {
	p.refused = fmt.Sprintf("its destination %s is that of %s; give one of them another destination", p.target.Name, owner)
	p.target = nil
}

// copyIn returns the number of the copy that the table's entry says is in its destination, 0 if there is none.
func (p *planned) copyIn(entries map[string]string) int {
	if p.target == nil {
		return 0
	}
	at, err := apply.ParseCheckpoint(entries[apply.Key(p.table.ID)])
	if err != nil || at.Settings != settingsOf(p.target) { // one that cannot be read is reported where it is needed
		return 0
	}
	return at.Copy
}

// MakePlan returns what a run would do. It changes nothing on either side.
func MakePlan(ctx context.Context, source connector.Source, sink connector.Sink, sel func(*schema.Table) (Settings, bool)) (*Plan, error) {
	tables, err := source.Tables(ctx)
	if err != nil {
		return nil, err
	}
	ps, err := planTables(ctx, tables, sel, sink, nil)
	if err != nil {
		return nil, err
	}
	plan := &Plan{}
	for _, p := range ps {
		plan.Tables = append(plan.Tables, describe(p))
	}
	return plan, nil
}

func describe(p planned) TablePlan {
	d := TablePlan{
		Table: p.table.Name, Destination: p.destination(), Action: "copy", Mode: "current", Refused: p.refused,
		Key: p.table.KeyNames(), Rows: p.table.Rows, Bytes: p.table.RowBytes,
	}
	if p.target == nil {
		d.Action = "refuse"
		return d
	}
	if p.target.History {
		d.Mode = "history"
	}
	if p.target.Copy > 0 {
		d.Action = "continue"
	}
	stored := map[int]int{}
	for i, c := range p.target.Columns {
		stored[c] = i
	}
	for c, col := range p.table.Columns {
		cp := ColumnPlan{Name: col.Name, SourceType: col.Type.Native}
		if i, ok := stored[c]; ok {
			cp.SinkName, cp.SinkType, cp.Misfit = p.target.SinkNames[i], p.target.SinkTypes[i], p.target.Misfits[i]
		}
		d.Columns = append(d.Columns, cp)
	}
	return d
}

// settingsOf names how a table is mirrored, to notice a change: a person must agree to what it costs.
func settingsOf(t *connector.Target) string {
	mode := "current"
	if t.History {
		mode = "history"
	}
	return fmt.Sprintf("destination %s, mode %s, key %q", t.Name, mode, t.Key)
}

// fingerprintOf identifies a version of a table: stored rows are good for it alone.
func fingerprintOf(t *schema.Table) string {
	h := sha256.Sum256([]byte(t.Describe()))
	return hex.EncodeToString(h[:8])
}
