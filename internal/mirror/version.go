package mirror

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/schema"
)

// SchemaPolicy is what happens when a table's columns change.
type SchemaPolicy uint8

// The policies.
const (
	FollowSchema SchemaPolicy = iota // the destination is altered, or copied anew where it cannot be
	PauseSchema                      // the table pauses
	IgnoreSchema                     // what is new is left out, what is gone is NULL
)

// errSchemaPolicy is in the chain of an error that a table pauses with because it is to: no waiting mends it.
var errSchemaPolicy = errors.New("schema_changes")

// versionKey is the key of the entry that holds the version of a table that its rows are stored under. It is written
// together with each checkpoint that names another version.
func versionKey(id schema.ID) string { return "version/" + string(id) }

// restoreVersion plans a table as the version that its rows are stored under, where the sink's entries know that and it is
// not the present one any more. The present one is acted on when the log has come to it.
func (s *session) restoreVersion(ctx context.Context, t *table, entries map[string]string) error {
	now := t.planned.table
	stored, err := schema.ParseTable(entries[versionKey(t.id)])
	if err != nil || stored.Describe() == now.Describe() {
		return nil // a table without a known version is copied, see gather
	}
	at, err := apply.ParseCheckpoint(entries[apply.Key(t.id)])
	if err != nil || at.Fingerprint != versionOf(stored) {
		return nil
	}
	settings, _ := s.selector().Select(now)
	p, err := planTable(ctx, stored, settings, s.sink)
	if err != nil || p.target == nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.renamed = now.Name != stored.Name; t.renamed && settingsOf(p.target, settings) != at.Settings {
		return nil
	}
	t.planned = p
	return nil
}

// schemaChanged acts on a change of a table's schema, behind the last row of the old version. An old one was read by an
// earlier process, which counted versions differently.
func (s *session) schemaChanged(ctx context.Context, t *table, change *connector.SchemaChange, old bool) error {
	to := change.Table
	if to.Refused != "" && !old {
		return s.tableGone(ctx, t, to)
	}
	if change.Commit.Position != "" { // else discovery found it, now
		if had, err := t.apply.Has(change.Commit); err != nil || had {
			return err
		}
	}
	t.mu.Lock()
	acted, lost := t.acted(), t.lost
	t.lost = ""
	t.mu.Unlock()
	switch {
	case lost != "":
		return s.copyAgain(ctx, t, lost)
	case change.Rewrote || to.Refused != "":
		return s.versionUnknown(ctx, t, to)
	case to.Describe() == acted.Describe(), !old && to.Version < acted.Version:
		return nil // the copy was taken under this version, or a later one
	}
	return s.toVersion(ctx, t, to)
}

// versionUnknown acts on changes that cannot be read.
func (s *session) versionUnknown(ctx context.Context, t *table, to *schema.Table) error {
	const why = "its columns changed more than once while it was behind"
	if settings, _ := s.selector().Select(to); settings.SchemaChanges != FollowSchema {
		return policyError(to, why, "`resync` the table")
	}
	return s.copyAgain(ctx, t, why)
}

// versionMet acts on changes of a version that nobody has told of.
func (s *session) versionMet(ctx context.Context, t *table, v *apply.VersionError) error {
	t.mu.Lock()
	acted := t.acted()
	t.mu.Unlock()
	switch {
	case v.Table.Refused != "":
		return s.versionUnknown(ctx, t, v.Table)
	case v.Table.Version != 0 && v.Table.Version < acted.Version:
		return s.copyAgain(ctx, t, "changes of an earlier version of it came again")
	}
	return s.toVersion(ctx, t, v.Table)
}

// acted is the version that was acted on last. The caller holds t.mu.
func (t *table) acted() *schema.Table {
	if t.ignored != nil {
		return t.ignored
	}
	return t.planned.table
}

