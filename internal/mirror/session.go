package mirror

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// session is the mirror from one claim of the sink to the first fault of the source or the sink as a whole. Everything
// it knows it has read from the sink, the state and the source, so what a killed process leaves and what a lost
// connection leaves are taken up in the same way.
type session struct {
	*runner
	source connector.Source
	origin string // the source's database
	sink   connector.Sink
	budget *lane.Budget
	copies *semaphore.Weighted // chunk readers, over all tables
	ready  *readyQueue         // tables with changes to apply
	joins  *queue              // tables to copy

	// loading is held while a chunk is written to a sink with one writer: of a copy no more than one transaction stands
	// before one of changes.
	loading *semaphore.Weighted

	spool    *lane.Spool     // nil: lanes stay in memory
	listed   []state.Segment // of the spool, as the state has them; keepFloor's own
	unsure   bool            // the state may have another list; likewise
	floorErr error           // keepFloor's, set before it ends
	doomed   atomic.Pointer[doom]

	orders       []*order  // the commands that are open, oldest first; watch's own, as is commandsRead
	commandsRead time.Time // when the state was last asked for them

	clockAhead atomic.Int64           // the source's clock, less this machine's, in nanoseconds
	retained   atomic.Int64           // bytes of log that the source keeps for the mirror; -1: not known
	position   atomic.Pointer[floors] // the floors that were acknowledged last

	saving *semaphore.Weighted // held while records or checkpoints go to the state, so that no older ones follow newer ones

	welcoming *semaphore.Weighted // held while tables are taken in, so that each is by one only

	look chan struct{} // a discovery round is wanted at once

	mu         sync.Mutex
	logs       map[string]*logReader
	tables     map[schema.ID]*table
	passedOver map[schema.ID]schema.Name // the source's other tables, as last found
	heldBack   time.Duration             // for which reading has waited for room in the spool
	heldBackAt time.Time                 // when it did last
	// changes holds the tables that reselect has found mirrored in another way than is wanted now, with that; nil: not.
	changes map[*table]*planned
}

// open begins a session. An error leaves nothing open.
func (m *runner) open(ctx context.Context) (*session, error) {
	s := &session{
		runner: m, budget: lane.NewBudget(m.Limits.LaneBytes), copies: semaphore.NewWeighted(int64(m.Limits.CopyWorkers)),
		ready: newReadyQueue(m.Limits.Appliers), joins: newQueue(), loading: semaphore.NewWeighted(1), saving: semaphore.NewWeighted(1), welcoming: semaphore.NewWeighted(1), logs: map[string]*logReader{}, tables: map[schema.ID]*table{},
		changes: map[*table]*planned{}, look: make(chan struct{}, 1),
	}
	s.retained.Store(-1)
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	m.observed.session.Store(s)
	return s, nil
}

// begin claims the sink, discovers and plans the tables, opens the logs and puts each table where it goes on.
func (s *session) begin(ctx context.Context) error {
	claim, err := s.claim(ctx)
	if err != nil {
		return err
	}
	if s.source, err = s.runner.Source(ctx, claim.ID); err != nil {
		return err
	}
	if s.origin, err = identityOf(ctx, s.source); err != nil {
		return err
	}
	found, err := s.source.Tables(ctx)
	if err != nil {
		return err
	}
	s.passOver(found)
	for _, what := range s.selector().unused(found) {
		s.Log.Warn("settings are not used", "setting", what)
	}
	ps, err := planTables(ctx, s.followed(found), s.selector().Select, s.origin, s.sink, claim.Entries)
	if err != nil {
		return err
	}
	return s.place(ctx, ps, claim)
}

// followed leaves out the tables that came while the mirror ran, if those are not wanted.
func (s *session) followed(found []*schema.Table) []*schema.Table {
	if s.FollowNew {
		return found
	}
	if s.known == nil {
		s.known = map[schema.ID]bool{}
		for _, t := range found {
			s.known[t.ID] = true
		}
	}
	return slices.DeleteFunc(found, func(t *schema.Table) bool { return !s.known[t.ID] })
}

