package mirror

import (
	"context"
	"sync"
)

// queue is a first-in, first-out queue of tables that holds each table once. It is as long as there are tables.
type queue struct {
	mu       sync.Mutex
	tables   []*table
	finished bool
	changed  chan struct{} // closed, and made anew, at each push and at finish
}

func newQueue() *queue { return &queue{changed: make(chan struct{})} }

// push adds a table, unless it is waiting already.
func (q *queue) push(t *table) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, waiting := range q.tables {
		if waiting == t {
			return
		}
	}
	q.tables = append(q.tables, t)
	q.wake()
}

// finish lets pop end once nothing waits.
func (q *queue) finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.finished = true
	q.wake()
}

func (q *queue) wake() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// pop waits for a table. It returns nil when the queue is finished and empty, or with the error of ctx.
func (q *queue) pop(ctx context.Context) (*table, error) {
	for {
		q.mu.Lock()
		var t *table
		if len(q.tables) > 0 {
			t, q.tables = q.tables[0], q.tables[1:]
		}
		finished, changed := q.finished, q.changed
		q.mu.Unlock()
		if t != nil || finished {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
