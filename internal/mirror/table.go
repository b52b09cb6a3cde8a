package mirror

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// Phase is where a table is on its way.
type Phase string

// The phases of a table.
const (
	Pending    Phase = "pending"     // selected, waits for its copy
	Copying    Phase = "copying"     // its lane is open, its rows are being copied
	CatchingUp Phase = "catching_up" // its copy is in place, its lane is being applied
	Streaming  Phase = "streaming"   // it has passed the end of the log as it was when its copy was done
	Paused     Phase = "paused"      // it does not go on, see the reason
	Refused    Phase = "refused"     // it cannot be mirrored, see the reason
	Dropped    Phase = "dropped"     // it is gone from the source; its destination stays
)

// By what a table is paused, as the state keeps it.
const (
	byFault  = "fault"  // tried again by itself
	byPerson = "person" // until a person resumes it
	byConfig = "config" // other settings than those under which it is mirrored
	byGap    = "gap"    // the log lacks changes of it: until a person has it copied anew
)

// table is one mirrored table while a session runs. Its lane has locks of its own; mu guards the rest.
type table struct {
	id    schema.ID
	lane  *lane.Lane
	log   *logReader
	total *totals
	// opening is held while the lane of a copy is opened, or given up, and while the copy's plan is kept.
	opening *semaphore.Weighted

	batchTime time.Duration // running mean of its batches, each counting as much as all before it; the ready queue's own

	mu       sync.Mutex
	planned  planned
	phase    Phase
	reason   string // for Paused and Refused: why
	remedy   string // and what to do
	pausedBy string // for Paused: byFault, byPerson, byConfig, byGap
	since    time.Time
	retryAt  time.Time     // for Paused by a fault
	waiting  string        // for Copying: whom its snapshot waits for
	ignored  *schema.Table // the version whose changes are applied as if they were planned.table's
	lost     string        // why changes of it are missing from the stream
	renamed  bool          // its rows are stored under another name of it
	copy     int           // the newest copy begun
	copyKeys []string      // of the last copy's entries that are in the sink: its plan, its chunks
	// unfinished is the copy under way, or one that was cut off, if it may go on under another snapshot.
	unfinished  *unfinished
	apply       *apply.Table        // from Ready on
	quarantine  *apply.Quarantine   // set before the table is in use
	quarantined int                 // rows in quarantine when that was last looked at
	goal        connector.Positions // streaming once the log has passed it
	overlap     connector.Positions // and this: its copy has rows of moments up to there
	joined      bool                // the stream delivers its changes
	stands      *apply.Checkpoint   // of a table that is not to go on now though it could, under other settings
	differs     string              // with stands: in what those differ
	halted      bool                // nobody begins to work on it: it is wanted for something else
	stopCopy    func()              // ends the copy under way
	wanted      bool                // a person resumed it, for which the log must be read again
	overrun     bool                // its changes since the copy began could not be kept
	overruns    int                 // copies in a row of which that is so
	outran      string              // how fast they came in the last one
	landing     bool                // its copy is complete
	meeting     bool                // apply has not met the checkpoint's transaction yet: the log is kept from where it was opened
	queued      bool                // in the appliers' queue, or with an applier
	failures    int                 // faults in a row
	rests       time.Time           // until then it is not applied
	pace        int                 // rows of a batch that a sink with one writer takes in the time it has; 0: not known
	apart       time.Time           // until then its batches are not written together with those of others
	lastErr     string
	entry       string         // the checkpoint in the sink, "" before the copy is ready
	saved       string         // the checkpoint that the state holds
	behind      lag            // as last measured
	kept        state.Progress // the progress that the state holds
}

// newTable returns a table with an empty lane of its own.
func (s *session) newTable(p planned) *table {
	return &table{
		id: p.table.ID, planned: p, total: s.total(p.table.ID), lane: lane.New(s.budget), since: time.Now(), opening: semaphore.NewWeighted(1),
		quarantine: apply.NewQuarantine(p.table.ID, p.quarantines()),
	}
}

func (t *table) name() schema.Name {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.planned.table.Name
}

// owns reports whether a destination is this table's to write.
func (t *table) owns(destination schema.Name) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase != Dropped && t.planned.target != nil && t.planned.target.Name == destination
}

