package apply

import (
	"context"
	"errors"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
)

// LeftOut is the rows of a piece of a copy that the sink refuses.
type LeftOut struct {
	quarantine *Quarantine
	copy       int
	rows       moves
}

// NewLeftOut returns those of a piece of a copy of which no row has been refused yet.
func NewLeftOut(q *Quarantine, copy int) *LeftOut {
	return &LeftOut{quarantine: q, copy: copy, rows: moves{}}
}

// Len returns how many they are.
func (l *LeftOut) Len() int { return len(l.rows) }

// Entries returns what is to be committed with the rest of the piece.
func (l *LeftOut) Entries() map[string]string {
	entries := map[string]string{}
	for id, q := range l.rows {
		entries[quarantineKey(l.quarantine.id, id)] = q.text()
	}
	return entries
}

// Without returns rows without those that are left out, for the caller to release.
func (l *LeftOut) Without(ctx context.Context, alloc memory.Allocator, rows *connector.Rows) (*connector.Rows, error) {
	if len(l.rows) == 0 {
		rows.Values.Retain()
		return rows, nil
	}
	var left []int32
	for i := range int32(rows.Len()) {
		if l.rows[rowID(rows.Values, rows.Table.Key, int(i))] == nil {
			left = append(left, i)
		}
	}
	return pick(ctx, alloc, rows, left)
}

// Add leaves out the row that Load has refused with err, if it may go into quarantine. It returns err, or why not.
func (l *LeftOut) Add(rows *connector.Rows, err error) error {
	e, ok := errors.AsType[*connector.Error](err)
	if !ok || e.Kind != connector.BadRow || !l.quarantine.Takes() || e.Row < 0 || e.Row >= rows.Len() {
		return err
	}
	if l.quarantine.Len()+len(l.rows) >= maxQuarantined {
		return full(err)
	}
	q, cannot := describeRow(rows, rows.Table.Key, e.Row)
	if cannot != nil {
		return errors.Join(err, cannot)
	}
	q.ID, q.Table, q.Copy, q.Op, q.Attempts = rowID(rows.Values, rows.Table.Key, e.Row), rows.Table.Name.String(), l.copy, "copy", 1
	q.Since, q.Reason = time.Now(), cut(err.Error(), maxReasonBytes)
	l.rows[q.ID] = q
	return err
}
