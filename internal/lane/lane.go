// Package lane holds a table's changes between the reader and the appliers: a queue of undecoded frames in the order of
// the log. A lane belongs to one table. It keeps little in memory; what is more goes to the files of a Spool, in which a
// lane survives the process. A Budget bounds the memory of all lanes of a mirror together.
package lane

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Item is one entry of a lane: Frames, or the Change that follows the last frame of an older version of the table.
type Item struct {
	Frames *connector.Frames
	Change *connector.SchemaChange
	// Before is the Progress that the reader had seen last when it appended the item: everything the lane's table ever
	// changed up to there stands in front of the item.
	Before connector.Positions
	// Old items were read by an earlier Spool over the same folder: the versions of their tables were counted by another
	// Source.
	Old bool

	size  int64
	place place // in the spool; its segment is nil while the item is in memory alone
	round int   // the Spool's when the item was appended
}

// place is where a record begins.
type place struct {
	segment *segment
	off     int64
}

// commitBytes is about what one connector.Commit takes in memory, its position's text included.
const commitBytes = 136

func sizeOf(it *Item) int64 {
	if it.Frames == nil {
		return 0
	}
	return int64(len(it.Frames.Data)) + int64(len(it.Frames.Commits))*commitBytes
}

// time is when the item's first change was committed, by the source's clock; zero if the source does not say.
func (it *Item) time() time.Time {
	switch {
	case it.Change != nil:
		return it.Change.Commit.Time
	case len(it.Frames.Commits) > 0:
		return it.Frames.Commits[0].Time
	}
	return time.Time{}
}

// Lane is the queue of one table. One reader appends to it, one applier at a time takes from it.
//
// From its oldest change on it is made of three stretches: items that are in memory and in the spool, records that are in
// the spool alone, and items that are in memory alone. The second and the third are never there together: while there are
// records to be read back, what is appended goes behind them.
type Lane struct {
	id     schema.ID
	budget *Budget
	spool  *Spool // nil: everything stays in memory

	taking sync.Mutex     // held while records are read back or the lane is emptied; locked before mu
	reader *segmentReader // of cursor.segment, or nil; Take's own

	mu         sync.Mutex
	items      []Item // not yet durable in the sink, in the order of the log; the first `taken` of them are with an applier
	taken      int
	takenBytes int64
	filed      int                 // the first items, which are in the spool too
	bytes      int64               // of items
	before     connector.Positions // while items is empty: stands for the Before of the next record, or one before it
	since      time.Time           // likewise for the commit time of its first change
	closed     bool                // takes nothing in
	held       connector.Positions // the safe position of a lane closed by Hold
	missed     time.Time           // when the oldest change was committed that Hold has removed or kept out; zero: none

	segments []*segment // those still needed, oldest first
	writing  *segment   // the last of them; nil: the next record begins a new one
	cursor   place      // the next record to read back; its segment is nil while the lane has none
	ends     map[string]Run
	dirty    unsynced       // records that were written since the last sync began
	syncing  unsynced       // those that it works on
	onDisk   map[string]Run // ends, as far as they are on disk for certain
	again    repeats

	drained chan struct{} // closed at the next Done; nil: nobody waits for it
}

// unsynced is records that a loss of power may take.
type unsynced struct {
	any    bool
	before connector.Positions // Item.Before of the first
}

// New returns an empty lane without a spool, whose frames count against budget.
func New(budget *Budget) *Lane { return &Lane{budget: budget} }

// Overflows returns a channel that is closed at the next Done if an item would be the first of the lane to go beyond
// memory, else nil. Who can wait for a moment spares the disk.
func (l *Lane) Overflows(it Item) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spool == nil || l.unread() || len(l.items) == 0 || l.bytes+sizeOf(&it) <= l.spool.limits.Lane {
		return nil
	}
	if l.drained == nil {
		l.drained = make(chan struct{})
	}
	return l.drained
}

