package mirror

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
)

// fullPause is how long the reader waits for room in the spool before it looks again, if nothing is freed before.
const fullPause = 200 * time.Millisecond

// openSpool opens the folder where lanes go beyond memory, with what the state knows of it.
func (s *session) openSpool(ctx context.Context, id string) error {
	if s.Spool == "" {
		return nil
	}
	var err error
	if s.listed, err = s.Store.Segments(ctx); err != nil {
		return err
	}
	listed := make([]lane.Segment, len(s.listed))
	for i, seg := range s.listed {
		listed[i] = lane.Segment(seg)
	}
	limits := lane.Limits{Lane: s.Limits.LaneMemory, Max: s.Limits.SpoolBytes, Table: s.Limits.SpoolTable, Free: s.Limits.SpoolFree, SyncEvery: s.Limits.SpoolSync}
	s.spool, err = lane.OpenSpool(s.Spool, id, listed, s.budget, limits, s.source.Compare)
	return spoolError(err)
}

// spoolError makes what is wrong with the spool as a whole a matter for a person.
func spoolError(err error) error {
	if _, classified := errors.AsType[*connector.Error](err); err == nil || classified || ended(err) == nil {
		return err
	}
	return &connector.Error{
		Kind: connector.Setup, System: "spool", Op: "keep changes on disk", Err: err, Hint: "look at the disk and at who may write to the folder",
	}
}

// openLane opens the lane of a table that stands at a checkpoint, with what the spool holds of it. lost says why that is
// not all that the log's floor relies on; the lane is empty then.
func (s *session) openLane(t *table, at *apply.Checkpoint) (lost string, err error) {
	if s.spool == nil {
		t.lane = lane.New(s.budget)
		return "", nil
	}
	t.lane, err = s.spool.Open(t.id, t.log.delivers)
	_, damaged := errors.AsType[*lane.DamagedError](err)
	switch {
	case damaged, connector.KindOf(err) == connector.Gap && err != nil:
		return err.Error(), s.emptyLane(t)
	case err != nil:
		return "", spoolError(err)
	}
	whole, err := s.holdsAll(t.log.spooled[t.id], at, t.lane.Ends())
	if err != nil || whole {
		return "", err
	}
	t.lane.Discard()
	return "the spool does not hold all changes that the source was allowed to forget", s.emptyLane(t)
}

// emptyLane opens the lane of a table without what the spool may hold of it.
func (s *session) emptyLane(t *table) (err error) {
	if s.spool == nil {
		t.lane = lane.New(s.budget)
		return nil
	}
	s.spool.Forget(t.id)
	t.lane, err = s.spool.Open(t.id, nil)
	return spoolError(err)
}

// holdsAll reports whether each of the runs needed is in the sink, or not beyond one of the ends of the spool.
func (s *session) holdsAll(needed []lane.Run, at *apply.Checkpoint, ends []lane.Run) (bool, error) {
	has := append(slices.Clone(ends), lane.Run{Part: at.Part, Position: at.Position, Count: at.Count})
	for _, n := range needed {
		found, err := s.anyReaches(has, n)
		if err == nil && !found && at.Token != "" {
			last := connector.Commit{Rows: 1, First: n.Count - 1, Part: n.Part, Position: n.Position, Tag: n.Tag, Time: n.Time}
			found, err = s.source.Contains(at.Token, last)
		}
		if err != nil || !found {
			return false, err
		}
	}
	return true, nil
}

// anyReaches reports whether one of the runs ends where n does, or behind it.
func (s *session) anyReaches(runs []lane.Run, n lane.Run) (bool, error) {
	for _, r := range runs {
		if r.Part != n.Part {
			continue
		}
		order, err := s.source.Compare(r.Position, n.Position)
		if err != nil || order > 0 || order == 0 && r.Count >= n.Count {
			return err == nil, err
		}
	}
	return false, nil
}

// forgetUnopened forgets what the spool holds of tables that are not mirrored now. Their entries say so already.
func (s *session) forgetUnopened() {
	if s.spool == nil {
		return
	}
	for _, id := range s.spool.Unopened() {
		s.spool.Forget(id)
	}
}