// claim makes this process the sink's only writer and agrees with it on the mirror's id.
func (s *session) claim(ctx context.Context) (*connector.Claim, error) {
	id, err := s.Store.MirrorID(ctx)
	if err != nil {
		return nil, err
	}
	if s.sink, err = s.runner.Sink(ctx, id); err != nil {
		return nil, err
	}
	claim, err := s.sink.Claim(ctx, s.Mirror, id)
	if err != nil {
		return nil, err
	}
	if id == "" {
		err = s.Store.SetMirrorID(ctx, claim.ID)
	}
	return claim, err
}

// place opens the logs and decides for each table whether it goes on, is copied or stays where it is.
func (s *session) place(ctx context.Context, ps []planned, claim *connector.Claim) error {
	entries := claim.Entries
	records, err := s.Store.Tables(ctx)
	if err != nil {
		return err
	}
	saved := map[schema.ID]state.Table{}
	for _, r := range records {
		saved[r.ID] = r
	}
	stateFloors, err := readFloors(ctx, s.Store)
	if err != nil {
		return err
	}
	if err := s.retireEntries(ctx, ps, entries); err != nil {
		return err
	}
	if err := s.openSpool(ctx, claim.ID); err != nil {
		return err
	}
	ofCopies := copyEntries(entries)
	slices.SortStableFunc(ps, func(a, b planned) int { // what was begun is ended first: changes of it are kept meanwhile
		return cmp.Compare(len(ofCopies[b.table.ID]), len(ofCopies[a.table.ID]))
	})
	for _, p := range ps {
		t := s.newTable(p)
		t.copyKeys = ofCopies[t.id]
		if err := t.quarantine.Committed(entries); err != nil {
			return &connector.Error{Kind: connector.Setup, System: "sink", Op: "read the quarantine", Table: p.table.Name, Err: err}
		}
		t.quarantined = t.quarantine.Len()
		s.tables[t.id] = t
		t.total.resume(saved[t.id].Progress)
		if p.refused != "" {
			t.phase, t.reason, t.copy = Refused, p.refused, copyBegun(entries[apply.Key(t.id)], saved[t.id])
			continue
		}
		if t.log, err = s.openLog(ctx, p.table.Log, entries, stateFloors); err != nil {
			return err
		}
		if err := s.placeTable(ctx, t, entries, saved[t.id]); err != nil {
			return err
		}
	}
	all := s.floors()
	s.position.Store(&all)
	s.forgetUnopened()
	s.noteDropped(ctx, records)
	s.fresh, s.later = false, true
	s.saveRecords(ctx)
	if err := s.obey(ctx); err != nil { // before anything is written
		return err
	}
	s.saveProgress(ctx)
	return nil
}

// copyBegun returns the number of the newest copy of a table that is not to go on now.
func copyBegun(entry string, saved state.Table) int {
	at, err := apply.ParseCheckpoint(entry)
	if err != nil { // there is none: retireEntries has refused a damaged one
		return saved.Copy
	}
	return max(saved.Copy, at.Copy)
}

// retireEntries makes it durable, before the log passes them, which tables cannot go on from their entries: those that
// are not mirrored now, and all of them if the log begins anew. Of these nothing is kept of a copy that was cut off.
// entries is brought up to date.
func (s *session) retireEntries(ctx context.Context, ps []planned, entries map[string]string) error {
	goesOn := map[string]bool{}
	for _, p := range ps {
		goesOn[apply.Key(p.table.ID)] = p.target != nil && !s.fresh
	}
	retired := map[string]string{}
	for key, text := range entries {
		if id, ok := copyEntryOf(key); ok && !goesOn[apply.Key(id)] {
			retired[key] = ""
		}
		if id, _, ok := apply.ParseQuarantineKey(key); ok && !goesOn[apply.Key(id)] {
			retired[key] = ""
		}
		if !strings.HasPrefix(key, apply.Key("")) || goesOn[key] {
			continue
		}
		at, err := apply.ParseCheckpoint(text)
		if err != nil {
			return &connector.Error{Kind: connector.Setup, System: "sink", Op: "read entry " + key, Err: err}
		}
		if at.Ready {
			at.Ready = false
			retired[key] = at.String()
		}
	}
	if len(retired) == 0 {
		return nil
	}
	maps.Copy(entries, retired)
	maps.DeleteFunc(entries, func(_, text string) bool { return text == "" })
	return s.commit(ctx, retired)
}

