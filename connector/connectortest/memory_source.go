package connectortest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	memoryLog    = "memory" // the name of the one log of a Database
	memorySource = "source memory"
	positionHead = "mem/" // in front of each position's number
)

var (
	_ connector.Source = (*MemorySource)(nil)
	_ connector.Finder = (*MemorySource)(nil)
)

// MemorySource implements connector.Source over a [Database]. Several of them over one Database are the same
// process started again.
type MemorySource struct {
	Alloc memory.Allocator // of rows; set before use

	db     *Database
	faults *Faults
}

// NewMemorySource returns a source that reads db; faults may be nil.
func NewMemorySource(db *Database, faults *Faults) *MemorySource {
	if faults == nil {
		faults = new(Faults)
	}
	return &MemorySource{Alloc: memory.DefaultAllocator, db: db, faults: faults}
}

// Tables returns the tables that exist.
func (s *MemorySource) Tables(ctx context.Context) ([]*schema.Table, error) {
	return guard(ctx, s.faults, memorySource, CallTables, func() ([]*schema.Table, error) {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		var ts []*schema.Table
		for _, mt := range s.db.tables {
			if !mt.dropped {
				ts = append(ts, mt.current)
			}
		}
		return ts, nil
	})
}

// Stream connects to the slot, which it makes if from is nil, and ends the connection that had it.
func (s *MemorySource) Stream(ctx context.Context, log string, from connector.Positions) (connector.Stream, error) {
	return guard(ctx, s.faults, memorySource, CallStream, func() (connector.Stream, error) {
		if log != memoryLog {
			return nil, sourceError(connector.Internal, "stream", schema.Name{}, fmt.Errorf("log %q does not exist", log))
		}
		return s.db.connect(s, from)
	})
}

// connect makes a stream the reader of the slot.
func (db *Database) connect(s *MemorySource, from connector.Positions) (*memoryStream, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	start := db.lsn
	if from != nil {
		var err error
		if start, err = parsePosition(from[""]); err != nil || len(from) != 1 {
			return nil, sourceError(connector.Gap, "stream", schema.Name{}, otherHistory("positions %v are not of this log: %w", from, err))
		}
		switch {
		case db.slot == nil:
			return nil, sourceError(connector.Gap, "stream", schema.Name{}, errors.New("the slot is gone"))
		case start < db.slot.acked:
			return nil, sourceError(connector.Gap, "stream", schema.Name{}, fmt.Errorf("the log begins at %s, behind %s", positionOf(db.slot.acked), positionOf(start)))
		case start > db.lsn:
			return nil, sourceError(connector.Gap, "stream", schema.Name{}, otherHistory("the log ends at %s, before %s", positionOf(db.lsn), positionOf(start)))
		}
		if db.FromAck {
			start = db.slot.acked
		}
	} else {
		db.dropSlot()
		db.slot = &slot{acked: start}
	}
	if r := db.slot.reader; r != nil {
		r.dead = sourceError(connector.Unavailable, "next", schema.Name{}, errors.New("another connection took the slot"))
	}
	st := &memoryStream{source: s, db: db, from: start, cursor: start, selected: make(map[schema.ID]*schema.Table), told: make(map[schema.ID]bool), wantProgress: true}
	db.slot.reader = st
	db.announce()
	return st, nil
}

func otherHistory(format string, args ...any) error {
	return &connector.OtherHistoryError{Err: fmt.Errorf(format, args...)}
}

// dropSlot removes the slot and all tables from the publication. The caller holds mu.
func (db *Database) dropSlot() {
	if db.slot != nil && db.slot.reader != nil {
		db.slot.reader.dead = sourceError(connector.Unavailable, "next", schema.Name{}, errors.New("the slot was dropped"))
	}
	db.slot = nil
	for _, mt := range db.tables {
		mt.unpublish(db.lsn)
	}
}

// DropSlot removes what the server keeps for the source, as an administrator might.
func (db *Database) DropSlot() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.dropSlot()
	db.announce()
}

// Acked returns the position up to which the log may go, "" without a slot.
func (db *Database) Acked() connector.Position {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.slot == nil {
		return ""
	}
	return positionOf(db.slot.acked)
}

