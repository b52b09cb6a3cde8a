package lane

import (
	"context"
	"sync"
)

// Budget bounds the memory of a mirror's lanes. The reader waits on it before it reads on, so a lane may go beyond it by
// what one event of the stream holds.
type Budget struct {
	max int64 // bytes

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed, and made anew, whenever use falls below max
}

// NewBudget returns a budget of so many bytes.
func NewBudget(max int64) *Budget { return &Budget{max: max, freed: make(chan struct{})} }

func (b *Budget) add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.used
	b.used += n
	if was >= b.max && b.used < b.max {
		close(b.freed)
		b.freed = make(chan struct{})
	}
}

func (b *Budget) full() bool { return !b.fits(1) }

// fits reports whether so many bytes more stay within the budget.
func (b *Budget) fits(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used+n <= b.max
}

// Wait returns when there is room, or with the error of ctx.
func (b *Budget) Wait(ctx context.Context) error {
	for {
		b.mu.Lock()
		full, freed := b.used >= b.max, b.freed
		b.mu.Unlock()
		if !full {
			return ctx.Err()
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
