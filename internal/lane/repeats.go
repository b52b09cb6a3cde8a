package lane

import (
	"encoding/binary"
	"errors"

	"github.com/sluicehq/sluice/connector"
)

// Compare orders two positions of one part of the log, as connector.Source does.
type Compare func(a, b connector.Position) (int, error)

// repeats leaves out what a log delivers again that the spool holds already.
type repeats struct {
	compare Compare
	ends    map[string]Run // by part: what the spool ends with; a part goes when something behind it has come
	meet    map[string]bool
}

// ErrDiverged says that the log is not the one that the spool was written from.
var ErrDiverged = errors.New("the log does not hold the transaction that the spool ends with: the source was restored or failed over to another history")

var errFrames = errors.New("frames do not hold as many row messages as their commits cover")

// expect prepares for a log that is delivered from start on, to be put behind what ends with ends. A transaction at
// which a part of the spool ends must come again if the log begins in front of it.
func (r *repeats) expect(start connector.Positions, ends map[string]Run, compare Compare) error {
	*r = repeats{compare: compare, ends: map[string]Run{}, meet: map[string]bool{}}
	for part, end := range ends {
		r.ends[part] = end
		if at, ok := start[part]; ok {
			order, err := compare(at, end.Position)
			if err != nil {
				return err
			}
			r.meet[part] = order < 0
		}
	}
	return nil
}

// cut takes out of an item what is there already. It reports whether anything is left.
func (r *repeats) cut(it *Item) (bool, error) {
	if len(r.ends) == 0 {
		return true, nil
	}
	if it.Change != nil {
		return r.newChange(it.Change)
	}
	f := &connector.Frames{Table: it.Frames.Table}
	data := it.Frames.Data
	for _, run := range it.Frames.Commits {
		skip, err := r.covered(run)
		if err != nil {
			return false, err
		}
		skipped, err := messagesLen(data, skip)
		if err != nil {
			return false, err
		}
		kept, err := messagesLen(data[skipped:], run.Rows-skip)
		if err != nil {
			return false, err
		}
		if run.Rows > skip {
			run.First += int64(skip)
			run.Rows -= skip
			f.Commits = append(f.Commits, run)
			f.Data = append(f.Data, data[skipped:skipped+kept]...)
		}
		data = data[skipped+kept:]
	}
	it.Frames = f
	return len(f.Commits) > 0, nil
}

// newChange reports whether a change of the schema may not be there yet. One within the transaction at which the spool
// ends may come twice, which does no harm.
func (r *repeats) newChange(c *connector.SchemaChange) (bool, error) {
	end, ok := r.ends[c.Commit.Part]
	if !ok || c.Commit.Position == "" {
		return true, nil
	}
	order, err := r.compare(c.Commit.Position, end.Position)
	return order >= 0, err
}

// covered returns how many row messages of a run are there.
func (r *repeats) covered(run connector.Commit) (int, error) {
	end, ok := r.ends[run.Part]
	if !ok {
		return 0, nil
	}
	order, err := r.compare(run.Position, end.Position)
	switch {
	case err != nil:
		return 0, err
	case order < 0:
		return run.Rows, nil
	case order == 0 && (run.Tag != end.Tag || !run.Time.Equal(end.Time)):
		return 0, ErrDiverged
	case order == 0:
		r.meet[run.Part] = false
		return int(min(max(end.Count-run.First, 0), int64(run.Rows))), nil
	case r.meet[run.Part]:
		return 0, ErrDiverged
	}
	return 0, nil
}

// settle forgets the parts in which the item, which is in the lane now, goes on behind the spool's end.
func (r *repeats) settle(it *Item) error {
	if len(r.ends) == 0 || it.Frames == nil {
		return nil
	}
	for _, run := range it.Frames.Commits {
		end, ok := r.ends[run.Part]
		if !ok {
			continue
		}
		order, err := r.compare(run.Position, end.Position)
		if err != nil {
			return err
		}
		if order > 0 {
			delete(r.ends, run.Part)
		}
	}
	return nil
}

// messagesLen returns the length of the first n row messages in data, their length fields included.
func messagesLen(data []byte, n int) (int, error) {
	at := 0
	for range n {
		if len(data)-at < 4 {
			return 0, errFrames
		}
		size := int(binary.BigEndian.Uint32(data[at:]))
		if size > len(data)-at-4 {
			return 0, errFrames
		}
		at += 4 + size
	}
	return at, nil
}
