package connectortest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// memorySnapshot implements connector.Snapshot: the rows that were visible, and the transactions they came from.
type memorySnapshot struct {
	source  *MemorySource
	table   *schema.Table
	visible visible
	rows    []Row // in key order
	file    int
}

// Snapshot waits for the transactions that held a write lock on t when it was added last.
func (s *MemorySource) Snapshot(ctx context.Context, t *schema.Table) (connector.Snapshot, error) {
	return guard(ctx, s.faults, memorySource, CallSnapshot, func() (connector.Snapshot, error) {
		for {
			snap, holders, changed, err := s.trySnapshot(t)
			if snap != nil || err != nil {
				return snap, err
			}
			if s.db.OnWait != nil {
				s.db.OnWait(t.Name, holders)
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil, sourceError(connector.Conflict, "snapshot", t.Name, waitError(holders, ctx.Err()))
			}
		}
	})
}

func waitError(holders []*Txn, cause error) error {
	var ids []uint64
	for _, tx := range holders {
		ids = append(ids, tx.xid)
	}
	return fmt.Errorf("waiting for transactions %v, which have written the table: %w", ids, cause)
}

// trySnapshot takes the snapshot, or returns whom to wait for and what tells of a change.
func (s *MemorySource) trySnapshot(t *schema.Table) (connector.Snapshot, []*Txn, <-chan struct{}, error) {
	db := s.db
	db.mu.Lock()
	defer db.mu.Unlock()
	mt := db.byID(t.ID)
	if mt == nil || mt.dropped || mt.current.Version != t.Version {
		return nil, nil, nil, sourceError(connector.ViewLost, "snapshot", t.Name, errors.New("the table has another version now"))
	}
	var awaited []*Txn
	for tx := range mt.awaited {
		awaited = append(awaited, tx)
	}
	slices.SortFunc(awaited, func(a, b *Txn) int { return int(a.xid) - int(b.xid) })
	if len(awaited) > 0 {
		return nil, awaited, db.changed, nil
	}
	snap := &memorySnapshot{source: s, table: t, rows: mt.sorted(), file: mt.file, visible: visible{next: db.xid + 1}}
	for tx := range db.running {
		snap.visible.running = append(snap.visible.running, tx.xid)
	}
	slices.Sort(snap.visible.running)
	return snap, nil, nil, nil
}

// Token returns which transactions the view holds.
func (sn *memorySnapshot) Token() string { return sn.visible.String() }

// Layout changes with each TRUNCATE and each version of the table.
func (sn *memorySnapshot) Layout() string {
	if len(sn.table.Key) == 0 {
		return ""
	}
	return fmt.Sprintf("file %d, version %d", sn.file, sn.table.Version)
}

// chunkBounds is a Chunk's Spec: the rows with From < key <= To, nil is open. Without a key, First and Last number rows of
// one view.
type chunkBounds struct {
	From, To    Row `json:",omitempty"`
	First, Last int `json:",omitempty"`
}

// Chunks cuts the view into at least ChunksAtMin pieces, if it has as many rows.
func (sn *memorySnapshot) Chunks(ctx context.Context, rows int64) ([]connector.Chunk, error) {
	return guard(ctx, sn.source.faults, memorySource, CallChunks, func() ([]connector.Chunk, error) {
		size := max(1, min(int(rows), (len(sn.rows)+sn.source.db.ChunksAtMin-1)/sn.source.db.ChunksAtMin))
		var chunks []connector.Chunk
		var last Row
		for first := 0; first < len(sn.rows) || first == 0; first += size {
			end := min(first+size, len(sn.rows))
			bounds := chunkBounds{First: first, Last: end}
			if len(sn.table.Key) > 0 {
				bounds = chunkBounds{From: last}
				if end < len(sn.rows) {
					last = keyOf(sn.table, sn.rows[end-1])
					bounds.To = last
				}
			}
			spec, err := json.Marshal(bounds)
			if err != nil {
				return nil, sourceError(connector.Internal, "chunks", sn.table.Name, err)
			}
			chunks = append(chunks, connector.Chunk{ID: len(chunks), Rows: int64(end - first), Spec: string(spec)})
		}
		return chunks, nil
	})
}

