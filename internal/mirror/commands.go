package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/state"
)

// commandsEvery is how often the state is asked for new commands; what a command waits for is looked at as often as
// phases are.
const commandsEvery = 500 * time.Millisecond

// errHalted ends the copy of a table that is wanted for something else.
var errHalted = errors.New("the copy was stopped")

// order is a command that is being carried out.
type order struct {
	state.Command
	begun bool // Resync: the table has been sent back to the start
}

// halt has everybody leave a table, and reports whether nobody works on it any more. Until release nobody begins to.
func (t *table) halt() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.halted = true
	if t.phase == Copying && !t.landing { // what is being put in place may not be cut off
		t.stopCopy()
	}
	return t.phase != Copying && !t.queued
}

func (t *table) isHalted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.halted
}

// release ends what halt began.
func (s *session) release(t *table) {
	t.mu.Lock()
	was := t.halted
	t.halted = false
	t.mu.Unlock()
	if !was {
		return
	}
	if t.inPhase(Pending) {
		s.joins.push(t)
	}
	s.wake(t)
}

// beginCopy moves a table that waits for its copy to Copying. It returns false for one that does not wait any more, or is
// halted. stop ends the copy.
func (t *table) beginCopy(stop func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != Pending || t.halted {
		return false
	}
	t.phase, t.landing, t.stopCopy = Copying, false, stop
	return true
}

// readCommands looks for commands that were given since. That the state cannot be read stops nothing.
func (s *session) readCommands(ctx context.Context) {
	if time.Since(s.commandsRead) < commandsEvery {
		return
	}
	s.commandsRead = time.Now()
	open, err := s.Store.OpenCommands(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.Log.Warn("commands not read", "error", err)
		}
		return
	}
	var orders []*order
	for _, c := range open {
		i := slices.IndexFunc(s.orders, func(o *order) bool { return o.Number == c.Number })
		if i >= 0 {
			orders = append(orders, s.orders[i])
		} else {
			orders = append(orders, &order{Command: c})
		}
	}
	for _, o := range s.orders { // a later command took the place of one of them
		if t := s.tableOf(o); t != nil && !slices.Contains(orders, o) {
			s.release(t)
		}
	}
	s.orders = orders
}

// obey carries on with the commands that are open, in the order in which they were given. None of them waits for another
// table's.
func (s *session) obey(ctx context.Context) error {
	s.readCommands(ctx)
	for _, o := range slices.Clone(s.orders) {
		if !slices.Contains(s.orders, o) {
			continue // ended by one before it
		}
		t := s.tableOf(o)
		switch {
		case t == nil:
			s.conclude(ctx, o, false, "it is not mirrored")
			continue
		case t.inPhase(Refused, Dropped):
			s.conclude(ctx, o, false, fmt.Sprintf("it is %s: %s", t.summary().Phase, t.summary().Reason))
			continue
		}
		step := s.carryOut(o.Kind)
		if err := step(ctx, o, t); err != nil {
			return err
		}
	}
	return s.settle(ctx)
}

// carryOut returns what makes the next step of a command.
func (s *session) carryOut(kind state.CommandKind) func(context.Context, *order, *table) error {
	switch kind {
	case state.Pause:
		return s.pauseFor
	case state.Resume:
		return s.resumeFor
	case state.Retry, state.Drop:
		return s.quarantineFor
	default:
		return s.resyncFor
	}
}

// tableOf returns the table of a command; by its name if the one that had the name then is gone.
func (s *session) tableOf(o *order) *table {
	s.mu.Lock()
	t := s.tables[o.Table]
	s.mu.Unlock()
	if t != nil && !t.inPhase(Dropped) {
		return t
	}
	for _, other := range s.allTables() {
		if other.name() == o.Name {
			return other
		}
	}
	return t
}

// accept notes in the state that a command is being carried out.
func (s *session) accept(ctx context.Context, o *order) bool {
	if !o.AcceptedAt.IsZero() {
		return true
	}
	accepted := o.Command
	accepted.AcceptedAt = time.Now()
	if !s.saveCommand(ctx, accepted) {
		return false
	}
	o.Command = accepted
	s.Log.Info("command accepted", "command", string(o.Kind), "table", o.Name.String(), "by", o.AskedBy)
	s.event(ctx, o.Name, string(o.Kind), "asked for by "+o.AskedBy)
	return true
}

