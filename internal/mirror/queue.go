package mirror

import (
	"context"
	"sync"
)

// queue is a first-in, first-out queue of tables that holds each table once. It is as long as there are tables.
type queue struct {
	mu      sync.Mutex
	tables  []*table
	changed chan struct{} // closed, and made anew, at each push
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
	close(q.changed)
	q.changed = make(chan struct{})
}

// pop waits for a table. The error is that of ctx.
func (q *queue) pop(ctx context.Context) (*table, error) {
	for {
		q.mu.Lock()
		var t *table
		if len(q.tables) > 0 {
			t, q.tables = q.tables[0], q.tables[1:]
		}
		changed := q.changed
		q.mu.Unlock()
		if t != nil {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