// Append adds an item. It does not wait, and the item is not in the lane if it returns an error: a *FullError when the
// spool has no room, after which the same item may be appended again.
func (l *Lane) Append(it Item) error {
	l.mu.Lock()
	err := l.append(it)
	l.mu.Unlock()
	if l.spool != nil && l.budget.full() {
		l.spool.relieve()
	}
	return err
}

func (l *Lane) append(it Item) error {
	if l.closed {
		if l.held != nil && l.missed.IsZero() {
			l.missed = it.time()
		}
		return nil
	}
	if fresh, err := l.again.cut(&it); err != nil || !fresh {
		return err
	}
	it.size = sizeOf(&it)
	if err := l.put(it); err != nil {
		return err
	}
	return l.again.settle(&it)
}

// put holds an item in memory while there is room and nothing has to be read back in front of it, else writes it.
func (l *Lane) put(it Item) error {
	if l.spool == nil {
		l.keep(it)
		return nil
	}
	it.round = l.spool.round()
	if !l.unread() && l.bytes+it.size <= l.spool.limits.Lane && !l.budget.full() {
		l.keep(it)
		return nil
	}
	err := l.file(it)
	if _, full := errors.AsType[*FullError](err); full && !l.unread() && (len(l.items) == 0 || !l.budget.full()) {
		l.keep(it) // memory is left, or the lane would never have room for it
		return nil
	}
	return err
}

// file writes an item, and before it those that are in memory alone.
func (l *Lane) file(it Item) error {
	if err := l.fileTail(); err != nil {
		return err
	}
	if len(l.items) == 0 && !l.unread() {
		l.before, l.since = it.Before, it.time()
	}
	return l.write([]Item{it})
}

// keep holds an item in memory.
func (l *Lane) keep(it Item) {
	l.items = append(l.items, it)
	l.bytes += it.size
	l.budget.add(it.size)
}

// Take returns the oldest items that make up about so many row messages and bytes, or what can be read back of them in
// the time age, at least one item: either frames of one version of the table, or one change of its schema alone. They stay
// in the lane until Done; Back leaves them there. The error is a *DamagedError if the spool cannot be read.
func (l *Lane) Take(rows int, bytes int64, age time.Duration) ([]Item, error) {
	l.taking.Lock()
	defer l.taking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken > 0 {
		return nil, nil
	}
	b := batch{maxRows: rows, maxBytes: bytes, until: time.Now().Add(age)}
	for i := range l.items {
		if !b.add(&l.items[i]) {
			break
		}
	}
	if !b.full && l.unread() {
		if err := l.readBack(&b); err != nil {
			return nil, err
		}
	}
	l.taken, l.takenBytes = b.n, b.bytes
	return slices.Clone(l.items[:b.n]), nil
}

// batch counts the items that one Take returns.
type batch struct {
	maxRows  int
	maxBytes int64
	until    time.Time // it is gathered no longer

	n, rows int
	bytes   int64
	first   Item
	full    bool // no more items belong to it
}

// add offers the next item and reports whether more may follow.
func (b *batch) add(it *Item) bool {
	if b.n == 0 {
		b.first = *it
	} else if !sameVersion(&b.first, it) {
		b.full = true
		return false
	}
	b.n++
	if it.Change != nil {
		b.full = true
		return false
	}
	b.bytes += it.size
	for c := range it.Frames.Commits {
		b.rows += it.Frames.Commits[c].Rows
	}
	b.full = b.rows >= b.maxRows || b.bytes >= b.maxBytes
	return !b.full
}

// sameVersion reports whether b holds frames of the version of those in a. Versions of another process do not compare
// with ours.
func sameVersion(a, b *Item) bool {
	if b.Change != nil || a.Old != b.Old {
		return false
	}
	return a.Frames.Table == b.Frames.Table || !a.Old && a.Frames.Table.Version == b.Frames.Table.Version
}