// placeTable puts one table where the evidence says.
func (s *session) placeTable(ctx context.Context, t *table, entries map[string]string, saved state.Table) error {
	present := t.planned
	if err := s.restoreVersion(ctx, t, entries); err != nil {
		return err
	}
	e, err := s.gather(t, entries, saved)
	if err != nil {
		return err
	}
	do, why, err := reconcile(e, s.source.Compare)
	switch {
	case err != nil:
	case do == carryOn && s.spool == nil && s.staysPaused(&saved): // the log would have to be kept for it
		do = recopy
	case do == carryOn:
		if why, err = s.takeUpCopy(ctx, t, e.unfinished); why != "" {
			do = recopy
		}
	case do != recopy:
		if why2, err2 := s.openLane(t, e.entry); err2 != nil || why2 != "" {
			do, why, err = recopy, why2, err2
		}
	}
	if err == nil && do == resume {
		start := t.log.delivers
		if t.lane.SpoolBytes() > 0 {
			start = nil // what the spool holds goes on from the checkpoint; the lane knows whom it must meet behind that
		}
		t.apply, err = apply.NewTable(t.planned.target, t.planned.keep, *e.entry, start, s.source, s.sink, s.Alloc)
		if err == nil {
			t.apply.UseQuarantine(t.quarantine)
		}
	}
	if connector.KindOf(err) == connector.Gap { // of this table's positions: the others may go on
		do, why, err = recopy, err.Error(), nil
	}
	if err != nil {
		return err
	}
	t.copy = saved.Copy
	if e.entry != nil {
		t.copy = max(t.copy, e.entry.Copy)
	}
	stays := s.staysPaused(&saved)
	switch do {
	case refuse:
		t.refuseSettings(why)
		if stays {
			t.stayPaused(&saved)
		}
		t.saved, t.stands = saved.Checkpoint, e.entry
		return s.keepChanges(ctx, t)
	case carryOn:
		t.setPhase(Pending, "", "")
		if stays {
			t.stayPaused(&saved)
			return nil
		}
		s.joins.push(t)
		return nil
	case recopy:
		t.planned = present
		if err := s.emptyLane(t); err != nil {
			return err
		}
		retired := t.deletions()
		if e.entry != nil && e.entry.Ready {
			e.entry.Ready = false
			retired[apply.Key(t.id)] = e.entry.String()
		}
		if len(retired) > 0 {
			if err := s.commit(ctx, retired); err != nil {
				return err
			}
			t.deleted(retired)
		}
		t.setPhase(Pending, "", "")
		if why != "" && !stays {
			s.Log.Warn("table is copied anew", "table", t.planned.table.Name.String(), "reason", why)
			s.event(ctx, t.planned.table.Name, "copy_again", why)
		}
		if stays {
			t.stayPaused(&saved)
			return nil
		}
		s.joins.push(t)
		return nil
	}
	t.entry, t.saved, t.meeting, t.overlap = e.entry.String(), saved.Checkpoint, t.apply.Meeting(), e.entry.Converged()
	if t.goal, err = t.log.headAtStart(ctx); err != nil {
		return err
	}
	t.setPhase(CatchingUp, "", "")
	if stays {
		t.stayPaused(&saved)
	}
	if err := s.goOn(ctx, t); err != nil || present.table == t.planned.table || !t.inPhase(CatchingUp) {
		return err
	}
	return t.log.find(ctx, t.id, foundVersion{table: present.table, at: t.goal})
}

// keepChanges has the changes of a table put into its lane that is not to be applied now. Where that cannot be the log
// keeps them.
func (s *session) keepChanges(ctx context.Context, t *table) error {
	if s.spool == nil {
		t.log.hold(t)
		return nil
	}
	_, err := t.log.join(ctx, t)
	if kind := connector.KindOf(err); kind == connector.TableFault || kind == connector.Setup {
		t.log.hold(t)
		return nil
	}
	return err
}

// goOn opens the lane of a table that goes on from its checkpoint, now or when it is taken up. A table that had been taken
// out of the stream has lost changes: it is copied again.
func (s *session) goOn(ctx context.Context, t *table) error {
	if s.spool == nil && t.inPhase(Paused) {
		t.log.hold(t)
		return nil
	}
	at := t.apply.Checkpoint()
	whole, err := s.joinAgain(ctx, t, &at)
	if kind := connector.KindOf(err); kind == connector.TableFault || kind == connector.Setup {
		return s.pause(ctx, t, err)
	}
	if err != nil || whole {
		return err
	}
	return s.copyAgain(ctx, t, takenOut)
}