// setPhase changes the phase; reason and remedy are "" but for Paused and Refused.
func (t *table) setPhase(p Phase, reason, remedy string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase, t.reason, t.remedy, t.pausedBy, t.since = p, reason, remedy, "", time.Now()
	t.retryAt, t.waiting = time.Time{}, ""
}

// ends returns what the log must pass until the table streams.
func (t *table) ends() []connector.Positions {
	t.mu.Lock()
	defer t.mu.Unlock()
	return []connector.Positions{t.goal, t.overlap}
}

// diverged reports whether a table that has passed its goal did not meet its checkpoint's transaction on the way, and
// takes it from the appliers if so: a table that they have comes to the same result there.
func (t *table) diverged() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != CatchingUp || !t.meeting || t.queued {
		return false
	}
	t.queued = true
	return true
}

// promote moves a table from CatchingUp to Streaming, unless it left CatchingUp in the meantime.
func (t *table) promote() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != CatchingUp || t.meeting {
		return false
	}
	t.phase, t.since = Streaming, time.Now()
	return true
}

// pause makes a table Paused by a fault, to be tried again after a while; retry 0: not by itself. One that is paused for
// another reason stays so.
func (t *table) pause(cause error, retry time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastErr = cause.Error()
	if t.phase == Paused && t.pausedBy != byFault {
		return
	}
	t.phase, t.reason, t.remedy, t.pausedBy, t.since = Paused, t.lastErr, "", byFault, time.Now()
	if e, ok := errors.AsType[*connector.Error](cause); ok {
		t.remedy = e.Hint
	}
	t.retryAt, t.waiting = time.Time{}, ""
	if retry > 0 {
		t.retryAt = t.since.Add(retry)
	}
}

// rowsOfCopy returns the rows of the newest copy.
func (t *table) rowsOfCopy() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total.copied
}

// waitFor notes whom the table's snapshot waits for.
func (t *table) waitFor(whom string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = whom
}

// due reports whether a table paused by a fault is to be tried again.
func (t *table) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase == Paused && !t.retryAt.IsZero() && !time.Now().Before(t.retryAt)
}

// changedWhilePaused has a table that a fault has paused tried again at once, if it is another one now.
func (t *table) changedWhilePaused(now *schema.Table) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.planned.table
	if t.phase != Paused || t.retryAt.IsZero() || now.Version <= was.Version || fingerprintOf(now) == fingerprintOf(was) {
		return false
	}
	t.retryAt = time.Now()
	return true
}

// stillRefused reports whether a table is refused as before.
func (t *table) stillRefused(p planned) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase == Refused && p.refused == t.reason
}

// takeUp makes a paused table Pending again if its rows are not in place, else CatchingUp until the log has passed goal. It
// returns false for one whose changes are not in its lane: the log must be read again from where it stands. One that is not
// paused any more, or that somebody has seized, is left as it is.
func (t *table) takeUp(goal connector.Positions) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != Paused || t.queued {
		return true
	}
	if t.stands != nil {
		return false
	}
	to := Pending
	if t.apply != nil {
		if !t.joined || t.lane.Held() {
			return false
		}
		to, t.goal = CatchingUp, goal
	}
	t.phase, t.reason, t.remedy, t.pausedBy, t.since = to, "", "", "", time.Now()
	t.retryAt, t.failures, t.wanted = time.Time{}, 0, false
	return true
}

func (t *table) inPhase(ps ...Phase) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range ps {
		if t.phase == p {
			return true
		}
	}
	return false
}

// record is the table as the state keeps it.
func (t *table) record() state.Table {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := state.Table{
		ID: t.id, Name: t.planned.table.Name, Destination: t.planned.destination(), Phase: string(t.phase),
		Reason: t.reason, Remedy: t.remedy, Since: t.since, RetryAt: t.retryAt, Copy: t.copy, Checkpoint: t.saved,
		RowsEstimated: t.planned.table.Rows, Progress: t.progress(), PausedBy: t.pausedBy,
	}
	if t.waiting != "" {
		r.Reason = t.waiting
	}
	return r
}

func (t *table) summary() TableSummary {
	t.mu.Lock()
	defer t.mu.Unlock()
	return TableSummary{
		Table: t.planned.table.Name, Destination: t.planned.destination(), Phase: string(t.phase), Reason: t.reason,
		Remedy: t.remedy, RowsCopied: t.total.rowsCopied, ChangesApplied: t.total.changes, Since: t.since,
	}
}