// toVersion takes a table to another version of it, as its settings say.
func (s *session) toVersion(ctx context.Context, t *table, to *schema.Table) error {
	t.mu.Lock()
	from := t.planned.target.Table
	t.mu.Unlock()
	settings, selected := s.selector().Select(to)
	if !selected {
		return s.renamedAway(ctx, t, to, "which is not selected")
	}
	chosen, why := choose(to, settings)
	if why != "" { // the new copy waits until it can be made
		return s.copyAgain(ctx, t, why)
	}
	d := schema.Compare(from, chosen.table)
	rewrote := ""
	if r, ok := s.source.(connector.Rewriter); ok {
		rewrote = r.Rewrote(from, chosen.table)
	}
	if d.Renamed {
		want, err := planTable(ctx, to, settings, s.sink)
		if err != nil {
			return err
		}
		if why := t.movesTo(to, []planned{want}); why != "" {
			return s.renamedAway(ctx, t, to, why)
		}
	}
	switch {
	case rewrote != "" && (d.Empty() || settings.SchemaChanges == FollowSchema):
		return s.copyAgain(ctx, t, rewrote)
	case d.Empty():
		return s.noteVersion(ctx, t, to, chosen)
	case settings.SchemaChanges == IgnoreSchema && rewrote == "":
		return s.ignore(ctx, t, to, &d)
	case settings.SchemaChanges != FollowSchema:
		return policyError(to, d.String(), "`resync` the table, or set schema_changes: follow")
	case t.apply.Checkpoint().Ignored:
		return s.copyAgain(ctx, t, "changes of its schema were ignored before, and are followed now")
	}
	return s.alter(ctx, t, to, settings, chosen, &d)
}

func policyError(t *schema.Table, what, hint string) error {
	return &connector.Error{
		Kind: connector.Setup, System: "mirror", Op: "follow a change of the schema", Table: t.Name,
		Err: fmt.Errorf("%w: %s", errSchemaPolicy, what), Hint: hint,
	}
}

// errRenamed says that a table has gone away under another name, and that this was seen to.
var errRenamed = errors.New("the table was renamed")

// movesTo says why a table that is called otherwise now, and planned anew, leaves its destination; "" if it does not.
func (t *table) movesTo(now *schema.Table, ps []planned) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch was := t.planned; {
	case now.Name == was.table.Name:
		return ""
	case len(ps) == 0:
		return "which is not selected"
	case was.target != nil && ps[0].destination() != was.target.Name:
		return "which has another destination"
	}
	return ""
}

// renamedAway ends the mirroring of a table under its old name: a destination belongs to a name. Under its new one it is a
// table that was found, if that is selected.
func (s *session) renamedAway(ctx context.Context, t *table, to *schema.Table, why string) error {
	gone := *to
	gone.Name = t.name()
	gone.Refused = fmt.Sprintf("it is called %s now, %s", to.Name, why)
	if err := s.tableGone(ctx, t, &gone); err != nil {
		return err
	}
	if _, selected := s.selector().Select(to); selected {
		s.mu.Lock()
		delete(s.tables, t.id)
		s.mu.Unlock()
	}
	s.lookAround()
	return nil
}

// lookAround makes a round of discovery due: what was seen of one table concerns others.
func (s *session) lookAround() {
	select {
	case s.look <- struct{}{}:
	default: // it is due already
	}
}

// noteVersion goes on under a version that is stored alike.
func (s *session) noteVersion(ctx context.Context, t *table, to *schema.Table, chosen selection) error {
	was := t.planned.target
	next := *was
	next.Table, next.Columns = chosen.table, make([]int, len(was.Columns))
	for i, c := range was.Columns {
		next.Columns[i] = chosen.table.Same(&was.Table.Columns[c])
	}
	at, entries := versionEntries(t, to, &next, t.planned.settings)
	if err := s.commit(ctx, entries); err != nil {
		return err
	}
	return s.goOnUnder(t, to, &next, chosen.keep, at)
}

// versionEntries returns the checkpoint of a table under another version, and the entries to write for it.
func versionEntries(t *table, to *schema.Table, target *connector.Target, settings Settings) (apply.Checkpoint, map[string]string) {
	at := t.apply.Checkpoint()
	at.Table, at.Settings, at.Fingerprint = to.Name.String(), settingsOf(target, settings), versionOf(to)
	return at, map[string]string{apply.Key(t.id): at.String(), versionKey(t.id): to.Describe()}
}