const takenOut = "it had been taken out of the stream, so changes of it are missing from the log"

// joinAgain opens the lane of a table of which the sink holds what at says, and reports whether the stream delivers all
// that came after.
func (s *session) joinAgain(ctx context.Context, t *table, at *apply.Checkpoint) (whole bool, err error) {
	from, err := t.log.join(ctx, t)
	if err != nil {
		return false, err
	}
	for _, known := range []connector.Positions{t.log.start, {at.Part: at.Position}} {
		if whole, err := s.reached(known, from); err != nil || whole {
			return whole, err
		}
	}
	return false, nil
}

func (s *session) gather(t *table, entries map[string]string, saved state.Table) (evidence, error) {
	e := evidence{
		copy: t.planned.target.Copy, fresh: t.log.fresh, sinkBehind: t.log.sinkBehind,
		settings: settingsOf(t.planned.target, t.planned.settings), fingerprint: versionOf(t.planned.table), renamed: t.renamed,
		newest: saved.Copy,
	}
	var err error
	if text := entries[apply.Key(t.id)]; text != "" {
		if e.entry, err = apply.ParseCheckpoint(text); err != nil {
			return e, &connector.Error{Kind: connector.Setup, System: "sink", Op: "read the entry of a table", Table: t.planned.table.Name, Err: err}
		}
	}
	if e.entry != nil {
		if e.elsewhere, err = t.log.elsewhere(e.entry); err != nil {
			return e, err
		}
		if e.unfinished, err = readUnfinished(t.id, e.entry, entries); err != nil {
			return e, &connector.Error{Kind: connector.Setup, System: "sink", Op: "read the entries of a copy", Table: t.planned.table.Name, Err: err}
		}
	}
	if saved.Checkpoint != "" {
		if e.saved, err = apply.ParseCheckpoint(saved.Checkpoint); err != nil {
			return e, &connector.Error{Kind: connector.Setup, System: "state", Op: "read the record of a table", Table: t.planned.table.Name, Err: err}
		}
	}
	return e, nil
}

// noteDropped records the tables that were mirrored and are no longer at the source. Their destinations stay.
func (s *session) noteDropped(ctx context.Context, records []state.Table) {
	for _, r := range records {
		if s.tables[r.ID] != nil || r.Phase == string(Dropped) {
			continue
		}
		r.Phase, r.Reason, r.Since = string(Dropped), "it is not at the source any more, or not selected", time.Now()
		r.Checkpoint = "" // if the sink is restored, its entry there proves nothing
		if err := s.Store.SaveTables(ctx, r); err != nil {
			s.Log.Warn("state not saved", "error", err)
		}
		s.Log.Warn("table is not mirrored any more", "table", r.Name.String(), "reason", r.Reason)
		s.event(ctx, r.Name, "dropped", r.Reason)
	}
}

// run mirrors until ctx ends, a fault ends the session, or (Options.Once) all is done. It stops reading first and then
// drains: what was read is applied, the floor saved and acknowledged.
func (s *session) run(ctx context.Context) error {
	reading, stopReading := context.WithCancelCause(ctx)
	defer stopReading(nil)
	working, stopWorking := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWorking(nil)

	work, working := errgroup.WithContext(working)
	if s.oneWriter() {
		work.Go(func() error { return s.applyTogether(working) })
	} else {
		for range s.Limits.Appliers {
			work.Go(func() error { return s.applyAll(working) })
		}
	}
	context.AfterFunc(working, func() { stopReading(context.Cause(working)) })

	read, reading := errgroup.WithContext(reading)
	for _, l := range s.allLogs() {
		read.Go(func() error { return l.run(reading) })
	}
	read.Go(func() error { return s.joinAll(reading) })
	read.Go(func() error { return s.discover(reading) })
	read.Go(func() error { return s.watch(reading) })
	read.Go(func() error { return s.reload(reading) })
	read.Go(func() error { return s.guardLog(reading) })
	read.Go(func() error { return s.keepFloor(reading) })
	if s.spool != nil {
		read.Go(func() error { return spoolError(s.spool.Run(reading)) })
	}
	read.Go(func() error { return s.keepProgress(reading) })
	read.Go(func() error { return s.keepRetained(reading) })
	err := read.Wait()
	s.observed.is(Stopping)

	s.ready.finish() // appliers end when the queue is empty
	drained := time.AfterFunc(s.Limits.DrainFor, func() { stopWorking(errDrainTime) })
	defer drained.Stop()
	if fault := s.faultOf(err, work.Wait()); fault != nil {
		return fault
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Limits.DrainFor)
	defer cancel()
	s.saveRecords(last)
	if s.spool != nil {
		if err := s.spool.Sync(); err != nil {
			return spoolError(err)
		}
	}
	s.saveProgress(last)
	if floorErr := s.saveFloor(last); floorErr != nil {
		return floorErr
	}
	return ended(err)
}