// saveSegments makes the list of the spool's segments durable, before anything relies on what they hold, and removes
// those that are not needed any more.
func (s *session) saveSegments(ctx context.Context) error {
	if s.spool == nil {
		return nil
	}
	list := s.spool.List()
	now := make([]state.Segment, len(list.Segments))
	for i, seg := range list.Segments {
		now[i] = state.Segment(seg)
	}
	if s.unsure || !slices.Equal(now, s.listed) {
		s.unsure = true // an error may come after the list is saved: it names files that must stay until the next one is
		if err := s.Store.SaveSegments(ctx, now); err != nil {
			return err
		}
		s.listed, s.unsure = now, false
	}
	return s.spool.Saved(list)
}

// relies reports whether changes in the spool count as durable: so much log is retained at the source, or for so long,
// that it is better kept by us.
func (s *session) relies(ctx context.Context, l *logReader) bool {
	if s.spool == nil {
		return false
	}
	if s.Limits.DurableBytes == 0 || s.Limits.DurableAge == 0 {
		return true
	}
	now, waits := l.last.Load().Time, false
	for _, t := range l.added() {
		waits = waits || !t.lane.Empty()
		if oldest := t.lane.Oldest(); !oldest.IsZero() && now.Sub(oldest) > s.Limits.DurableAge {
			return true
		}
	}
	retainer, ok := s.source.(connector.Retainer)
	if !ok || !waits {
		return false
	}
	kept, err := retainer.Retained(ctx, l.name)
	if err != nil {
		s.Log.Debug("retained log not known", "error", err)
	}
	return kept.Bytes > s.Limits.DurableBytes
}

// putIn appends to a table's lane. Where there is no room it waits, unless the table that takes the room can be given up
// for the sake of the others.
func (s *session) putIn(ctx context.Context, t *table, it lane.Item) error {
	if s.spool == nil {
		return t.lane.Append(it)
	}
	if err := s.awaitRoom(ctx, t, it); err != nil {
		return err
	}
	for said := false; ; {
		freed := s.spool.Freed()
		err := t.lane.Append(it)
		full, isFull := errors.AsType[*lane.FullError](err)
		switch {
		case errors.Is(err, lane.ErrDiverged):
			return &connector.Error{Kind: connector.Gap, System: "spool", Op: "go on behind what it holds", Table: t.name(), Err: &connector.OtherHistoryError{Err: err}}
		case !isFull:
			if d := s.doomed.Load(); d != nil && d.forRoom {
				s.doomed.CompareAndSwap(d, nil)
			}
			return spoolError(err)
		}
		if given, err := s.giveUpOne(ctx, t, full); err != nil {
			return err
		} else if given {
			continue
		}
		if !said {
			said = true
			s.Log.Warn("reading waits for room in the spool", "table", t.name().String(), "reason", full.Limit)
		}
		since := time.Now()
		select {
		case <-freed:
		case <-time.After(fullPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		s.wasHeldBack(time.Since(since))
	}
}

const (
	// slowPatience is how long in all reading waits for room that tables make which are being applied, before one of them
	// is given up.
	slowPatience = 5 * time.Second
	// slowForgets is after how long without such a wait that time begins anew.
	slowForgets = 30 * time.Second
)

// doom is a table that is to be given up by the applier that has it next.
type doom struct {
	table   *table
	why     error
	forRoom bool // in the spool: once there is some, the table is spared
}

func (s *session) wasHeldBack(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.heldBackAt) > slowForgets {
		s.heldBack = 0
	}
	s.heldBack += d
	s.heldBackAt = time.Now()
}

func (s *session) isHeldBackLong() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heldBack >= slowPatience
}

// roomPatience is how long reading waits for a table that is being applied, before its changes go to disk: a few batches'
// time, and less than another table's change may come late.
const roomPatience = 200 * time.Millisecond

