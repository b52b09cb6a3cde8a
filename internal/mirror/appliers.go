package mirror

import (
	"context"
	"errors"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/schema"
)

// wake puts a table with changes into the appliers' queue. A table whose copy is not in place yet waits for it, one that
// failed for its time to pass.
func (s *session) wake(t *table) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queued || t.halted || t.apply == nil || (t.phase != CatchingUp && t.phase != Streaming) || t.lane.Empty() || time.Now().Before(t.rests) {
		return
	}
	t.queued = true
	s.ready.push(t, t.lane.Oldest())
}

// applyAll applies tables' batches until the queue is finished and empty.
func (s *session) applyAll(ctx context.Context) error {
	for {
		t, err := s.ready.pop(ctx)
		if err != nil || t == nil {
			return ended(err)
		}
		err = s.applyOne(ctx, t)
		s.ready.done(t)
		if err := s.giveBack(t, err); err != nil {
			return err
		}
	}
}

// convergingRows bounds the batches of a table that converges, about: rows of them may be read from the source with all
// their large values.
const convergingRows = 500

// applyOne does the next that there is to do for a table: mostly, that is to apply a batch.
func (s *session) applyOne(ctx context.Context, t *table) error {
	if t.isHalted() {
		return nil
	}
	if why := s.doomedFor(t); why != nil {
		return s.giveUp(ctx, t, why)
	}
	rows := s.Limits.BatchRows
	if t.apply.Converges() {
		rows = min(rows, convergingRows)
	}
	items, err := t.lane.Take(t.apply.MostRows(rows), s.Limits.BatchBytes, s.Limits.BatchAge)
	if err != nil || !applicable(items) {
		return s.attend(ctx, t, items, err)
	}
	return s.applyItems(ctx, t, items)
}

func (s *session) applyItems(ctx context.Context, t *table, items []lane.Item) error {
	begun := time.Now()
	batch, err := t.apply.Prepare(ctx, framesOf(items))
	if batch != nil {
		defer batch.Release()
		err = batch.Apply(ctx)
	}
	return s.applied(ctx, t, batch, begun, err)
}

// applicable reports whether what was taken from a table's lane is a batch to be applied.
func applicable(items []lane.Item) bool {
	return len(items) > 0 && items[0].Change == nil
}

// attend deals with a table that has no batch to be applied, given what Take returned.
func (s *session) attend(ctx context.Context, t *table, items []lane.Item, err error) error {
	switch {
	case err != nil:
		return s.readLost(ctx, t, err)
	case len(items) == 0:
		return nil
	}
	if err := s.schemaChanged(ctx, t, items[0].Change, items[0].Old); err != nil {
		t.lane.Back()
		return s.tableFailed(ctx, t, err)
	}
	t.lane.Done()
	return nil
}

// giveBack ends what one goroutine has to do with a table, and queues it if it has more changes. It returns err.
func (s *session) giveBack(t *table, err error) error {
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.queued = false
	t.mu.Unlock()
	s.wake(t)
	return nil
}

func framesOf(items []lane.Item) []*connector.Frames {
	frames := make([]*connector.Frames, len(items))
	for i, it := range items {
		frames[i] = it.Frames
	}
	return frames
}

// applied takes note of a table's batch that is durable in the sink, begun at a time by this machine's clock; nil: all that
// was taken was there already. Or it reacts to its fault.
func (s *session) applied(ctx context.Context, t *table, batch *apply.Batch, begun time.Time, err error) error {
	if errors.Is(err, apply.ErrTooLarge) {
		t.lane.Back()
		return nil
	}
	if err != nil {
		t.lane.Back()
		if v, ok := errors.AsType[*apply.VersionError](err); ok {
			if err = s.versionMet(ctx, t, v); err == nil {
				return nil
			}
		}
		return s.tableFailed(ctx, t, err)
	}
	at := t.apply.Checkpoint()
	t.mu.Lock()
	t.entry, t.meeting, t.overlap = at.String(), t.apply.Meeting(), at.Converged()
	if batch != nil {
		t.total.changes += batch.Messages
		t.total.bytesApplied += batch.Bytes
	}
	t.total.reread += t.apply.Reread()
	t.failures = 0
	t.mu.Unlock()
	if batch != nil {
		s.noteBatch(batch.Oldest, begun)
		s.noteQuarantine(ctx, t)
	}
	t.lane.Done() // last: the lane's safe position says that the above is so
	return nil
}

// concernsAll reports whether a set-up error is one of the whole source or sink (a password that was changed), so that no
// table is paused for it.
func concernsAll(err error) bool {
	e, ok := errors.AsType[*connector.Error](err)
	return ok && e.Kind == connector.Setup && e.Table.Table == ""
}

// ofOneTable reports whether an error is one of a single table.
func ofOneTable(err error) bool {
	switch connector.KindOf(err) {
	case connector.BadRow, connector.Constraint, connector.Gap, connector.TableFault, connector.Conflict, connector.ViewLost:
		return true
	case connector.Setup:
		return !concernsAll(err)
	}
	return false
}