// faultOf returns with what the session ends before its floor can be saved a last time, given how reading and applying
// ended; nil if nothing went wrong.
func (s *session) faultOf(readErr, workErr error) error {
	for _, err := range []error{readErr, workErr, s.floorErr} {
		if connector.KindOf(err) == connector.Fenced { // whatever else happened: there must be no next session
			return err
		}
	}
	asked := errors.Is(readErr, errFinished) || errors.Is(readErr, errRetry) || errors.Is(readErr, errTooMuchLog)
	switch {
	case ended(workErr) != nil && asked:
		return workErr
	case ended(workErr) != nil:
		return errors.Join(workErr, ended(readErr))
	case workErr != nil:
		return errors.Join(errDrainTime, ended(readErr))
	case s.floorErr != nil:
		return s.floorErr // its commit may have lost its answer: the next session looks before it writes
	case asked:
		return nil
	default:
		return ended(readErr)
	}
}

var errDrainTime = errors.New("stopped before everything read was applied; the rest is read again at the next start")

// ended leaves out the end of a context, which somebody asked for.
func ended(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// close ends the session's connections.
func (s *session) close() error {
	var errs []error
	for _, l := range s.allLogs() {
		if l.stream != nil {
			errs = append(errs, l.stream.Close())
		}
	}
	if s.spool != nil {
		errs = append(errs, s.spool.Close())
	}
	if s.source != nil {
		errs = append(errs, s.source.Close())
	}
	if s.sink != nil {
		errs = append(errs, s.sink.Close())
	}
	return errors.Join(errs...)
}

// floors returns the floors of all logs that were acknowledged last. It is for keepFloor, and for what comes before that.
func (s *session) floors() floors {
	all := floors{}
	for _, l := range s.allLogs() {
		all[l.name] = l.saved
	}
	return all
}

func (s *session) allLogs() []*logReader {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.logs))
}

// allTables returns the tables by name.
func (s *session) allTables() []*table {
	s.mu.Lock()
	ts := slices.Collect(maps.Values(s.tables))
	s.mu.Unlock()
	slices.SortFunc(ts, func(a, b *table) int {
		return cmp.Or(strings.Compare(a.name().String(), b.name().String()), strings.Compare(string(a.id), string(b.id)))
	})
	return ts
}

// watchEvery is how often phases are looked at.
const watchEvery = 50 * time.Millisecond

// watch moves tables to Streaming, wakes those that rested, takes up paused ones that are due, carries out commands, and
// ends the session when all are done (Options.Once) or the log must be read again for a paused table.
func (s *session) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.obey(ctx); err != nil {
			return err
		}
		var unfinished, copying, rereading int
		for _, t := range s.allTables() {
			if err := s.promote(ctx, t); err != nil {
				return err
			}
			s.wake(t) // it may have rested
			switch {
			case t.inPhase(Pending, Copying):
				copying++
				unfinished++
			case t.inPhase(CatchingUp):
				unfinished++
			case t.isHalted() || !t.due() || s.Once && !t.isWanted():
			default:
				up, err := s.takeUp(ctx, t)
				switch {
				case err != nil:
					return err
				case !up:
					rereading++
				}
				unfinished++
			}
		}
		switch {
		case s.Once && unfinished == 0:
			if err := s.obey(ctx); err != nil { // some commands may have waited for this
				return err
			}
			return errFinished
		case rereading > 0 && copying == 0: // copies would begin anew
			return errRetry
		}
	}
}