// alter changes the destination together with the checkpoint.
func (s *session) alter(ctx context.Context, t *table, to *schema.Table, settings Settings, chosen selection, d *schema.Difference) error {
	decoder, err := s.source.Decoder(chosen.table)
	if err != nil {
		return err
	}
	missing, err := decoder.Missing()
	if err != nil {
		return err
	}
	defer missing.Release()
	want := wanted(chosen, settings)
	named := want
	named.Name, named.Existing = t.planned.target.Name, t.planned.target.Existing
	at, entries := versionEntries(t, to, &named, settings)
	next, err := s.sink.Change(ctx, t.planned.target, connector.Alteration{
		Want: want, Missing: missing, DropColumns: settings.DropColumns, Entries: entries,
	})
	switch {
	case err != nil:
		return err
	case next == nil:
		return s.copyAgain(ctx, t, "the destination cannot be altered so: "+d.String())
	}
	s.Log.Info("table's destination was altered", "table", to.Name.String(), "difference", d.String())
	s.event(ctx, to.Name, "schema_changed", d.String())
	if err := s.goOnUnder(t, to, next, chosen.keep, at); err != nil {
		return err
	}
	s.saveRecords(ctx, t)
	return nil
}

// goOnUnder applies what follows into another target of the table, whose checkpoint the sink has.
func (s *session) goOnUnder(t *table, to *schema.Table, target *connector.Target, keep *filter.Filter, at apply.Checkpoint) error {
	if err := t.apply.Follow(target, keep, at); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.planned.table, t.planned.target, t.planned.keep, t.entry, t.ignored = to, target, keep, at.String(), nil
	return nil
}

// ignore goes on without what a version has beyond the one known.
func (s *session) ignore(ctx context.Context, t *table, to *schema.Table, d *schema.Difference) error {
	if err := t.apply.Ignore(to); err != nil {
		return policyError(to, "it cannot be ignored that "+err.Error(), "`resync` the table")
	}
	t.mu.Lock()
	t.ignored = to
	t.mu.Unlock()
	s.Log.Warn("change of a table's schema is ignored", "table", to.Name.String(), "difference", d.String())
	s.event(ctx, to.Name, "schema_ignored", d.String())
	return nil
}

// foundVersion is a version of a table that the catalog has, and the end of the log behind that.
type foundVersion struct {
	table *schema.Table
	at    connector.Positions
}

// find has a version that the catalog holds acted on when all changes that were committed before are in the lane.
func (l *logReader) find(ctx context.Context, id schema.ID, v foundVersion) error {
	l.mu.Lock()
	if l.found == nil {
		l.found = map[schema.ID]foundVersion{}
	}
	l.found[id] = v
	l.mu.Unlock()
	return l.release(ctx)
}

// release puts the versions that the log has come to into their lanes.
func (l *logReader) release(ctx context.Context) error {
	l.mu.Lock()
	waiting := len(l.found)
	l.mu.Unlock()
	if waiting == 0 {
		return nil
	}
	last := l.last.Load().UpTo
	due := map[schema.ID]*schema.Table{}
	l.mu.Lock()
	for id, v := range l.found {
		reached, err := l.s.reached(last, v.at)
		if err != nil {
			l.mu.Unlock()
			return err
		}
		if reached {
			due[id] = v.table
			delete(l.found, id)
		}
	}
	l.mu.Unlock()
	for id, v := range due {
		if err := l.appendChange(ctx, id, v); err != nil {
			return err
		}
	}
	return nil
}

// checkCoverage finds the tables of which changes are missing from the stream. Since when is not known: they are copied
// again, which puts them back in.
func (s *session) checkCoverage(ctx context.Context) error {
	for _, l := range s.allLogs() {
		coverer, ok := l.stream.(connector.Coverer)
		if !ok {
			continue
		}
		uncovered, err := coverer.Uncovered(ctx)
		if err != nil {
			return err
		}
		for id, why := range uncovered {
			t := l.table(id)
			if t == nil || !t.inPhase(CatchingUp, Streaming) {
				continue
			}
			s.Log.Warn("changes of a table are missing from the stream", "table", t.name().String(), "reason", why)
			t.mu.Lock()
			t.lost = "not all changes of it are in the stream: " + why
			now := t.planned.table
			t.mu.Unlock()
			if err := l.appendChange(ctx, id, now); err != nil {
				return err
			}
		}
	}
	return nil
}
