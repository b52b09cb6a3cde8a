package mirror

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/schema"
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

// join brings a table from Pending to CatchingUp, unless it is halted: then it is Pending again.
func (s *session) join(ctx context.Context, t *table) error {
	copying, stop := context.WithCancel(ctx)
	defer stop()
	if !t.beginCopy(stop) {
		return nil
	}
	err := s.copyUntilReady(copying, t)
	if err != nil && ctx.Err() == nil && !passes(err) && !concernsAll(err) && t.isHalted() {
		t.setPhase(Pending, "", "")
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
		switch connector.KindOf(err) {
		case connector.ViewLost:
			if lost++; lost == viewTries {
				return s.pause(ctx, t, fmt.Errorf("copied %d times, each time its view was lost: %w", lost, err))
			}
			s.observed.noteError(err)
			s.Log.Info("copy begins again", "table", t.name().String(), "reason", err)
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
// are copied; then they are put in place together with the checkpoint, and the lane is applied behind them.
func (s *session) copyTable(ctx context.Context, t *table) error {
	t.mu.Lock()
	t.overrun, t.landing = false, false
	t.mu.Unlock()
	t.setPhase(Copying, "", "")
	from, err := t.log.join(ctx, t)
	if err != nil {
		return err
	}
	s.saveRecords(ctx, t)
	s.Log.Info("copy begins", "table", t.name().String(), "rows", t.planned.table.Rows)
	s.event(ctx, t.name(), "copying", "")
	snap, err := s.snapshot(ctx, t)
	if err != nil {
		return err
	}
	defer snap.Close()
	until, err := s.source.Head(ctx, t.log.name)
	if err != nil {
		return err
	}
	at, err := s.beginCopy(ctx, t, from, snap.Token(), until)
	if err != nil {
		return err
	}
	if err := s.copyChunks(ctx, t, snap); err != nil {
		return err
	}
	if err := t.land(); err != nil {
		return err
	}
	at.Ready = true
	entries := t.endChunks()
	entries[apply.Key(t.id)], entries[versionKey(t.id)] = at.String(), t.planned.table.Describe()
	if err := s.putInPlace(ctx, t, entries); err != nil {
		return err
	}
	return s.startApplying(ctx, t, at)
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
func (s *session) beginCopy(ctx context.Context, t *table, from connector.Positions, token string, until connector.Positions) (apply.Checkpoint, error) {
	t.mu.Lock()
	target := *t.planned.target
	t.copy = max(t.copy, target.Copy) + 1
	target.Copy = t.copy
	t.planned.target = &target
	t.mu.Unlock()
	at := apply.Checkpoint{
		Table: t.planned.table.Name.String(), Settings: settingsOf(&target, t.planned.settings), Fingerprint: versionOf(t.planned.table),
		Copy: target.Copy, Token: token,
	}
	for part, p := range from {
		at.Part, at.Position, at.Until = part, p, until[part]
	}
	if err := s.sink.Create(ctx, &target); err != nil {
		return at, err
	}
	entries := t.endChunks()
	entries[apply.Key(t.id)] = at.String()
	return at, s.commit(ctx, entries)
}

// chunkKey is the key of the entry that says, from the transaction on that loaded it, that a chunk of the copy under way
// is complete.
func chunkKey(id schema.ID, chunk int) string { return fmt.Sprintf("%s%s/%d", chunkPrefix, id, chunk) }

const chunkPrefix = "chunk/"

// chunkTable returns the table of the entry of a chunk.
func chunkTable(key string) (schema.ID, bool) {
	text, ok := strings.CutPrefix(key, chunkPrefix)
	if !ok {
		return "", false
	}
	return schema.ID(text[:max(strings.LastIndexByte(text, '/'), 0)]), true
}

// endChunks returns what deletes the entries of the chunks of the last copy begun.
func (t *table) endChunks() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := map[string]string{}
	for _, key := range t.chunks {
		entries[key] = ""
	}
	t.chunks = nil
	return entries
}

// copyChunks loads all chunks, several at once as chunk readers are free.
func (s *session) copyChunks(ctx context.Context, t *table, snap connector.Snapshot) error {
	waiting, err := snap.Chunks(ctx, s.chunkRows(t.planned.table))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var unsure error // of a commit that may have happened
	next := func() (connector.Chunk, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(waiting) == 0 {
			return connector.Chunk{}, false
		}
		c := waiting[0]
		waiting = waiting[1:]
		return c, true
	}
	g, ctx := errgroup.WithContext(ctx)
	var work func() error
	work = func() error {
		for c, ok := next(); ok; c, ok = next() {
			mu.Lock()
			more := len(waiting) > 0
			mu.Unlock()
			if more && s.copies.TryAcquire(1) {
				g.Go(func() error {
					defer s.copies.Release(1)
					return work()
				})
			}
			if err := s.copyChunk(ctx, t, snap, c); err != nil {
				if connector.KindOf(err) == connector.Unavailable {
					mu.Lock()
					unsure = err
					mu.Unlock()
				}
				return err
			}
		}
		return nil
	}
	g.Go(work)
	if err := g.Wait(); unsure == nil {
		return err
	}
	return unsure // even if another chunk's error came first: the copy cannot begin again in this session
}

// copyChunk loads one chunk, all of it or nothing, with its record.
func (s *session) copyChunk(ctx context.Context, t *table, snap connector.Snapshot, c connector.Chunk) error {
	reader, err := snap.Read(ctx, c)
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
	n, bytes, err := load(ctx, tx, t.planned.target, reader)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	key := chunkKey(t.id, c.ID)
	if err := s.commitWhole(ctx, tx, map[string]string{key: fmt.Sprint(n)}); err != nil {
		return err
	}
	t.mu.Lock()
	t.chunks = append(t.chunks, key)
	t.total.rowsCopied += n
	t.total.bytesCopied += bytes
	t.total.copied += n
	t.mu.Unlock()
	return nil
}

// load returns how many rows it has loaded, and their bytes in memory.
func load(ctx context.Context, tx connector.Tx, target *connector.Target, reader connector.RowReader) (n, bytes int64, err error) {
	for {
		rows, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return n, bytes, nil
		}
		if err != nil {
			return n, bytes, err
		}
		n += int64(rows.Len())
		for _, column := range rows.Values.Columns() {
			bytes += int64(column.Data().SizeInBytes())
		}
		err = tx.Load(ctx, target, rows)
		rows.Release()
		if err != nil {
			return n, bytes, err
		}
	}
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
	applier, err := apply.NewTable(t.planned.target, at, nil, s.source, s.sink, s.Alloc)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.apply, t.goal, t.failures, t.rests, t.entry = applier, goal, 0, time.Time{}, at.String()
	t.mu.Unlock()
	t.setPhase(CatchingUp, "", "")
	rows := t.rowsOfCopy()
	s.Log.Info("copy is in place", "table", t.name().String(), "rows", rows)
	s.event(ctx, t.name(), "copied", fmt.Sprintf("%d rows", rows))
	s.saveRecords(ctx, t)
	s.wake(t)
	return nil
}
