package mirror

import (
	"context"
	"fmt"

	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/schema"
)

// notSelected is why a table is left out.
const notSelected = "it is not selected any more"

func (m *runner) selector() Selector {
	m.selecting.Lock()
	defer m.selecting.Unlock()
	return m.Selector
}

// reload takes selections that take the place of the one before while the mirror runs.
func (s *session) reload(ctx context.Context) error {
	for {
		select {
		case sel := <-s.Reloads:
			s.selecting.Lock()
			s.Selector = sel // first: what comes to nothing now the next session does
			s.selecting.Unlock()
			if err := s.reselect(ctx, sel); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reselect compares all tables with a selection: those that it takes in join, those that it leaves out go, and those that
// it has mirrored in another way are left to obey.
func (s *session) reselect(ctx context.Context, sel Selector) error {
	if err := s.welcoming.Acquire(ctx, 1); err != nil { // first: what discovery takes in by the former selection is seen here
		return err
	}
	defer s.welcoming.Release(1)
	found, err := s.source.Tables(ctx)
	if err != nil {
		return err
	}
	for _, what := range sel.unused(found) {
		s.Log.Warn("settings are not used", "setting", what)
	}
	ps, err := planTables(ctx, s.followed(found), sel.Select, s.origin, s.sink, nil)
	if err != nil {
		return err
	}
	planned := map[schema.ID]*planned{}
	for i := range ps {
		planned[ps[i].table.ID] = &ps[i]
	}
	present := map[schema.ID]*schema.Table{}
	var newcomers []*schema.Table
	for _, f := range found {
		present[f.ID] = f
		p, t := planned[f.ID], s.table(f.ID)
		switch {
		case p != nil && (t == nil || t.inPhase(Refused, Dropped)):
			newcomers = append(newcomers, f)
		case t != nil:
			s.mu.Lock()
			s.changes[t] = p
			s.mu.Unlock()
		}
	}
	_, err = s.welcome(ctx, newcomers, present)
	return err
}

// settle acts on the changes of settings that reselect has found, of tables that nobody works on now.
func (s *session) settle(ctx context.Context) error {
	for _, t := range s.allTables() {
		s.mu.Lock()
		p, changed := s.changes[t]
		s.mu.Unlock()
		if !changed {
			continue
		}
		if p != nil {
			t.quarantine.Take(p.quarantines())
		}
		if s.agrees(t, p) {
			s.settled(t, p)
			s.release(t) // another selection may have had it halted
			continue
		}
		if !t.halt() {
			continue
		}
		err := s.changeSettings(ctx, t, p)
		s.settled(t, p)
		s.release(t)
		if err != nil {
			return err
		}
		s.saveRecords(ctx, t)
	}
	return nil
}

// settled notes that a plan was acted on. One that reselect has found since stays.
func (s *session) settled(t *table, p *planned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes[t] == p {
		delete(s.changes, t)
	}
}

// agrees reports whether a plan is the one that a table is mirrored by.
func (s *session) agrees(t *table, p *planned) bool {
	if p == nil || p.target == nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.differs == "" && settingsOf(t.planned.target, t.planned.settings) == settingsOf(p.target, p.settings)
}

// changeSettings makes a new plan, nil: none, that of a table that nobody works on. Rows that are in place under other
// settings stay as they are: a person must agree to what a change costs.
func (s *session) changeSettings(ctx context.Context, t *table, p *planned) error {
	at := t.inPlace()
	switch {
	case t.inPhase(Dropped):
		return nil
	case p == nil:
		return s.leaveOut(ctx, t)
	case p.target == nil:
		return s.pauseForSettings(ctx, t, "config_changed: "+p.refused)
	case at == nil:
		if err := s.abandon(ctx, t); err != nil { // a copy under the former settings
			return err
		}
		t.mu.Lock()
		t.planned, t.differs = *p, ""
		byConfig := t.phase == Paused && t.pausedBy == byConfig
		t.mu.Unlock()
		if byConfig {
			t.setPhase(Pending, "", "")
		}
		return nil
	}
	now := settingsOf(p.target, p.settings)
	if at.Settings != now {
		return s.pauseForSettings(ctx, t, settingsDiffer(at.Settings, now))
	}
	t.mu.Lock()
	t.differs = ""
	t.mu.Unlock()
	if !t.isPausedBy(byConfig) {
		return nil
	}
	return s.goOnOrReread(ctx, t)
}

func settingsDiffer(are, want string) string {
	return fmt.Sprintf("config_changed: it is mirrored with %s, the config says %s", are, want)
}

// inPlace returns the checkpoint of the rows that readers see, nil if they are not good to go on from. It is for a table
// that nobody works on.
func (t *table) inPlace() *apply.Checkpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.apply == nil {
		return t.stands
	}
	at := t.apply.Checkpoint()
	return &at
}

// pauseForSettings pauses a table that nobody works on. One that a person paused stays so, and is refused when it is
// resumed.
func (s *session) pauseForSettings(ctx context.Context, t *table, differs string) error {
	t.mu.Lock()
	t.differs = differs
	t.mu.Unlock()
	if t.isPausedBy(byPerson) {
		return nil
	}
	if err := s.stand(ctx, t); err != nil {
		return err
	}
	t.refuseSettings(differs)
	s.Log.Warn("table is paused", "table", t.name().String(), "reason", differs)
	s.event(ctx, t.name(), "paused", differs)
	return nil
}

// leaveOut ends the mirroring of a table that is not wanted any more. Its destination stays.
func (s *session) leaveOut(ctx context.Context, t *table) error {
	gone := *t.planned.table
	gone.Refused = notSelected
	if t.log == nil { // it was refused
		t.setPhase(Dropped, notSelected, "")
		return nil
	}
	return s.tableGone(ctx, t, &gone)
}