// conclude ends a command. While the state cannot be written it stays open.
func (s *session) conclude(ctx context.Context, o *order, fulfilled bool, outcome string) {
	done := o.Command
	done.DoneAt, done.Failed, done.Outcome = time.Now(), !fulfilled, outcome
	if done.AcceptedAt.IsZero() {
		done.AcceptedAt = done.DoneAt
	}
	if s.saveCommand(ctx, done) {
		s.orders = slices.DeleteFunc(s.orders, func(other *order) bool { return other == o })
	}
}

func (s *session) saveCommand(ctx context.Context, c state.Command) bool {
	err := s.Store.SaveCommand(ctx, c)
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("state not saved, so a command waits", "error", err)
	}
	return err == nil
}

// pauseFor pauses a table until a person resumes it. It is done when nothing of the table is being written, and the state
// knows it.
func (s *session) pauseFor(ctx context.Context, o *order, t *table) error {
	if !s.accept(ctx, o) {
		return nil
	}
	outcome := "paused"
	if !t.isPausedBy(byPerson) {
		if !t.halt() {
			return nil
		}
		more, err := s.park(ctx, t, "paused by "+o.AskedBy)
		s.release(t)
		if err != nil {
			return err
		}
		outcome += more
		s.Log.Info("table is paused", "table", t.name().String(), "by", o.AskedBy)
		s.event(ctx, t.name(), "paused", "by "+o.AskedBy)
	}
	for _, other := range slices.Clone(s.orders) {
		if other.Kind == state.Resync && other != o && s.tableOf(other) == t {
			s.conclude(ctx, other, false, "it was paused before the new copy was in place")
		}
	}
	if s.trySaveRecords(ctx, t) == nil {
		s.conclude(ctx, o, true, outcome)
	}
	return nil
}

// park makes a table Paused by a person that nobody works on, and says what that means for its copy.
func (s *session) park(ctx context.Context, t *table, reason string) (more string, err error) {
	if err := s.stand(ctx, t); err != nil {
		return "", err
	}
	switch {
	case t.inPlace() != nil:
	case t.goesOn():
		more = "; `sluice resume` goes on with its copy"
	default:
		more = "; `sluice resume` copies it from the start"
	}
	t.setPhase(Paused, reason, "`sluice resume` takes it up again")
	t.mu.Lock()
	t.pausedBy = byPerson
	t.mu.Unlock()
	return more, nil
}

// stand prepares the lane of a table for a pause. If its rows are in place its lane goes on taking changes in; where there
// is no spool for them, or the stream does not deliver them, the log is read again from where the table stands when it goes
// on. A table without its rows in place needs nothing of the log, unless its copy can be gone on with and there is a spool
// for what comes until then.
func (s *session) stand(ctx context.Context, t *table) error {
	t.mu.Lock()
	inPlace, delivered, paused := t.apply != nil, t.joined, t.phase == Paused
	begun := t.unfinished != nil && len(t.unfinished.missing) < t.unfinished.chunks
	t.mu.Unlock()
	switch {
	case paused: // its lane is as it must be
	case !inPlace && begun && delivered && s.spool != nil:
	case !inPlace:
		if err := s.abandon(ctx, t); err != nil {
			return err
		}
		t.log.forget(t)
	case s.spool == nil || !delivered:
		t.lane.Hold(t.log.last.Load().UpTo)
	}
	return nil
}

// resumeFor takes up a paused table, and waits until it has caught up.
func (s *session) resumeFor(ctx context.Context, o *order, t *table) error {
	if o.AcceptedAt.IsZero() {
		if t.inPhase(Paused) && !t.halt() {
			return nil
		}
		err := s.resumeTable(ctx, t)
		s.release(t)
		if err != nil || s.trySaveRecords(ctx, t) != nil { // else a crash would leave it paused
			return err
		}
		if !s.accept(ctx, o) {
			return nil
		}
	}
	switch now := t.summary(); {
	case now.Phase == string(Paused) && !t.isWanted():
		s.conclude(ctx, o, false, "it is paused again: "+now.Reason)
	case now.Phase == string(Streaming):
		s.conclude(ctx, o, true, "caught up")
	}
	return nil
}

// resumeTable takes up a table that is paused. One that the config does not allow to go on stays paused for that, and one
// that lacks changes for the new copy that only a resync makes.
func (s *session) resumeTable(ctx context.Context, t *table) error {
	t.mu.Lock()
	paused, differs := t.phase == Paused, t.differs
	t.mu.Unlock()
	switch {
	case !paused, t.isPausedBy(byGap) && t.inPlace() == nil:
		return nil
	case differs != "":
		t.refuseSettings(differs)
		return nil
	}
	return s.goOnOrReread(ctx, t)
}