// awaitRoom lets an applier that is nearly as fast as the reader keep its lane in memory.
func (s *session) awaitRoom(ctx context.Context, t *table, it lane.Item) error {
	patience := time.NewTimer(roomPatience)
	defer patience.Stop()
	for t.moves() {
		drained := t.lane.Overflows(it)
		if drained == nil {
			return nil
		}
		select {
		case <-drained:
		case <-patience.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// giveUpOne detaches the table that takes most of the spool, if a healthy one would be held back by it. A table that is
// not being applied goes first. One that is must have made reading wait for long: it is given up by the applier that has it
// next, and given is false until then.
func (s *session) giveUpOne(ctx context.Context, t *table, full *lane.FullError) (given bool, err error) {
	var stuck, slow *table
	var stuckBytes, slowBytes int64
	tables := s.allTables()
	for _, other := range tables {
		if other != t && full.OneTable {
			continue
		}
		bytes := other.lane.SpoolBytes()
		switch {
		case other.inPhase(Paused, Pending, Copying) && bytes > stuckBytes:
			stuck, stuckBytes = other, bytes
		case other.inPhase(CatchingUp, Streaming) && bytes > slowBytes:
			slow, slowBytes = other, bytes
		}
	}
	switch {
	case stuck != nil && stuckBytes >= slowBytes/4 && s.holdsBack(stuck, tables, stuckBytes):
		return s.detach(ctx, stuck, tooMuchWaits(stuckBytes, full))
	case slow != nil && slowBytes/4 > stuckBytes && s.isHeldBackLong() && s.holdsBack(slow, tables, slowBytes/4):
		s.doomed.Store(&doom{table: slow, why: tooMuchWaits(slowBytes, full), forRoom: true})
	}
	return false, nil
}

// holdsBack reports whether there is a table beside t that is being applied and takes at most so much of the spool: its
// changes would come late because of t.
func (s *session) holdsBack(t *table, tables []*table, most int64) bool {
	return slices.ContainsFunc(tables, func(other *table) bool {
		return other != t && other.moves() && other.lane.SpoolBytes() <= most
	})
}

func tooMuchWaits(bytes int64, full *lane.FullError) error {
	return fmt.Errorf("%d bytes of changes waited for it and the spool is full: %s", bytes, full.Limit)
}

// doomedFor returns why a table that an applier has is to be given up, nil if it is not.
func (s *session) doomedFor(t *table) error {
	d := s.doomed.Load()
	if d == nil || d.table != t || !s.doomed.CompareAndSwap(d, nil) {
		return nil
	}
	return d.why
}

// moves reports whether changes of a table are being applied.
func (t *table) moves() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return (t.phase == CatchingUp || t.phase == Streaming) && t.failures == 0
}

// detach gives up the changes that wait for a table that is not being applied: it needs a new copy.
func (s *session) detach(ctx context.Context, t *table, why error) (bool, error) {
	if !t.inPhase(Paused) {
		return s.giveUpCopy(ctx, t, why)
	}
	if !t.seize() {
		return false, nil
	}
	err := s.giveUp(ctx, t, why)
	return err == nil, s.giveBack(t, err)
}

// giveUp forgets the changes that wait for a table whose rows are in place. That they are not good to go on from is
// durable before.
func (s *session) giveUp(ctx context.Context, t *table, why error) error {
	if err := s.retireEntry(ctx, t); err != nil {
		return err
	}
	t.log.forget(t)
	t.pause(&connector.Error{
		Kind: connector.TableFault, System: "spool", Op: "keep changes on disk", Table: t.name(), Err: why,
		Hint: "it is copied anew; raise spool.max to keep more",
	}, s.Limits.RetryPaused)
	s.Log.Error("table is detached and needs a new copy", "table", t.name().String(), "reason", why)
	s.event(ctx, t.name(), "detached", why.Error())
	s.saveRecords(ctx, t)
	return nil
}

// giveUpCopy gives up the changes of a table that is being copied, or waits for that. A copy under way fails when it looks,
// and is made anew or pauses the table.
func (s *session) giveUpCopy(ctx context.Context, t *table, why error) (bool, error) {
	if !t.opening.TryAcquire(1) {
		return false, nil
	}
	defer t.opening.Release(1)
	given, err := s.forgetChanges(ctx, t)
	if given {
		s.Log.Warn("table is given up for the others", "table", t.name().String(), "reason", why)
	}
	return given, err
}

// forgetChanges empties the lane of a table that is being copied, or waits for that: what is there of a copy cannot be gone
// on with. It returns false for any other table. The caller holds t.opening.
func (s *session) forgetChanges(ctx context.Context, t *table) (forgotten bool, err error) {
	running := t.outrun()
	if !running && !t.inPhase(Pending) {
		return false, nil
	}
	if err := s.abandon(ctx, t); err != nil {
		return false, err
	}
	if running {
		t.log.forget(t)
	} else {
		t.lane.Reset() // it needs nothing from before its copy
	}
	return true, nil
}

// retireEntry makes it durable that a table cannot go on from its entry.
func (s *session) retireEntry(ctx context.Context, t *table) error {
	t.mu.Lock()
	stands := t.stands
	t.mu.Unlock()
	if stands == nil {
		return s.invalidate(ctx, t)
	}
	at := *stands
	at.Ready = false
	if err := s.commit(ctx, map[string]string{apply.Key(t.id): at.String()}); err != nil {
		return err
	}
	t.mu.Lock()
	t.stands = nil
	t.mu.Unlock()
	return nil
}

// outrun marks a table being copied whose changes could not be kept. It returns false for one that is not being copied.
func (t *table) outrun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != Copying || t.landing {
		return false
	}
	if !t.overrun {
		t.overrun = true
		if t.overruns >= outrunLimit { // it was paused for that, and somebody has resumed it
			t.overruns = 0
		}
		t.overruns++
		t.outran = t.pressure(t.lane.SpoolBytes(), time.Since(t.since))
	}
	return true
}

func (t *table) isOutrun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.overrun
}

