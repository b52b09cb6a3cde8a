package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// logReader reads one change log and puts what it holds into the tables' lanes.
type logReader struct {
	s      *session
	name   string
	stream connector.Stream
	start  connector.Positions // where reading began: the floor, of this or an earlier session
	// delivers is from where on the source sends everything: the start, or before it.
	delivers connector.Positions
	fresh    bool // the log begins with this session
	// sinkBehind: the floor in the sink is before the one in the state.
	sinkBehind bool
	spooled    map[schema.ID][]lane.Run           // what the spool held, as the floor in the sink says, of tables behind that floor
	last       atomic.Pointer[connector.Progress] // the newest
	received   atomic.Int64                       // when that came, by this machine's clock; 0: nothing has come yet
	saved      connector.Positions                // the floor that was acknowledged last, at first the start; keepFloor's own
	unsaved    bool                               // the sink or the state holds another floor; keepFloor's own
	relied     bool                               // what the spool holds counts for the floor; keepFloor's own
	head       connector.Positions                // the log's end, when first asked for in this session

	mu     sync.Mutex
	tables map[schema.ID]*table // those that were added
	found  map[schema.ID]foundVersion
}

// openLog returns the reader of a log, opened at the floor. A log without a floor begins now, and its floor is durable
// before anything is read.
func (s *session) openLog(ctx context.Context, name string, entries map[string]string, stateFloors floors) (*logReader, error) {
	if l := s.logs[name]; l != nil {
		return l, nil
	}
	inSink, err := parseFloor(entries[floorKey(name)])
	if err != nil {
		return nil, err
	}
	l := &logReader{s: s, name: name, spooled: inSink.Behind, tables: map[schema.ID]*table{}}
	if !s.fresh {
		if err := l.findStart(inSink.At, stateFloors[name]); err != nil {
			return nil, err
		}
	}
	l.fresh = l.start == nil
	if l.stream, err = s.source.Stream(ctx, name, l.start); err != nil {
		return nil, err
	}
	s.logs[name] = l
	if l.fresh {
		// No table has joined yet: each will, by a snapshot taken later, so none needs what lies before this point.
		if l.start, err = s.source.Head(ctx, name); err != nil {
			return nil, err
		}
	}
	l.delivers = l.start
	if rewound, ok := l.stream.(connector.Rewound); ok && !l.fresh {
		l.delivers = rewound.Delivers()
		if err := l.leaveHistory(ctx); err != nil {
			return nil, err
		}
	}
	l.saved = l.start
	l.last.Store(&connector.Progress{UpTo: l.start, Time: time.Now()})
	if l.fresh {
		if err := s.writeFloor(ctx, l, l.start, nil); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// leaveHistory gives up a floor that the source's history has left, for where both still agree.
func (l *logReader) leaveHistory(ctx context.Context) error {
	_, err := l.s.reached(l.start, l.delivers)
	if connector.KindOf(err) != connector.Gap || err == nil {
		return err
	}
	l.s.Log.Warn("the source has another history since, and the log is read again from where both agree", "error", err)
	l.s.event(ctx, schema.Name{}, "gap", "read again from where both histories agree: "+err.Error())
	l.start, l.unsaved = l.delivers, true
	return nil
}

// elsewhere tells why a checkpoint is not one of the log's history; "": it is.
func (l *logReader) elsewhere(at *apply.Checkpoint) (string, error) {
	begin, ok := l.delivers[at.Part]
	for _, p := range []connector.Position{at.Position, at.Until, at.Overlap} {
		if !ok || p == "" {
			continue
		}
		_, err := l.s.source.Compare(begin, p)
		if connector.KindOf(err) == connector.Gap && err != nil {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// findStart is where to begin reading: the floor of the sink, unless the state knows of a later one, up to which the log
// may be gone.
func (l *logReader) findStart(inSink, inState connector.Positions) error {
	l.start = inSink
	if inState != nil {
		covered, err := l.s.reached(inSink, inState)
		if err != nil {
			return err
		}
		if l.sinkBehind = !covered; l.sinkBehind {
			l.start = inState
		}
	}
	l.unsaved = !maps.Equal(inSink, l.start) || !maps.Equal(inState, l.start)
	return nil
}

// headAtStart returns the log's end as it was when a table of this session first asked for it.
func (l *logReader) headAtStart(ctx context.Context) (connector.Positions, error) {
	if l.head == nil {
		var err error
		if l.head, err = l.s.source.Head(ctx, l.name); err != nil {
			return nil, err
		}
	}
	return l.head, nil
}

// hold keeps the log for a table that does not go on now, from where reading began.
func (l *logReader) hold(t *table) {
	t.lane.Hold(l.start)
	l.mu.Lock()
	l.tables[t.id] = t
	l.mu.Unlock()
}

// join opens a table's lane and returns the position from which on its changes are delivered.
func (l *logReader) join(ctx context.Context, t *table) (connector.Positions, error) {
	t.lane.Open()
	l.mu.Lock()
	l.tables[t.id] = t
	l.mu.Unlock()
	from, err := l.stream.Add(ctx, t.planned.target.Table)
	t.mu.Lock()
	t.joined = err == nil
	t.mu.Unlock()
	return from, err
}

// forget closes the lane of a table that needs nothing of the log: it is gone, or its copy begins anew in any case.
func (l *logReader) forget(t *table) {
	l.mu.Lock()
	delete(l.tables, t.id)
	delete(l.found, t.id)
	l.mu.Unlock()
	t.mu.Lock()
	t.joined = false
	t.mu.Unlock()
	t.lane.Discard()
}

// drop takes a table out of the stream.
func (l *logReader) drop(ctx context.Context, t *table) error {
	l.forget(t)
	return l.stream.Drop(ctx, t.id)
}

func (l *logReader) table(id schema.ID) *table {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tables[id]
}

// added returns the tables whose lanes are open.
func (l *logReader) added() []*table {
	l.mu.Lock()
	defer l.mu.Unlock()
	ts := make([]*table, 0, len(l.tables))
	for _, t := range l.tables {
		ts = append(ts, t)
	}
	return ts
}

// run reads until ctx ends or the log fails. It waits while the lanes are full, in memory and on disk: then the log at the
// source is the buffer.
func (l *logReader) run(ctx context.Context) error {
	for {
		if l.s.spool == nil {
			if err := l.s.budget.Wait(ctx); err != nil {
				return err
			}
		}
		event, err := l.stream.Next(ctx)
		if err != nil {
			return err
		}
		switch e := event.(type) {
		case *connector.Frames:
			err = l.append(ctx, e.Table.ID, lane.Item{Frames: e})
		case *connector.SchemaChange:
			err = l.append(ctx, e.Table.ID, lane.Item{Change: e})
		case *connector.Unselected:
			l.s.noticed(e)
		case *connector.Progress:
			if err = l.progress(e); err == nil {
				err = l.release(ctx)
			}
		default:
			err = fmt.Errorf("stream delivered an event of type %T", event)
		}
		if err != nil {
			return err
		}
	}
}

// appendChange puts a version that was not read from the log into a table's lane.
func (l *logReader) appendChange(ctx context.Context, id schema.ID, v *schema.Table) error {
	return l.append(ctx, id, lane.Item{Change: &connector.SchemaChange{Table: v}})
}

func (l *logReader) append(ctx context.Context, id schema.ID, it lane.Item) error {
	t := l.table(id)
	if t == nil {
		return nil // dropped a moment ago
	}
	it.Before = l.last.Load().UpTo
	if err := l.s.putIn(ctx, t, it); err != nil {
		return err
	}
	l.s.wake(t)
	return nil
}

// progress moves the reader's position. A log that is read again from before the floor brings older ones first.
func (l *logReader) progress(p *connector.Progress) error {
	last := l.last.Load()
	merged := connector.Positions{}
	for part, at := range last.UpTo {
		merged[part] = at
	}
	for part, at := range p.UpTo {
		if at == "" {
			delete(merged, part)
			continue
		}
		if was, ok := merged[part]; ok {
			order, err := l.s.source.Compare(at, was)
			if err != nil {
				return err
			}
			if order <= 0 {
				continue
			}
		}
		merged[part] = at
	}
	l.last.Store(&connector.Progress{UpTo: merged, Time: p.Time})
	l.received.Store(time.Now().UnixNano())
	return nil
}

// lookPause is the least time between two discovery rounds, whatever the log tells of.
const lookPause = 5 * time.Second

// discover looks for tables that came, went or changed without a change of their rows: every so often, and at once when
// the log has changes of a table that is not known.
func (s *session) discover(ctx context.Context) error {
	pause := time.Duration(0)
	for wait := s.Limits.DiscoverEvery; ; pause = min(wait, lookPause) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait - pause)
		}
		select {
		case <-s.look:
		case <-due:
		case <-ctx.Done():
			return ctx.Err()
		}
		settled, err := s.discoverOnce(ctx)
		if err != nil {
			return err
		}
		wait = s.Limits.DiscoverEvery
		if !settled {
			wait = retryPause // also where discovery is off
		}
	}
}

// noticed has the source looked at, if a table that the log has changes of may be one to take in. One whose transaction is
// not visible yet, so that it is not found now, waits for a later round.
func (s *session) noticed(u *connector.Unselected) {
	s.mu.Lock()
	t := s.tables[u.ID]
	passedOver := s.passedOver[u.ID] == u.Name
	s.mu.Unlock()
	switch {
	case t == nil && (passedOver || !s.FollowNew):
		return
	case t != nil && !t.inPhase(Refused):
		return
	}
	s.lookAround()
}

// passOver remembers which of the source's tables are not selected.
func (s *session) passOver(found []*schema.Table) {
	passedOver := map[schema.ID]schema.Name{}
	for _, t := range found {
		if _, selected := s.selector().Select(t); !selected {
			passedOver[t.ID] = t.Name
		}
	}
	s.mu.Lock()
	s.passedOver = passedOver
	s.mu.Unlock()
}

// discoverOnce reports whether it could deal with all that it found.
func (s *session) discoverOnce(ctx context.Context) (settled bool, err error) {
	found, err := s.source.Tables(ctx)
	if err != nil {
		return false, err
	}
	s.passOver(found)
	present := map[schema.ID]*schema.Table{}
	var newcomers []*schema.Table
	for _, f := range found {
		present[f.ID] = f
		t := s.table(f.ID)
		if t == nil && (s.FollowNew || s.known[f.ID]) || t != nil && t.inPhase(Refused, Dropped) { // Dropped, and still there: it was refused
			newcomers = append(newcomers, f)
		}
	}
	heads := map[*logReader]connector.Positions{}
	for _, l := range s.allLogs() {
		if heads[l], err = s.source.Head(ctx, l.name); err != nil {
			return false, err
		}
	}
	for _, t := range s.allTables() {
		if err := s.recheck(ctx, t, present[t.id], heads[t.log]); err != nil {
			return false, err
		}
	}
	if err := s.checkCoverage(ctx); err != nil {
		return false, err
	}
	if err := s.welcoming.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer s.welcoming.Release(1)
	return s.welcome(ctx, newcomers, present)
}

// recheck compares a table with what discovery found of it now; nil: it is gone. What changed goes through the lane, so
// that it is acted on behind the changes that came before it: the log ended at head after discovery had looked.
func (s *session) recheck(ctx context.Context, t *table, now *schema.Table, head connector.Positions) error {
	if now != nil && now.Refused != "" {
		return s.lostToRefusal(ctx, t, now)
	}
	t.mu.Lock()
	was := t.acted()
	t.mu.Unlock()
	if t.inPhase(Paused) {
		return s.recheckPaused(ctx, t, was, now)
	}
	if !t.inPhase(CatchingUp, Streaming) {
		return nil
	}
	switch {
	case now == nil:
		gone := *was
		gone.Refused = "it was dropped at the source"
		return t.log.appendChange(ctx, t.id, &gone)
	case now.Version <= was.Version:
		return nil
	}
	return t.log.find(ctx, t.id, foundVersion{table: now, at: head})
}

// recheckPaused lets a paused table go that was dropped or renamed: another one may wait for its destination.
func (s *session) recheckPaused(ctx context.Context, t *table, was, now *schema.Table) error {
	if now == nil {
		if !t.seize() {
			return nil
		}
		gone := *was
		gone.Refused = "it was dropped at the source"
		return s.giveBack(t, s.tableGone(ctx, t, &gone))
	}
	if t.changedWhilePaused(now) {
		s.Log.Info("table has changed, trying again", "table", now.Name.String())
	}
	if now.Name == was.Name {
		return nil
	}
	ps, err := planTables(ctx, []*schema.Table{now}, s.selector().Select, s.origin, s.sink, nil)
	if err != nil {
		return err
	}
	why := t.movesTo(now, ps)
	if why == "" || !t.seize() {
		return nil
	}
	return s.giveBack(t, s.renamedAway(ctx, t, now, why))
}

// lostToRefusal makes a table that cannot be mirrored any more need a new copy, whenever it can be again: changes of it
// may be missing from the log.
func (s *session) lostToRefusal(ctx context.Context, t *table, now *schema.Table) error {
	switch {
	case t.inPhase(CatchingUp, Streaming):
		return t.log.appendChange(ctx, t.id, now)
	case t.inPhase(Pending, Copying): // a copy under way fails when it looks
		if err := t.opening.Acquire(ctx, 1); err != nil {
			return err
		}
		defer t.opening.Release(1)
		_, err := s.forgetChanges(ctx, t)
		return err
	case t.inPlace() != nil && t.seize():
		return s.giveBack(t, s.refusePaused(ctx, t, now))
	}
	return nil
}

// refusePaused is for a paused table that nobody works on.
func (s *session) refusePaused(ctx context.Context, t *table, now *schema.Table) error {
	if err := s.retireEntry(ctx, t); err != nil {
		return err
	}
	t.log.forget(t)
	why, remedy, _ := strings.Cut(now.Refused, "; ")
	t.pause(&connector.Error{
		Kind: connector.TableFault, System: "mirror", Op: "keep changes of a paused table", Table: now.Name, Err: errors.New(why), Hint: remedy,
	}, s.Limits.RetryPaused)
	s.Log.Warn("table needs a new copy", "table", now.Name.String(), "reason", now.Refused)
	s.event(ctx, now.Name, "copy_again", now.Refused)
	s.saveRecords(ctx, t)
	return nil
}

// welcome takes in tables that were found since the session began, and refused ones that have become fit. One whose
// destination is that of a table that is gone or renamed comes in a later round, when nothing more is applied to the
// destination: settled is false then. The caller holds s.welcoming.
func (s *session) welcome(ctx context.Context, newcomers []*schema.Table, present map[schema.ID]*schema.Table) (settled bool, err error) {
	ps, err := planTables(ctx, newcomers, s.selector().Select, s.origin, s.sink, nil)
	if err != nil {
		return false, err
	}
	settled = true
	for _, p := range ps {
		if owner := s.ownerOf(p); owner != nil && (present[owner.id] == nil || present[owner.id].Name != owner.name()) {
			settled = false
			continue
		} else if owner != nil {
			p.refuseFor(present[owner.id].Name)
		}
		if err := s.takeIn(ctx, p); err != nil {
			return false, err
		}
	}
	return settled, nil
}

func (s *session) takeIn(ctx context.Context, p planned) error {
	was := s.table(p.table.ID)
	if was != nil && (was.stillRefused(p) || !was.inPhase(Refused, Dropped)) { // the latter: it was taken in meanwhile
		return nil
	}
	t := s.newTable(p)
	t.phase = Pending
	if was == nil {
		t.total.resume(state.Progress{})
	} else {
		t.copy = was.copy // no number is used twice
		t.quarantine, t.quarantined = was.quarantine, was.quarantined
		t.quarantine.Take(p.quarantines())
	}
	if p.refused != "" {
		t.phase, t.reason = Refused, p.refused
	} else if t.log = s.logs[p.table.Log]; t.log == nil {
		return errRetry // a log of its own: the next session opens it
	} else if err := s.emptyLane(t); err != nil {
		return err
	}
	s.mu.Lock()
	s.tables[t.id] = t
	s.mu.Unlock()
	s.Log.Info("table found", "table", p.table.Name.String(), "refused", p.refused)
	s.event(ctx, p.table.Name, "found", p.refused)
	s.saveRecords(ctx, t)
	if t.phase == Pending {
		s.joins.push(t)
	}
	return nil
}

// table returns a table of the session, nil if there is none of this id.
func (s *session) table(id schema.ID) *table {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables[id]
}

// ownerOf returns the other table that is being stored where p would be, nil if there is none.
func (s *session) ownerOf(p planned) *table {
	if p.target == nil {
		return nil
	}
	for _, t := range s.allTables() {
		if t.id != p.table.ID && t.owns(p.target.Name) {
			return t
		}
	}
	return nil
}