// goOnOrReread takes up a paused table, by a new session if the log must be read again for it.
func (s *session) goOnOrReread(ctx context.Context, t *table) error {
	up, err := s.takeUp(ctx, t)
	if err != nil || up {
		return err
	}
	t.mu.Lock()
	t.pausedBy, t.retryAt, t.wanted = byFault, time.Now(), true
	t.mu.Unlock()
	return nil
}

// takeUp lets a paused table go on, and reports whether it could without reading the log again.
func (s *session) takeUp(ctx context.Context, t *table) (bool, error) {
	goal, err := s.source.Head(ctx, t.log.name)
	if err != nil {
		return false, err
	}
	if !t.takeUp(goal) {
		return false, nil
	}
	if t.inPhase(Pending) {
		s.joins.push(t)
	}
	s.wake(t)
	return true, nil
}

// resyncFor copies a table again. It is done when a copy is in place that began after it was accepted, or was under way
// then.
func (s *session) resyncFor(ctx context.Context, o *order, t *table) error {
	if o.AcceptedAt.IsZero() {
		o.Copy = t.copyInPlace()
	}
	if !s.accept(ctx, o) {
		return nil
	}
	now := t.summary()
	switch {
	case t.copyInPlace() > o.Copy:
		s.conclude(ctx, o, true, fmt.Sprintf("copied, %d rows", t.rowsOfCopy()))
	case o.begun && now.Phase == string(Paused):
		s.conclude(ctx, o, false, "it is paused: "+now.Reason)
	case o.begun:
	case t.inPhase(Pending, Copying):
		o.begun = true
		s.release(t) // it may have been halted, and then sent back to the start by who had it
	case t.halt():
		err := s.recopy(ctx, t, "a person asked for it")
		s.release(t)
		if errors.Is(err, errRenamed) || connector.KindOf(err) == connector.Setup && !concernsAll(err) {
			s.conclude(ctx, o, false, err.Error())
			return nil
		}
		o.begun = err == nil
		return err
	}
	return nil
}

// recopy sends a table that nobody works on back to the start, as it is at the source and in the config now.
func (s *session) recopy(ctx context.Context, t *table, why string) error {
	there, err := s.replan(ctx, t)
	if err != nil {
		return err
	}
	if !there {
		return &connector.Error{Kind: connector.Setup, System: "mirror", Op: "copy a table", Table: t.name(), Err: errors.New("it is not at the source any more")}
	}
	if err := s.retireEntry(ctx, t); err != nil {
		return err
	}
	t.mu.Lock()
	t.differs = ""
	t.mu.Unlock()
	t.setPhase(Pending, "", "")
	err = s.copyAgain(ctx, t, why)
	s.saveRecords(ctx, t)
	return err
}

// copyInPlace returns the number of the copy whose rows readers see, if they are good to go on from; else 0.
func (t *table) copyInPlace() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.apply != nil:
		return t.planned.target.Copy // an applier may be writing the checkpoint
	case t.stands != nil:
		return t.stands.Copy
	}
	return 0
}

func (t *table) isPausedBy(by string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase == Paused && t.pausedBy == by
}

// isWanted reports whether a person has resumed a table that waits for the log to be read again.
func (t *table) isWanted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase == Paused && t.wanted
}

// refuseSettings pauses a table because its settings are not those under which it is mirrored.
func (t *table) refuseSettings(differs string) {
	t.setPhase(Paused, differs, "undo the change; or `sluice resync` accepts it and copies the table anew")
	t.mu.Lock()
	t.differs, t.pausedBy = differs, byConfig
	t.mu.Unlock()
}

// stayPaused makes a table Paused as the state has it.
func (t *table) stayPaused(saved *state.Table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase, t.reason, t.remedy, t.pausedBy = Paused, saved.Reason, saved.Remedy, saved.PausedBy
	t.since, t.retryAt, t.lastErr = saved.Since, saved.RetryAt, saved.LastError
}

// staysPaused reports whether a table that the state says is paused is not to be taken up at the start of a session: a
// person paused it, or it lacks changes and a person must want the new copy, or a fault paused it in an earlier session of
// this run and its time has not come.
func (m *runner) staysPaused(saved *state.Table) bool {
	if saved.Phase != string(Paused) {
		return false
	}
	switch saved.PausedBy {
	case byPerson:
		return true
	case byGap:
		return !m.ResyncOnGap
	case byFault:
		return m.later && (saved.RetryAt.IsZero() || time.Now().Before(saved.RetryAt))
	}
	return false
}