// pressure says how fast changes came during a copy, and what room a whole copy would take at that rate. The caller holds
// t.mu.
func (t *table) pressure(bytes int64, after time.Duration) string {
	text := fmt.Sprintf("%d bytes of changes came in %v of its copy", bytes, after.Round(time.Second))
	if seconds := int64(after / time.Second); seconds > 0 {
		text += fmt.Sprintf(", %d a second", bytes/seconds)
	}
	if rows, copied := t.planned.table.Rows, t.total.copied; copied > 0 && rows > copied {
		text += fmt.Sprintf("; %d of about %d rows were copied by then, so that the spool needs room for about %.0f bytes",
			copied, rows, float64(bytes)*float64(rows)/float64(copied))
	}
	return text
}

// outrunLimit is after how many copies in a row whose changes could not be kept a table waits for a person.
const outrunLimit = 2

// errOutrun says that one more copy of a table would come to the same end.
var errOutrun = errors.New("its changes outgrow the spool while it is copied")

// seize takes a paused table from everybody else. giveBack ends that.
func (t *table) seize() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != Paused || t.queued || t.halted {
		return false
	}
	t.queued, t.retryAt = true, time.Time{}
	return true
}

// land ends a copy, after which outrun does nothing, with an error if changes of the table could not be kept meanwhile.
func (t *table) land() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.halted {
		return errHalted
	}
	t.landing = !t.overrun
	return t.outrunError()
}

// mayGoOn is an error if a copy under way comes to nothing, since changes of the table could not be kept.
func (t *table) mayGoOn() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outrunError()
}

// outrunError says what outrun has noted; nil: nothing. The caller holds t.mu.
func (t *table) outrunError() error {
	if !t.overrun {
		return nil
	}
	e := &connector.Error{
		Kind: connector.TableFault, System: "spool", Op: "keep the changes that came during the copy", Table: t.planned.table.Name,
		Err: fmt.Errorf("the spool is full: %s", t.outran), Hint: "raise spool.max, or copy the table when it changes less",
	}
	if t.overruns >= outrunLimit {
		e.Kind, e.Err = connector.Setup, fmt.Errorf("%w, %d times now: %s", errOutrun, t.overruns, t.outran)
	}
	return e
}

// readLost reacts to a lane that cannot be read back: its table is copied anew.
func (s *session) readLost(ctx context.Context, t *table, err error) error {
	if _, damaged := errors.AsType[*lane.DamagedError](err); !damaged {
		return spoolError(err)
	}
	return s.copyAgain(ctx, t, err.Error())
}
