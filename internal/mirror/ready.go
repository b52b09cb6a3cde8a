package mirror

import (
	"context"
	"slices"
	"sync"
	"time"
)

// slowBatch is how long a table's batches take, on average, that make it slow: several times what a full batch takes
// where nothing stands in its way.
const slowBatch = 500 * time.Millisecond

// readyQueue holds the tables with changes to apply, each once. The one whose oldest change waits longest is taken first.
// Slow tables together never get more than half of the appliers, however long they wait, so that a quick one finds an
// applier within the time of a quick batch. Who is slow is measured by each batch anew.
type readyQueue struct {
	appliers int

	mu       sync.Mutex
	waiting  []waiting // in the order in which they came
	running  map[*table]time.Time
	finished bool
	changed  chan struct{} // closed, and made anew, when there may be something to take, and at finish
}

// waiting is a table in the queue, with the time of its oldest change, by the source's clock; zero if that is not known.
type waiting struct {
	table  *table
	oldest time.Time
}

func newReadyQueue(appliers int) *readyQueue {
	return &readyQueue{appliers: appliers, running: map[*table]time.Time{}, changed: make(chan struct{})}
}

// push adds a table that is neither waiting nor with an applier. It has changes, the oldest of that time.
func (q *readyQueue) push(t *table, oldest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, waiting{t, oldest})
	q.wake()
}

// done takes back a table that was popped: its batch has ended.
func (q *readyQueue) done(t *table) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.batchTime = (t.batchTime + time.Since(q.running[t])) / 2
	delete(q.running, t)
	q.wake()
}

// finish lets pop end once nothing waits.
func (q *readyQueue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finished = true
	q.wake()
}

func (q *readyQueue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// pop waits for a table that an applier may have; done ends that. It returns nil when the queue is finished and empty, or
// with the error of ctx.
func (q *readyQueue) pop(ctx context.Context) (*table, error) {
	for {
		q.mu.Lock()
		t := q.next()
		ended, changed := q.finished && len(q.waiting) == 0, q.changed
		q.mu.Unlock()
		if t != nil || ended {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// popAll waits for tables and returns those that wait then, at most so many. It is for the appliers' one goroutine where
// the sink has one writer: each table then writes for a short time only, so none is slow.
func (q *readyQueue) popAll(ctx context.Context, most int) ([]*table, error) {
	for {
		q.mu.Lock()
		slices.SortStableFunc(q.waiting, func(a, b waiting) int { return a.oldest.Compare(b.oldest) })
		n := min(len(q.waiting), most)
		ts := make([]*table, n)
		for i, w := range q.waiting[:n] {
			ts[i] = w.table
		}
		q.waiting = slices.Delete(q.waiting, 0, n)
		finished, changed := q.finished, q.changed
		q.mu.Unlock()
		if n > 0 || finished {
			return ts, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// next takes out the table that is to be applied next, nil if there is none. The caller holds mu.
func (q *readyQueue) next() *table {
	slowAllowed := q.slowRunning() < max(q.appliers/2, 1)
	best := -1
	for i, w := range q.waiting {
		if (slowAllowed || !q.slow(w.table)) && (best < 0 || w.oldest.Before(q.waiting[best].oldest)) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	t := q.waiting[best].table
	q.waiting = slices.Delete(q.waiting, best, best+1)
	q.running[t] = time.Now()
	return t
}

func (q *readyQueue) slow(t *table) bool { return t.batchTime >= slowBatch }

// slowRunning counts the slow tables that appliers have, and those whose batch shows by now that they are slow.
func (q *readyQueue) slowRunning() (n int) {
	for t, since := range q.running {
		if q.slow(t) || time.Since(since) >= slowBatch {
			n++
		}
	}
	return n
}