// Contains reads the token of [memorySnapshot].
func (s *MemorySource) Contains(token string, c connector.Commit) (bool, error) {
	v, err := parseVisible(token)
	if err != nil {
		return false, sourceError(connector.Internal, "contains", schema.Name{}, err)
	}
	return c.Tag < v.next && !slices.Contains(v.running, c.Tag), nil
}

// Compare orders two positions.
func (s *MemorySource) Compare(a, b connector.Position) (int, error) {
	x, errA := parsePosition(a)
	y, errB := parsePosition(b)
	if err := errors.Join(errA, errB); err != nil {
		return 0, sourceError(connector.Gap, "compare", schema.Name{}, &connector.OtherHistoryError{Err: err})
	}
	return int(x - y), nil
}

// Head returns the log's end and has the stream report it.
func (s *MemorySource) Head(ctx context.Context, _ string) (connector.Positions, error) {
	return guard(ctx, s.faults, memorySource, CallHead, func() (connector.Positions, error) {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		if s.db.slot != nil && s.db.slot.reader != nil {
			s.db.slot.reader.wantProgress = true
			s.db.announce()
		}
		return connector.Positions{"": positionOf(s.db.lsn)}, nil
	})
}

// Decoder returns a decoder for one version of a table.
func (s *MemorySource) Decoder(t *schema.Table) (connector.Decoder, error) {
	return &memoryDecoder{table: t, alloc: s.Alloc}, nil
}

// Close ends the source's stream.
func (s *MemorySource) Close() error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.db.slot != nil && s.db.slot.reader != nil && s.db.slot.reader.source == s {
		s.db.slot.reader.close()
	}
	return nil
}

func sourceError(kind connector.Kind, op string, table schema.Name, err error) *connector.Error {
	return &connector.Error{Kind: kind, System: memorySource, Op: op, Table: table, Err: err}
}

func positionOf(lsn int64) connector.Position {
	return connector.Position(positionHead + strconv.FormatInt(lsn, 10))
}

func parsePosition(p connector.Position) (int64, error) {
	text, ok := strings.CutPrefix(string(p), positionHead)
	n, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil || n < 0 {
		return 0, fmt.Errorf("position %q is not of the form mem/<number>", p)
	}
	return n, nil
}

// visible says which transactions a view holds: those before next that are not running. Rolled back ones count too.
type visible struct {
	next    uint64
	running []uint64
}

func (v visible) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:", v.next)
	for i, xid := range v.running {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, xid)
	}
	return b.String()
}

func parseVisible(s string) (visible, error) {
	next, running, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(next, 10, 64)
	if !ok || err != nil {
		return visible{}, fmt.Errorf("snapshot token %q is not of the form next:running,running", s)
	}
	v := visible{next: n}
	if running == "" {
		return v, nil
	}
	for text := range strings.SplitSeq(running, ",") {
		xid, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return visible{}, fmt.Errorf("snapshot token %q: %w", s, err)
		}
		v.running = append(v.running, xid)
	}
	return v, nil
}

// Find reads rows by their keys as they are visible now.
func (s *MemorySource) Find(ctx context.Context, t *schema.Table, keys arrow.RecordBatch) (*connector.Rows, error) {
	return guard(ctx, s.faults, memorySource, CallFind, func() (*connector.Rows, error) {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		mt := s.db.byID(t.ID)
		if mt == nil || mt.dropped || mt.current.Version != t.Version {
			return nil, sourceError(connector.ViewLost, "find", t.Name, errors.New("the table has another version now"))
		}
		b := NewRowsBuilder(s.Alloc, t)
		for i := range int(keys.NumRows()) {
			key := make(Row, keys.NumCols())
			for c := range key {
				key[c] = valueText(keys.Column(c), i)
			}
			row := mt.rows[keyText(key)]
			if row == nil {
				continue
			}
			if err := b.Append(connector.Insert, row); err != nil {
				b.Release()
				return nil, sourceError(connector.TableFault, "find", t.Name, err)
			}
		}
		rows := b.Rows()
		rows.Ops = nil
		return rows, nil
	})
}