// promote makes a table Streaming when everything up to its goal is durable in the sink.
func (s *session) promote(ctx context.Context, t *table) error {
	if !t.inPhase(CatchingUp) {
		return nil
	}
	last := t.log.last.Load().UpTo // before the look into the lane: what is appended later is beyond it
	safe := t.lane.Safe(last)
	for _, end := range t.ends() {
		if passed, err := s.reached(safe, end); err != nil || !passed {
			return err
		}
	}
	if t.diverged() {
		return s.giveBack(t, s.tableFailed(ctx, t, t.apply.Diverged()))
	}
	if !t.promote() {
		return nil
	}
	s.Log.Info("table is streaming", "table", t.name().String())
	s.event(ctx, t.name(), "streaming", "")
	s.saveRecords(ctx, t)
	return nil
}

// reached reports whether no part of the goal is beyond at.
func (s *session) reached(at, goal connector.Positions) (bool, error) {
	for part, g := range goal {
		p, ok := at[part]
		if !ok {
			return false, nil
		}
		order, err := s.source.Compare(p, g)
		if err != nil || order < 0 {
			return false, err
		}
	}
	return true, nil
}

// pause stops a table. If its rows are in place its lane goes on taking changes in; where there is no spool for them, or
// the stream does not deliver them, the log is read again from where the table stands when it goes on. A table without
// its rows in place needs nothing of the log, unless its copy goes on later.
func (s *session) pause(ctx context.Context, t *table, cause error) error {
	if err := s.stand(ctx, t); err != nil {
		return err
	}
	retry := s.Limits.RetryPaused
	if errors.Is(cause, errSchemaPolicy) || errors.Is(cause, errAged) || errors.Is(cause, errOutrun) || connector.KindOf(cause) == connector.Gap {
		retry = 0 // it would come to the same
	}
	t.pause(cause, retry)
	s.observed.noteError(cause)
	s.Log.Error("table is paused", "table", t.name().String(), "error", cause)
	s.event(ctx, t.name(), "paused", cause.Error())
	s.saveRecords(ctx, t)
	if s.FailOnTable {
		// Of a Kind of its own: one for which waiting helps would have the table tried again.
		return &connector.Error{Kind: connector.TableFault, System: "mirror", Op: "mirror a table", Table: t.name(), Err: cause}
	}
	return nil
}

// failed counts a fault of a table, after which it rests for a while, and reports whether that was one too many.
func (s *session) failed(t *table, err error) (pause bool, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures++
	t.lastErr = err.Error()
	wait = failurePause << min(t.failures-1, 6)
	t.rests = time.Now().Add(wait)
	pause = t.failures >= s.Limits.TableFailures
	if !pause { // else the pause counts it
		s.observed.noteError(err)
	}
	return pause, wait
}

// failurePause is the first wait before a table at fault is tried again, doubled each time.
const failurePause = time.Second

// saveRecords saves the records of tables, of all if none is given. A state that cannot be written stops acknowledging,
// not applying, so it is no fault here.
func (s *session) saveRecords(ctx context.Context, tables ...*table) {
	_ = s.trySaveRecords(ctx, tables...)
}

// trySaveRecords is saveRecords for what may only go on when they are saved.
func (s *session) trySaveRecords(ctx context.Context, tables ...*table) error {
	if len(tables) == 0 {
		tables = s.allTables()
	}
	if err := s.saving.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.saving.Release(1)
	var records []state.Table
	for _, t := range tables {
		records = append(records, t.record())
	}
	if err := s.Store.SaveTables(ctx, records...); err != nil {
		if ctx.Err() == nil {
			s.Log.Warn("state not saved", "error", err)
		}
		return err
	}
	for i, t := range tables {
		t.told(records[i].Progress)
	}
	return nil
}

// summary returns the session's tables as they stand.
func (s *session) summary() *Summary {
	out := &Summary{Position: connector.Positions{}}
	for _, t := range s.allTables() {
		out.Tables = append(out.Tables, t.summary())
	}
	for _, l := range s.allLogs() {
		maps.Copy(out.Position, l.saved)
	}
	return out
}