// tableFailed reacts to the fault of one table's batch: it returns the error if it is not the table's, else lets the table
// rest, without an applier, or pauses it.
func (s *session) tableFailed(ctx context.Context, t *table, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if !ofOneTable(err) {
		return err
	}
	switch connector.KindOf(err) {
	case connector.BadRow, connector.Setup, connector.Constraint:
		return s.pause(ctx, t, err)
	case connector.Gap:
		if s.ResyncOnGap {
			s.observed.noteError(err)
			return s.copyAgain(ctx, t, err.Error())
		}
		return s.pause(ctx, t, err)
	case connector.ViewLost: // rows that it was to read from the source have other columns
		return s.copyAgain(ctx, t, err.Error())
	}
	pause, wait := s.failed(t, err)
	if pause {
		return s.pause(ctx, t, err)
	}
	s.Log.Warn("table failed, trying again", "table", t.name().String(), "in", wait, "error", err)
	return nil
}

// tableGone ends the mirroring of a table that was dropped, or changed into one that cannot be mirrored. Its destination
// and its entry stay.
func (s *session) tableGone(ctx context.Context, t *table, now *schema.Table) error {
	if err := s.retireEntry(ctx, t); err != nil {
		return err
	}
	switch err := t.log.drop(ctx, t); connector.KindOf(err) {
	case connector.TableFault, connector.Setup, connector.Conflict: // what it still sends is thrown away
		s.Log.Warn("table is still in the stream", "table", t.name().String(), "error", err)
	default:
		if err != nil {
			return err
		}
	}
	t.setPhase(Dropped, now.Refused, "drop its destination when it is not wanted any more")
	s.Log.Warn("table is not mirrored any more", "table", t.name().String(), "reason", now.Refused)
	s.event(ctx, t.name(), "dropped", now.Refused)
	s.saveRecords(ctx, t)
	s.lookAround() // one that is still there is Refused then, and joins again when it has become fit
	return nil
}

// copyAgain sends a table back to the start: its lane is emptied and stays open, its rows are copied anew and take the place of the old
// ones when they are complete. That its stored rows are not good any more is durable before anything else happens.
func (s *session) copyAgain(ctx context.Context, t *table, why string) error {
	if err := s.invalidate(ctx, t); err != nil {
		return err
	}
	t.lane.Reset()
	s.Log.Info("table is copied anew", "table", t.name().String(), "reason", why)
	s.event(ctx, t.name(), "copy_again", why)
	if t.inPhase(Paused) { // when it is taken up
		t.log.forget(t)
		return nil
	}
	t.setPhase(Pending, "", "")
	s.joins.push(t)
	return nil
}

// invalidate makes it durable that a table's stored rows, or its unfinished copy, are not good to go on from: the log may
// pass it now.
func (s *session) invalidate(ctx context.Context, t *table) error {
	if t.apply == nil {
		return s.abandon(ctx, t)
	}
	at := t.apply.Checkpoint()
	at.Ready = false
	if err := s.commit(ctx, map[string]string{apply.Key(t.id): at.String()}); err != nil {
		return err
	}
	t.mu.Lock()
	t.apply, t.entry, t.meeting, t.overlap = nil, at.String(), false, nil
	t.mu.Unlock()
	return nil
}

// replan reads a table's definition anew and plans it. It returns false if the table is gone. If another name takes it away
// from its destination, it is not mirrored under the old one any more, which is errRenamed.
func (s *session) replan(ctx context.Context, t *table) (bool, error) {
	found, err := s.source.Tables(ctx)
	if err != nil {
		return false, err
	}
	for _, f := range found {
		if f.ID != t.id {
			continue
		}
		ps, err := planTables(ctx, []*schema.Table{f}, s.selector().Select, s.origin, s.sink, nil)
		if err != nil {
			return false, err
		}
		if why := t.movesTo(f, ps); why != "" {
			if err := s.renamedAway(ctx, t, f, why); err != nil {
				return false, err
			}
			return false, errRenamed
		}
		if len(ps) == 0 {
			return false, nil
		}
		if owner := s.ownerOf(ps[0]); owner != nil {
			ps[0].refuseFor(owner.name())
		}
		if ps[0].target == nil {
			return false, &connector.Error{
				Kind: connector.Setup, System: "mirror", Op: "copy a table", Table: f.Name, Err: errors.New(ps[0].refused),
			}
		}
		t.mu.Lock()
		t.planned = ps[0]
		t.mu.Unlock()
		t.quarantine.Take(ps[0].quarantines())
		return true, nil
	}
	return false, nil
}

// commit makes entries durable in the sink.
func (s *session) commit(ctx context.Context, entries map[string]string) error {
	tx, err := s.sink.Begin(ctx)
	if err != nil {
		return err
	}
	if err := s.commitWhole(ctx, tx, entries); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return nil
}

// commitWhole commits although ctx may end meanwhile: a commit that is cut off may have happened or not, and what is
// known of the sink's entries would be wrong.
func (s *session) commitWhole(ctx context.Context, tx connector.Tx, entries map[string]string) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Limits.DrainFor)
	defer cancel()
	err := tx.Commit(bounded, entries)
	if err != nil && bounded.Err() != nil {
		return &connector.Error{Kind: connector.Unavailable, System: "sink", Op: "commit", Err: err}
	}
	return err
}
