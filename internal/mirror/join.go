package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
)

const (
	// snapshotWait is how long one call waits for the writers that hold a table; between two calls it is said for whom.
	snapshotWait = 10 * time.Second
	// viewTries is how often a copy begins again because its view was lost or the table changed meanwhile.
	viewTries = 20
	// readyTries is how often a complete copy is put in place when readers of the old one hold it.
	readyTries = 30
	retryPause = time.Second
)

// joinAll copies tables, each when a chunk reader is free for it: only then its lane opens and its snapshot is taken.
func (s *session) joinAll(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for {
		t, err := s.joins.pop(ctx)
		if err != nil {
			break
		}
		if s.copies.Acquire(ctx, 1) != nil {
			break
		}
		g.Go(func() error {
			defer s.copies.Release(1)
			return s.join(ctx, t)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// join brings a table from Pending to CatchingUp, unless it is halted: then it is Pending again, and waits for its copy at
// once if it was released meanwhile.
func (s *session) join(ctx context.Context, t *table) error {
	copying, stop := context.WithCancel(ctx)
	defer stop()
	if !t.beginCopy(stop) {
		return nil
	}
	err := s.copyUntilReady(copying, t)
	if stopped := copying.Err() != nil && ctx.Err() == nil; err != nil && stopped && !passes(err) && !concernsAll(err) {
		t.setPhase(Pending, "", "")
		if !t.isHalted() { // release found it still copying
			s.joins.push(t)
		}
		return nil
	}
	return errors.Join(ctx.Err(), err)
}

// copyUntilReady copies a table, and reacts to what stands in the way.
func (s *session) copyUntilReady(ctx context.Context, t *table) error {
	for lost := 0; ; {
		err := s.copyTable(ctx, t)
		if err == nil || ctx.Err() != nil || concernsAll(err) {
			return err
		}
		if t.progressed() {
			lost = 0
		}
		if errors.Is(err, errAged) && connector.KindOf(err) != connector.Setup {
			continue // under another snapshot; from the start if it was given up a moment ago
		}
		switch connector.KindOf(err) {
		case connector.ViewLost:
			if lost++; lost == viewTries {
				return s.pause(ctx, t, fmt.Errorf("copied %d times, each time its view was lost: %w", lost, err))
			}
			s.observed.noteError(err)
			s.Log.Info("copy lost its view", "table", t.name().String(), "reason", err)
		case connector.TableFault, connector.Conflict:
			if pause, _ := s.failed(t, err); pause {
				return s.pause(ctx, t, err)
			}
			s.Log.Warn("copy failed, trying again", "table", t.name().String(), "error", err)
		case connector.BadRow, connector.Constraint, connector.Setup:
			return s.pause(ctx, t, err)
		default:
			return err
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		there, err := s.replan(ctx, t)
		switch {
		case errors.Is(err, errRenamed):
			return nil
		case connector.KindOf(err) == connector.Setup:
			return s.pause(ctx, t, err)
		case err != nil:
			return err
		case !there:
			gone := *t.planned.table
			gone.Refused = "it was dropped at the source, or renamed to a name that is not selected"
			return s.tableGone(ctx, t, &gone)
		}
	}
}

// copyTable is the join: the lane opens; then the snapshot is taken, which waits for all who wrote before; then the rows
// are copied; then they are put in place together with the checkpoint, and the lane is applied behind them. A copy that
// was cut off goes on with the chunks that it lacks, if it may.
func (s *session) copyTable(ctx context.Context, t *table) error {
	from, err := s.openCopy(ctx, t)
	if err != nil {
		return err
	}
	at, err := s.copyRows(ctx, t, from)
	if err != nil {
		return err
	}
	if err := t.land(); err != nil {
		return err
	}
	at.Ready = true
	entries := t.deletions()
	entries[apply.Key(t.id)], entries[versionKey(t.id)] = at.String(), t.planned.table.Describe()
	maps.Copy(entries, t.quarantine.Others(at.Copy))
	if err := s.putInPlace(ctx, t, entries); err != nil {
		return err
	}
	t.deleted(entries)
	if err := t.quarantine.Committed(entries); err != nil {
		return err
	}
	return s.startApplying(ctx, t, at)
}

// openCopy opens the lane, which stays open if the copy is gone on with. It returns the position from which on changes
// are delivered.
func (s *session) openCopy(ctx context.Context, t *table) (connector.Positions, error) {
	if err := t.opening.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer t.opening.Release(1)
	t.mu.Lock()
	t.overrun, t.landing = false, false
	t.mu.Unlock()
	t.setPhase(Copying, "", "")
	from, err := t.log.join(ctx, t)
	if err != nil {
		if kind := connector.KindOf(err); kind == connector.Unavailable || ctx.Err() != nil {
			return nil, err // the next session looks at what there is
		}
		return nil, errors.Join(err, s.abandon(ctx, t)) // it may not be delivered any more
	}
	s.saveRecords(ctx, t)
	return from, nil
}

// copyRows loads what is missing of the copy under one snapshot, which is let go at once when that is done or the snapshot
// is too old. It returns the checkpoint that the copy stands for.
func (s *session) copyRows(ctx context.Context, t *table, from connector.Positions) (at apply.Checkpoint, err error) {
	snap, err := s.snapshot(ctx, t)
	if err != nil {
		return at, err
	}
	defer snap.Close()
	taken := time.Now()
	until, err := s.source.Head(ctx, t.log.name)
	if err != nil {
		return at, err
	}
	c, err := s.carryOn(ctx, t, snap, until)
	if err == nil && c == nil {
		c, err = s.beginCopy(ctx, t, from, snap, until)
	}
	if err != nil {
		return at, err
	}
	err = s.copyChunks(ctx, t, snap, c, taken)
	if errors.Is(err, errAged) && !t.goesOn() {
		err = s.aged(t, c)
	}
	return c.at, err
}

// snapshot opens the view, and says meanwhile for whom it waits.
func (s *session) snapshot(ctx context.Context, t *table) (connector.Snapshot, error) {
	for {
		bounded, cancel := context.WithTimeout(ctx, snapshotWait)
		snap, err := s.source.Snapshot(bounded, t.planned.target.Table)
		cancel()
		waits := connector.KindOf(err) == connector.Conflict || errors.Is(err, context.DeadlineExceeded)
		if err == nil || ctx.Err() != nil || !waits {
			t.waitFor("")
			return snap, err
		}
		t.waitFor(err.Error())
		s.saveRecords(ctx, t)
		s.Log.Info("copy waits for writers", "table", t.name().String(), "reason", err)
	}
}

// beginCopy makes the table that the copy is loaded into, and the entry that names the snapshot, before a row is read.
// What there is of an earlier copy goes.
func (s *session) beginCopy(
	ctx context.Context, t *table, from connector.Positions, snap connector.Snapshot, until connector.Positions,
) (*unfinished, error) {
	t.mu.Lock()
	target := *t.planned.target
	t.copy = max(t.copy, target.Copy) + 1
	target.Copy = t.copy
	t.planned.target = &target
	t.total.rowsCopied, t.total.copied = 0, 0
	t.mu.Unlock()
	at := apply.Checkpoint{
		Table: t.planned.table.Name.String(), Settings: settingsOf(&target, t.planned.settings), Fingerprint: versionOf(t.planned.table),
		Copy: target.Copy, Token: snap.Token(),
	}
	for part, p := range from {
		at.Part, at.Position, at.Until = part, p, until[part]
	}
	entries := t.deletions()
	entries[apply.Key(t.id)] = at.String()
	if err := s.commit(ctx, entries); err != nil { // before the rows of the earlier copy go
		return nil, err
	}
	t.deleted(entries)
	if err := s.sink.Create(ctx, &target); err != nil {
		return nil, err
	}
	s.Log.Info("copy begins", "table", t.name().String(), "rows", t.planned.table.Rows)
	s.event(ctx, t.name(), "copying", "")
	return s.planCopy(ctx, t, snap, at)
}

// copyChunks loads the chunks that are missing, several at once as chunk readers are free. It returns errAged if some are
// left when the snapshot, taken at that time, is too old to begin another one.
func (s *session) copyChunks(ctx context.Context, t *table, snap connector.Snapshot, c *unfinished, taken time.Time) error {
	var mu sync.Mutex
	var unsure error // of a commit that may have happened
	begun := false
	next := func() (chunk connector.Chunk, ok, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if begun && s.Limits.ViewAge > 0 && time.Since(taken) >= s.Limits.ViewAge {
			return chunk, false, false
		}
		begun = true // one at least, or a copy would never end
		return t.take(c)
	}
	g, ctx := errgroup.WithContext(ctx)
	var work func() error
	work = func() error {
		for {
			if err := t.mayGoOn(); err != nil {
				return err
			}
			chunk, ok, more := next()
			if !ok {
				return nil
			}
			if more && s.copies.TryAcquire(1) {
				g.Go(func() error {
					defer s.copies.Release(1)
					return work()
				})
			}
			err := s.copyChunk(ctx, t, snap, c, chunk)
			if err == nil {
				continue
			}
			t.putBack(c, chunk)
			if connector.KindOf(err) == connector.Unavailable {
				mu.Lock()
				unsure = err
				mu.Unlock()
			}
			return err
		}
	}
	g.Go(work)
	err := g.Wait()
	switch {
	case unsure != nil:
		return unsure // even if another chunk's error came first: the copy cannot begin again in this session
	case err != nil:
		return err
	case t.lacks(c) > 0:
		s.Log.Info("snapshot is let go for its age", "table", t.name().String(), "missing", t.lacks(c), "chunks", c.chunks)
		return errAged
	}
	return nil
}

// copyChunk loads one chunk, with its record. Rows that the sink refuses are left out of it, and go into quarantine with it:
// for each of them the chunk is loaded once more.
func (s *session) copyChunk(ctx context.Context, t *table, snap connector.Snapshot, c *unfinished, chunk connector.Chunk) error {
	out := apply.NewLeftOut(t.quarantine, t.planned.target.Copy)
	for {
		refused := out.Len()
		err := s.loadChunk(ctx, t, snap, c, chunk, out)
		if err == nil || out.Len() == refused {
			return err
		}
	}
}

// loadChunk loads one chunk, all of it or nothing, but for the rows left out. If there is another row that the sink refuses
// it adds that to them and returns the error.
func (s *session) loadChunk(
	ctx context.Context, t *table, snap connector.Snapshot, c *unfinished, chunk connector.Chunk, out *apply.LeftOut,
) error {
	reader, err := snap.Read(ctx, chunk)
	if err != nil {
		return err
	}
	defer func() { reader.Close() }()
	if s.oneWriter() {
		ahead, err := readAhead(ctx, reader)
		if err != nil {
			return err
		}
		reader = ahead
		if err := s.loading.Acquire(ctx, 1); err != nil {
			return err
		}
		defer s.loading.Release(1)
	}
	tx, err := s.sink.Begin(ctx)
	if err != nil {
		return err
	}
	n, bytes, err := s.load(ctx, tx, &t.planned, reader, out)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	key := chunkKey(t.id, chunk.ID)
	entries := out.Entries()
	entries[key] = fmt.Sprint(n)
	if err := s.commitWhole(ctx, tx, entries); err != nil {
		return err
	}
	if err := t.quarantine.Committed(entries); err != nil {
		return err
	}
	t.loaded(c, key, n, bytes)
	s.noteQuarantine(ctx, t)
	return nil
}

// load returns how many rows it has loaded, and the bytes in memory of all that it has read.
func (s *session) load(ctx context.Context, tx connector.Tx, p *planned, reader connector.RowReader, out *apply.LeftOut) (n, bytes int64, err error) {
	for {
		rows, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return n, bytes, nil
		}
		if err != nil {
			return n, bytes, err
		}
		for _, column := range rows.Values.Columns() {
			bytes += int64(column.Data().SizeInBytes())
		}
		loaded, err := s.loadRows(ctx, tx, p, rows, out)
		rows.Release()
		if err != nil {
			return n, bytes, err
		}
		n += loaded
	}
}

func (s *session) loadRows(ctx context.Context, tx connector.Tx, p *planned, rows *connector.Rows, out *apply.LeftOut) (int64, error) {
	if p.keep != nil {
		kept, err := apply.Keep(ctx, s.Alloc, p.keep, rows)
		if err != nil || kept == nil {
			return 0, err
		}
		defer kept.Release()
		rows = kept
	}
	left, err := out.Without(ctx, s.Alloc, rows)
	if err != nil {
		return 0, err
	}
	defer left.Release()
	if left.Len() == 0 {
		return 0, nil
	}
	if err := tx.Load(ctx, p.target, left); err != nil {
		return 0, out.Add(left, err)
	}
	return int64(left.Len()), nil
}

// putInPlace ends the copy. Readers of the old rows may hold their table for a while: that is waited for, the copy is
// not made again.
func (s *session) putInPlace(ctx context.Context, t *table, entries map[string]string) error {
	for try := 1; ; try++ {
		err := s.sink.Ready(ctx, t.planned.target, entries)
		if connector.KindOf(err) != connector.Conflict || try == readyTries {
			return err
		}
		s.Log.Info("copy waits to be put in place", "table", t.name().String(), "reason", err)
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// startApplying lets the appliers have the lane. The table is streaming when it has passed the log's end as it is now.
func (s *session) startApplying(ctx context.Context, t *table, at apply.Checkpoint) error {
	goal, err := s.source.Head(ctx, t.log.name)
	if err != nil {
		return err
	}
	applier, err := apply.NewTable(t.planned.target, t.planned.keep, at, nil, s.source, s.sink, s.Alloc)
	if err != nil {
		return err
	}
	applier.UseQuarantine(t.quarantine)
	t.mu.Lock()
	t.overruns = 0
	t.apply, t.goal, t.failures, t.rests, t.entry, t.overlap = applier, goal, 0, time.Time{}, at.String(), at.Converged()
	t.mu.Unlock()
	t.setPhase(CatchingUp, "", "")
	rows := t.rowsOfCopy()
	s.Log.Info("copy is in place", "table", t.name().String(), "rows", rows)
	s.event(ctx, t.name(), "copied", fmt.Sprintf("%d rows", rows))
	s.saveRecords(ctx, t)
	s.wake(t)
	return nil
}