// Done removes what Take returned: it is durable in the sink, or was there already.
func (l *Lane) Done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken == 0 {
		return
	}
	var freed int64
	l.before, l.since = l.items[l.taken-1].Before, l.items[l.taken-1].time()
	for i := range l.items[:l.taken] {
		freed += l.items[i].size
		l.items[i] = Item{}
	}
	l.items = l.items[l.taken:]
	if len(l.items) == 0 {
		l.items = nil
	}
	l.filed = max(0, l.filed-l.taken)
	l.taken, l.takenBytes = 0, 0
	l.bytes -= freed
	l.budget.add(-freed)
	if l.drained != nil {
		close(l.drained)
		l.drained = nil
	}
	l.retire()
}

// Back gives back what Take returned, to be taken again.
func (l *Lane) Back() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken, l.takenBytes = 0, 0
}

// Open lets a lane take items in again that Hold or Discard closed.
func (l *Lane) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.held, l.missed = false, nil, time.Time{}
}

// Hold empties the lane and keeps it so: its table is paused. Its safe position stays where it is until the log is read
// again from there.
func (l *Lane) Hold(last connector.Positions) {
	l.taking.Lock()
	defer l.taking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.held, l.closed, l.missed = l.safe(last), true, l.oldest()
	l.empty()
}

// Held reports whether Hold has closed the lane.
func (l *Lane) Held() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held != nil
}

// Discard empties the lane and keeps it so: its table is not applied, and needs nothing of the log.
func (l *Lane) Discard() {
	l.taking.Lock()
	defer l.taking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.held = true, nil
	l.empty()
}

func (l *Lane) empty() {
	l.budget.add(-l.bytes)
	l.items, l.taken, l.takenBytes, l.filed, l.bytes, l.before = nil, 0, 0, 0, 0, nil
	l.reader, l.cursor, l.again = nil, place{}, repeats{}
	l.ends, l.onDisk = map[string]Run{}, nil
	l.retire()
}

// Reset empties the lane, which goes on taking changes in: its table is copied anew.
func (l *Lane) Reset() {
	l.taking.Lock()
	defer l.taking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.empty()
}

// Oldest returns when the oldest change of the table was committed that is not durable in the sink, as far as the reader
// has come, by the source's clock, or a time somewhat before that; zero: there is none.
func (l *Lane) Oldest() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.oldest()
}

func (l *Lane) oldest() time.Time {
	if l.held != nil {
		return l.missed
	}
	for i := range l.items {
		if at := l.items[i].time(); !at.IsZero() {
			return at
		}
	}
	if l.unread() {
		return l.since
	}
	return time.Time{}
}

// Empty reports whether everything appended is durable in the sink.
func (l *Lane) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isEmpty()
}

func (l *Lane) isEmpty() bool { return len(l.items) == 0 && !l.unread() }

// Bytes returns the memory that the lane's frames take.
func (l *Lane) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// SpoolBytes returns what the lane takes on disk.
func (l *Lane) SpoolBytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spoolBytes()
}

func (l *Lane) spoolBytes() (n int64) {
	for _, seg := range l.segments {
		n += seg.size
	}
	return n
}

// Safe returns the position up to which all changes of the table are durable in the sink; last is the reader's newest
// Progress, loaded before the call.
func (l *Lane) Safe(last connector.Positions) connector.Positions {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.safe(last)
}

func (l *Lane) safe(last connector.Positions) connector.Positions {
	switch {
	case l.held != nil:
		return l.held
	case len(l.items) > 0:
		return l.items[0].Before
	case l.unread():
		return l.before
	default:
		return last
	}
}

// Durable returns the position up to which all changes of the table are durable in the sink or in the spool; last as for
// Safe. It may be before Safe: the larger of the two counts.
func (l *Lane) Durable(last connector.Positions) connector.Positions {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed, l.spool == nil:
		return l.safe(last)
	case l.syncing.any:
		return l.syncing.before
	case l.dirty.any:
		return l.dirty.before
	case len(l.items) > l.filed:
		return l.items[l.filed].Before
	default:
		return last
	}
}
