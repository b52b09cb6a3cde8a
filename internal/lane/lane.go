// Package lane holds a table's changes between the reader and the appliers: a queue of undecoded frames in the order of
// the log. A lane belongs to one table; a Budget bounds the memory of all lanes of a mirror together.
package lane

import (
	"sync"

	"github.com/sluicehq/sluice/connector"
)

// Item is one entry of a lane: Frames, or the Change that follows the last frame of an older version of the table.
type Item struct {
	Frames *connector.Frames
	Change *connector.SchemaChange
	// Before is the Progress that the reader had seen last when it appended the item: everything the lane's table ever
	// changed up to there stands in front of the item.
	Before connector.Positions

	size int64
}

// Lane is the queue of one table. One reader appends to it, one applier at a time takes from it.
type Lane struct {
	budget *Budget

	mu     sync.Mutex
	items  []Item // not yet durable, in the order of the log; the first `taken` of them are with an applier
	taken  int
	bytes  int64
	closed bool                // takes nothing in
	held   connector.Positions // the safe position of a lane closed by Hold
}

// New returns an empty lane whose frames count against budget.
func New(budget *Budget) *Lane { return &Lane{budget: budget} }

// Append adds an item. It does not wait: the reader waits on the Budget before it reads on.
func (l *Lane) Append(it Item) {
	if it.Frames != nil {
		it.size = int64(len(it.Frames.Data)) + int64(len(it.Frames.Commits))*commitBytes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.items = append(l.items, it)
	l.bytes += it.size
	l.budget.add(it.size)
}

// commitBytes is about what one connector.Commit takes in memory, its position's text included.
const commitBytes = 136

// Take returns the oldest items that make up about so many row messages and bytes, at least one item: either frames of
// one version of the table, or one change of its schema alone. They stay in the lane until Done; Back leaves them there.
func (l *Lane) Take(rows int, bytes int64) []Item {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken > 0 || len(l.items) == 0 {
		return nil
	}
	n := 0
	var gotRows int
	var gotBytes int64
	for _, it := range l.items {
		if n > 0 && (it.Change != nil || it.Frames.Table.Version != l.items[0].Frames.Table.Version ||
			gotRows >= rows || gotBytes >= bytes) {
			break
		}
		n++
		if it.Change != nil {
			break
		}
		gotBytes += it.size
		for i := range it.Frames.Commits {
			gotRows += it.Frames.Commits[i].Rows
		}
	}
	l.taken = n
	return l.items[:n:n]
}

// Done removes what Take returned: it is durable in the sink, or was there already.
func (l *Lane) Done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	var freed int64
	for i := range l.items[:l.taken] {
		freed += l.items[i].size
		l.items[i] = Item{}
	}
	l.items = l.items[l.taken:]
	if len(l.items) == 0 {
		l.items = nil
	}
	l.taken = 0
	l.bytes -= freed
	l.budget.add(-freed)
}

// Back gives back what Take returned, to be taken again.
func (l *Lane) Back() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = 0
}

// Open lets a lane take items in again that Hold or Discard closed.
func (l *Lane) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.held = false, nil
}

// Hold empties the lane and keeps it so: its table is paused. Its safe position stays where it is until the log is read
// again from there.
func (l *Lane) Hold(last connector.Positions) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.held, l.closed = l.safe(last), true
	l.empty()
}

// Discard empties the lane and keeps it so: its table is not applied, and needs nothing of the log.
func (l *Lane) Discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.held = true, nil
	l.empty()
}

func (l *Lane) empty() {
	l.budget.add(-l.bytes)
	l.items, l.taken, l.bytes = nil, 0, 0
}

// Empty reports whether everything appended is durable in the sink.
func (l *Lane) Empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.items) == 0
}

// Bytes returns the memory that the lane's frames take.
func (l *Lane) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// Safe returns the position up to which all changes of the table are durable in the sink; last is the reader's newest
// Progress.
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
	default:
		return last
	}
}