// Read opens a chunk; for a table with a key, also one of another view.
func (sn *memorySnapshot) Read(ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
	return guard(ctx, sn.source.faults, memorySource, CallRead, func() (connector.RowReader, error) {
		if err := sn.check(); err != nil {
			return nil, err
		}
		var bounds chunkBounds
		if err := json.Unmarshal([]byte(c.Spec), &bounds); err != nil {
			return nil, sourceError(connector.Internal, "read", sn.table.Name, fmt.Errorf("chunk %d: %w", c.ID, err))
		}
		if len(sn.table.Key) == 0 {
			if bounds.Last > len(sn.rows) {
				return nil, sourceError(connector.ViewLost, "read", sn.table.Name, fmt.Errorf("chunk %d is of another view", c.ID))
			}
			return &memoryReader{snapshot: sn, rows: sn.rows[bounds.First:bounds.Last]}, nil
		}
		if c.After != "" {
			if err := json.Unmarshal([]byte(c.After), &bounds.From); err != nil {
				return nil, sourceError(connector.Internal, "read", sn.table.Name, fmt.Errorf("chunk %d: %w", c.ID, err))
			}
		}
		return &memoryReader{snapshot: sn, rows: sn.between(bounds), cursor: c.After}, nil
	})
}

func (sn *memorySnapshot) between(b chunkBounds) []Row {
	var rows []Row
	for _, row := range sn.rows {
		key := keyOf(sn.table, row)
		if (b.From == nil || compareKeys(sn.table, key, b.From) > 0) && (b.To == nil || compareKeys(sn.table, key, b.To) <= 0) {
			rows = append(rows, row)
		}
	}
	return rows
}

// check proves that the table is still the one of the view.
func (sn *memorySnapshot) check() error {
	db := sn.source.db
	db.mu.Lock()
	defer db.mu.Unlock()
	mt := db.byID(sn.table.ID)
	if mt.dropped || mt.file != sn.file || mt.current.Version != sn.table.Version {
		return sourceError(connector.ViewLost, "read", sn.table.Name, errors.New("the table was truncated, altered or dropped"))
	}
	return nil
}

// Close gives the view back.
func (sn *memorySnapshot) Close() error { return nil }

// memoryReader implements connector.RowReader.
type memoryReader struct {
	snapshot *memorySnapshot
	rows     []Row
	cursor   string
}

// Next returns at most BatchRows rows. After the last it proves that they were all.
func (r *memoryReader) Next(ctx context.Context) (*connector.Rows, error) {
	sn := r.snapshot
	return guard(ctx, sn.source.faults, memorySource, CallReadNext, func() (*connector.Rows, error) {
		if len(r.rows) == 0 {
			if err := sn.check(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}
		n := min(len(r.rows), sn.source.db.BatchRows)
		b := NewRowsBuilder(sn.source.Alloc, sn.table)
		for _, row := range r.rows[:n] {
			if err := b.Append(connector.Insert, row); err != nil {
				b.Release()
				return nil, sourceError(connector.TableFault, "read", sn.table.Name, err)
			}
		}
		if len(sn.table.Key) > 0 {
			cursor, err := json.Marshal(keyOf(sn.table, r.rows[n-1]))
			if err != nil {
				b.Release()
				return nil, sourceError(connector.Internal, "read", sn.table.Name, err)
			}
			r.cursor = string(cursor)
		}
		r.rows = r.rows[n:]
		rows := b.Rows()
		rows.Ops = nil
		return rows, nil
	})
}

// Cursor returns the last key returned.
func (r *memoryReader) Cursor() string { return r.cursor }

// Close ends the reading.
func (r *memoryReader) Close() error { return nil }
