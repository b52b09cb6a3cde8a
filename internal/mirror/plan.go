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
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/schema"
)

// planned is a selected table with its place in the sink, or why it has none.
type planned struct {
	table    *schema.Table     // as the source has it
	target   *connector.Target // nil if refused; its Table is what is mirrored of table
	keep     *filter.Filter    // which of its rows are mirrored; nil: all
	settings Settings
	refused  string // why, and what to do
}

// notes are what a person should know of the destination.
func (p planned) notes() []string {
	if p.target == nil {
		return nil
	}
	if p.settings.Quarantine && p.settings.History {
		return append(slices.Clone(p.target.Notes), "a row that the sink refuses pauses the table: `on_bad_row: quarantine` is for tables that hold rows as they are now")
	}
	return p.target.Notes
}

// quarantines reports whether rows that the sink refuses go into quarantine.
func (p planned) quarantines() bool {
	return p.settings.Quarantine && !p.settings.History
}

// destination is where the table is, or would be.
func (p planned) destination() schema.Name {
	if p.target != nil {
		return p.target.Name
	}
	return p.table.Name
}

// planTables decides for each selected table where and how it is stored. It changes nothing. Of several tables with one
// destination one keeps it: the one that is stored there as entries, those of the sink, say. origin names the source's
// database, see identityOf.
func planTables(
	ctx context.Context, tables []*schema.Table, sel func(*schema.Table) (Settings, bool), origin string, sink connector.Sink, entries map[string]string,
) ([]planned, error) {
	end, err := identityOf(ctx, sink)
	if err != nil {
		return nil, err
	}
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
		if p.target != nil && end != "" && end == origin && p.target.Name == t.Name {
			p.refused, p.target = "source and destination are the same table; choose another database or `destination`", nil
		}
		ps = append(ps, p)
	}
	refuseCollisions(ps, entries)
	return ps, nil
}

// identityOf names the database behind a source or a sink; "" if that is not known.
func identityOf(ctx context.Context, side any) (string, error) {
	if i, ok := side.(connector.Identifier); ok {
		return i.Identity(ctx)
	}
	return "", nil
}

// entriesOf returns the sink's entries as the next Claim would find them, as far as that can be told.
func entriesOf(ctx context.Context, sink connector.Sink) (map[string]string, error) {
	if r, ok := sink.(connector.EntryReader); ok {
		return r.Entries(ctx)
	}
	return nil, nil
}

func planTable(ctx context.Context, t *schema.Table, s Settings, sink connector.Sink) (planned, error) {
	p := planned{table: t, settings: s, refused: refusal(t, s)}
	if p.refused != "" {
		return p, nil
	}
	chosen, _ := choose(t, s) // refusal has seen that it can
	target, err := sink.Plan(ctx, wanted(chosen, s))
	if e, ok := errors.AsType[*connector.Error](err); ok && !concernsAll(err) && (e.Kind == connector.TableFault || e.Kind == connector.Setup) {
		p.refused = e.Error()
		return p, nil
	}
	p.target, p.keep = target, chosen.keep
	return p, err
}

// wanted is what a sink is asked for.
func wanted(chosen selection, s Settings) connector.Target {
	return connector.Target{
		Table: chosen.table, Name: s.Destination, Key: s.Key, History: s.History, SoftDelete: s.SoftDelete, Existing: s.Existing, Columns: chosen.columns,
	}
}

// refusal returns why a table cannot be mirrored in this way into any sink, and what to do; "" if it can.
func refusal(t *schema.Table, s Settings) string {
	if t.Refused == "" && len(t.Key) == 0 && !s.History {
		return t.Keyless + `; or mirror it with "mode: history"`
	}
	if t.Refused != "" {
		return t.Refused
	}
	if s.History && s.SoftDelete {
		return `a history keeps every deletion as a row of its own; leave "deletes: soft" out`
	}
	_, why := choose(t, s)
	return why
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
	if err != nil || at.Settings != settingsOf(p.target, p.settings) { // one that cannot be read is reported where it is needed
		return 0
	}
	return at.Copy
}

