package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
)

// sieve keeps the rows in quarantine out of a batch: it decides, change by change in order, what is written and what goes
// into the quarantine or leaves it.
type sieve struct {
	rows *connector.Rows
	key  []int
	copy int
	held map[string]held // before the rows
	moves
	bad  map[int32]error  // by row: why the sink refuses it
	last connector.Commit // of rows without commits: the batch's last

	commits []int // by row, its place in rows.Commits; nil without
	from    []int32
	ops     []connector.Op
}

// moves is what becomes of a table's quarantine, by Quarantined.ID; nil: the row leaves it.
type moves map[string]*Quarantined

// errUnsentOfHeld is why a change is in quarantine that the sink was not asked about.
var errUnsentOfHeld = errors.New("an earlier change of the row is in quarantine, and this one leaves out values that did not change")

func newSieve(rows *connector.Rows, key []int, copy int, held map[string]held, bad map[int32]error) *sieve {
	s := &sieve{rows: rows, key: key, copy: copy, held: held, moves: moves{}, bad: bad}
	for n, c := range rows.Commits {
		for range c.Rows {
			s.commits = append(s.commits, n)
		}
	}
	return s
}

// run passes all rows.
func (s *sieve) run() error {
	for i := range int32(s.rows.Len()) {
		if err := s.row(i); err != nil {
			return err
		}
	}
	return nil
}

func (s *sieve) row(i int32) error {
	switch op := s.rows.Op(int(i)); op {
	case connector.Before: // with the update behind it
		return nil
	case connector.Truncate:
		if s.bad[i] != nil {
			return s.bad[i]
		}
		clear(s.moves)
		for id := range s.held {
			s.moves[id] = nil
		}
		s.keep(i, op)
		return nil
	case connector.Delete:
		return s.remove(i)
	case connector.Update:
		if i > 0 && s.rows.Op(int(i-1)) == connector.Before && s.id(i-1) != s.id(i) {
			return s.move(i-1, i)
		}
	}
	id := s.id(i)
	if why := s.refusal(i, id); why != nil {
		return s.put(id, i, why)
	}
	if i > 0 && s.rows.Op(int(i-1)) == connector.Before { // with the same key
		s.keep(i-1, connector.Before)
	}
	s.keep(i, s.rows.Op(int(i)))
	s.leave(id)
	return nil
}

// refusal returns why a row cannot be written whose unsent values are in the row stored under the key id; nil: it can.
func (s *sieve) refusal(i int32, id string) error {
	if why := s.bad[i]; why != nil {
		return why
	}
	if s.has(id) && s.partial(i) {
		return errUnsentOfHeld
	}
	return nil
}

// remove passes the delete that row i is, or stands for.
func (s *sieve) remove(i int32) error {
	id := s.id(i)
	if why := s.bad[i]; why != nil {
		return s.put(id, i, why)
	}
	s.keep(i, connector.Delete)
	s.leave(id)
	return nil
}

// move passes an update that moves its row to another key.
func (s *sieve) move(before, i int32) error {
	why := s.refusal(i, s.id(before))
	if why == nil && s.bad[before] != nil && s.partial(i) {
		why = s.bad[before]
	}
	switch {
	case why != nil:
		if err := s.remove(before); err != nil {
			return err
		}
		return s.put(s.id(i), i, why)
	case s.bad[before] != nil: // the old row stays, the new one needs nothing of it
		if err := s.remove(before); err != nil {
			return err
		}
		s.keep(i, connector.Insert)
	default:
		s.keep(before, connector.Before)
		s.keep(i, connector.Update)
		s.leave(s.id(before))
	}
	s.leave(s.id(i))
	return nil
}

func (s *sieve) id(i int32) string { return rowID(s.rows.Values, s.key, int(i)) }

func (s *sieve) partial(i int32) bool {
	for c := range s.rows.Unsent {
		if s.rows.IsUnsent(c, int(i)) {
			return true
		}
	}
	return false
}

func (s *sieve) keep(i int32, op connector.Op) { s.from, s.ops = append(s.from, i), append(s.ops, op) }

// has reports whether a row is in quarantine at this point of the batch.
func (s *sieve) has(id string) bool {
	if q, moved := s.moves[id]; moved {
		return q != nil
	}
	_, was := s.held[id]
	return was
}

func (s *sieve) leave(id string) {
	if _, was := s.held[id]; was {
		s.moves[id] = nil
	} else {
		delete(s.moves, id)
	}
}

// put has row i in quarantine.
func (s *sieve) put(id string, i int32, why error) error {
	q, err := describeRow(s.rows, s.key, int(i))
	if err != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	commit := s.last
	if s.commits != nil {
		commit = s.rows.Commits[s.commits[i]]
	}
	q.ID, q.Table, q.Copy, q.Op = id, s.rows.Table.Name.String(), s.copy, opName(s.rows.Op(int(i)))
	q.Position, q.Committed, q.Since = commit.Position, commit.Time, commit.Time
	q.Reason = cut(why.Error(), maxReasonBytes)
	if earlier, moved := s.moves[id]; earlier != nil {
		q.Since, q.Attempts = earlier.Since, earlier.Attempts
	} else if was, held := s.held[id]; held && !moved {
		q.Since, q.Attempts = was.since, was.attempts
	}
	if s.bad[i] != nil {
		q.Attempts++
	}
	s.moves[id] = q
	if s.count() > maxQuarantined {
		return full(why)
	}
	return nil
}

// count returns how many rows are in quarantine at this point.
func (s *sieve) count() int {
	n := len(s.held)
	for id, q := range s.moves {
		_, was := s.held[id]
		switch {
		case was && q == nil:
			n--
		case !was && q != nil:
			n++
		}
	}
	return n
}

func opName(op connector.Op) string {
	switch op {
	case connector.Insert:
		return "insert"
	case connector.Update:
		return "update"
	default: // a Before row stands for the delete of the old key
		return "delete"
	}
}

// result returns the rows that are written; the caller releases them beside the rows that were passed.
func (s *sieve) result(ctx context.Context, alloc memory.Allocator) (*connector.Rows, error) {
	if len(s.from) == s.rows.Len() && (s.rows.Ops == nil || slices.Equal(s.ops, s.rows.Ops)) {
		same := *s.rows
		same.Values.Retain()
		return &same, nil
	}
	out, err := pick(ctx, alloc, s.rows, s.from)
	if err != nil {
		return nil, err
	}
	out.Ops = s.ops
	for r, i := range s.from {
		if s.rows.Deleted != nil {
			out.Deleted = append(out.Deleted, s.rows.Deleted[i])
		}
		if s.commits == nil {
			continue
		}
		if r == 0 || s.commits[i] != s.commits[s.from[r-1]] {
			c := s.rows.Commits[s.commits[i]]
			c.Rows = 0
			out.Commits = append(out.Commits, c)
		}
		out.Commits[len(out.Commits)-1].Rows++
	}
	return out, nil
}
