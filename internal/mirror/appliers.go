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
	if t.queued || t.apply == nil || (t.phase != CatchingUp && t.phase != Streaming) || t.lane.Empty() || time.Now().Before(t.rests) {
		return
	}
	t.queued = true
	s.ready.push(t)
}

// applyAll applies tables' batches until the queue is finished and empty.
func (s *session) applyAll(ctx context.Context) error {
	for {
		t, err := s.ready.pop(ctx)
		if err != nil || t == nil {
			return ended(err)
		}
		if err := s.applyOne(ctx, t); err != nil {
			return err
		}
	}
}

// applyOne applies one batch of a table and puts the table back into the queue if there is more.
func (s *session) applyOne(ctx context.Context, t *table) error {
	batch, err := t.lane.Take(s.Limits.BatchRows, s.Limits.BatchBytes)
	switch {
	case err != nil:
		err = s.readLost(ctx, t, err)
	case len(batch) == 0:
	case batch[0].Change != nil:
		if err = s.schemaChanged(ctx, t, batch[0].Change, batch[0].Old); err == nil {
			t.lane.Done()
			break
		}
		t.lane.Back()
		err = s.tableFailed(ctx, t, err)
	default:
		err = s.applyBatch(ctx, t, batch)
	}
	return s.giveBack(t, err)
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

func (s *session) applyBatch(ctx context.Context, t *table, batch []lane.Item) error {
	frames := make([]*connector.Frames, len(batch))
	for i, it := range batch {
		frames[i] = it.Frames
	}
	n, err := t.apply.Apply(ctx, frames)
	if err == nil {
		at := t.apply.Checkpoint()
		t.mu.Lock()
		t.entry, t.meeting = at.String(), t.apply.Meeting()
		t.total.changes += n
		t.failures = 0
		t.mu.Unlock()
		t.lane.Done() // last: the lane's safe position says that the above is so
		return nil
	}
	t.lane.Back()
	if v, ok := errors.AsType[*apply.VersionError](err); ok {
		if err = s.versionMet(ctx, t, v); err == nil {
			return nil
		}
	}
	return s.tableFailed(ctx, t, err)
}

// concernsAll reports whether a set-up error is one of the whole source or sink (a password that was changed), so that no
// table is paused for it.
func concernsAll(err error) bool {
	e, ok := errors.AsType[*connector.Error](err)
	return ok && e.Kind == connector.Setup && e.Table.Table == ""
}

// tableFailed reacts to the fault of one table's batch: it returns the error if it is not the table's, else lets the table
// rest, without an applier, or pauses it.
func (s *session) tableFailed(ctx context.Context, t *table, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if concernsAll(err) {
		return err
	}
	switch connector.KindOf(err) {
	case connector.BadRow, connector.Setup, connector.Constraint:
		return s.pause(ctx, t, err)
	case connector.Gap:
		if s.ResyncOnGap {
			return s.copyAgain(ctx, t, err.Error())
		}
		return s.pause(ctx, t, err)
	case connector.TableFault, connector.Conflict:
	default:
		return err
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
	if err := s.invalidate(ctx, t); err != nil {
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
	t.setPhase(Pending, "", "")
	s.joins.push(t)
	return nil
}

// invalidate makes it durable that a table's stored rows are not good to go on from: the log may pass it now.
func (s *session) invalidate(ctx context.Context, t *table) error {
	if t.apply == nil {
		return nil // no copy of it is in place
	}
	at := t.apply.Checkpoint()
	at.Ready = false
	if err := s.commit(ctx, map[string]string{apply.Key(t.id): at.String()}); err != nil {
		return err
	}
	t.mu.Lock()
	t.apply, t.entry, t.meeting = nil, at.String(), false
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
		ps, err := planTables(ctx, []*schema.Table{f}, s.Select, s.sink, nil)
		if err != nil {
			return false, err
		}
		if why := t.movesTo(f, ps); why != "" {
			return false, errors.Join(errRenamed, s.renamedAway(ctx, t, f, why))
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