// Selector says what of a source is mirrored.
type Selector struct {
	Select func(t *schema.Table) (Settings, bool) // whether and how a table is mirrored
	// Unused returns, for people, the settings of single tables that none of these tables takes; nil: there are none.
	Unused func(tables []schema.Name) []string
}

// unused returns what Selector.Unused does, of the tables found.
func (s Selector) unused(found []*schema.Table) []string {
	if s.Unused == nil {
		return nil
	}
	names := make([]schema.Name, len(found))
	for i, t := range found {
		names[i] = t.Name
	}
	return s.Unused(names)
}

// MakePlan returns what a run would do. It changes nothing on either side.
func MakePlan(ctx context.Context, source connector.Source, sink connector.Sink, sel Selector) (*Plan, error) {
	tables, err := source.Tables(ctx)
	if err != nil {
		return nil, err
	}
	origin, err := identityOf(ctx, source)
	if err != nil {
		return nil, err
	}
	entries, err := entriesOf(ctx, sink)
	if err != nil {
		return nil, err
	}
	ps, err := planTables(ctx, tables, sel.Select, origin, sink, entries)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Unused: sel.unused(tables)}
	if n, ok := source.(connector.Noter); ok {
		if plan.Notes, err = n.Notes(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range ps {
		plan.Tables = append(plan.Tables, describe(p))
	}
	return plan, nil
}

func describe(p planned) TablePlan {
	d := TablePlan{
		Table: p.table.Name, Destination: p.destination(), Action: "copy", Mode: "current", Deletes: "hard", Refused: p.refused,
		Key: keyNamesOf(p), Rows: p.table.Rows, Bytes: p.table.RowBytes,
	}
	if p.target == nil {
		d.Action = "refuse"
		return d
	}
	d.Filter = p.settings.Filter
	if p.target.History {
		d.Mode = "history"
	}
	if p.target.SoftDelete {
		d.Deletes = "soft"
	}
	if p.target.Existing != connector.RefuseExisting {
		d.Existing = p.target.Existing.String()
	}
	d.Notes = p.notes()
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

func keyNamesOf(p planned) []string {
	if p.target != nil {
		return p.target.Table.KeyNames()
	}
	return p.table.KeyNames()
}

// settingsOf names how a table is mirrored, to notice a change: a person must agree to what it costs. What is not set is
// not named, so that the text of a table without settings stays the same when there are more of them.
func settingsOf(t *connector.Target, s Settings) string {
	mode := "current"
	if t.History {
		mode = "history"
	}
	text := fmt.Sprintf("destination %s, mode %s, key %q", t.Name, mode, t.Key)
	if s.Columns != nil {
		text += fmt.Sprintf(", columns %q", s.Columns)
	}
	if s.ExcludeColumns != nil {
		text += fmt.Sprintf(", exclude_columns %q", s.ExcludeColumns)
	}
	if s.Filter != "" {
		text += fmt.Sprintf(", filter %q", s.Filter)
	}
	if t.SoftDelete {
		text += ", deletes soft"
	}
	if t.Existing == connector.MergeExisting {
		text += ", existing merge"
	}
	return text
}

// versionOf identifies a version of a table as the source has it: rows are stored under it alone.
func versionOf(t *schema.Table) string {
	h := sha256.Sum256([]byte(t.Describe()))
	return hex.EncodeToString(h[:8])
}

// fingerprintOf identifies the columns of a version of a table that are mirrored.
func fingerprintOf(t *schema.Table) string {
	h := sha256.New()
	place := make([]int, len(t.Columns))
	n := 0
	for i := range t.Columns {
		c := &t.Columns[i]
		if c.Unread {
			continue
		}
		place[i] = n
		n++
		fmt.Fprintf(h, "%d %q %q %q\n", c.Number, c.Name, c.Type.Native, c.Generated)
	}
	key := make([]int, len(t.Key))
	for i, c := range t.Key {
		key[i] = place[c]
	}
	fmt.Fprintf(h, "%v\n", key)
	return hex.EncodeToString(h.Sum(nil)[:8])
}
