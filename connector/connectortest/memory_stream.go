package connectortest

import (
	"context"
	"errors"
	"slices"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// memoryStream implements connector.Stream. All of it is under the database's mu.
type memoryStream struct {
	source *MemorySource
	db     *Database

	from, cursor int64 // where it began; everything logged up to cursor is in queue or was handed out
	read         int   // records of db.log that are not after cursor
	started      bool  // Next was called
	selected     map[schema.ID]*schema.Table
	told         map[schema.ID]bool // an Unselected of it was queued
	queue        []connector.Event
	wantProgress bool
	dead         error
}

var _ connector.Rewound = (*memoryStream)(nil)

// Delivers is part of connector.Rewound.
func (st *memoryStream) Delivers() connector.Positions {
	return connector.Positions{"": positionOf(st.from)}
}

// Add publishes the table, if it is not published, and notes who must be waited for.
func (st *memoryStream) Add(ctx context.Context, t *schema.Table) (connector.Positions, error) {
	return guard(ctx, st.source.faults, memorySource, CallAdd, func() (connector.Positions, error) {
		db := st.db
		db.mu.Lock()
		defer db.mu.Unlock()
		if st.dead != nil {
			return nil, st.dead
		}
		mt := db.byID(t.ID)
		if mt == nil || mt.dropped {
			return nil, sourceError(connector.TableFault, "add", t.Name, errors.New("the table does not exist"))
		}
		since := db.lsn
		if published := mt.isPublished(db.lsn + 1); !published {
			db.lsn++ // the record of the change of the publication
			since = db.lsn
			mt.published = append(mt.published, span{from: since})
		} else if !st.started {
			since = max(st.from, mt.published[len(mt.published)-1].from)
		}
		st.selected[t.ID] = t
		mt.awaited = make(map[*Txn]bool)
		for _, tx := range db.holders(mt) {
			mt.awaited[tx] = true
		}
		db.announce()
		return connector.Positions{"": positionOf(since)}, nil
	})
}

// Drop takes the table out of the publication.
func (st *memoryStream) Drop(ctx context.Context, id schema.ID) error {
	_, err := guard(ctx, st.source.faults, memorySource, CallDrop, func() (struct{}, error) {
		st.db.mu.Lock()
		defer st.db.mu.Unlock()
		if st.dead != nil {
			return struct{}{}, st.dead
		}
		delete(st.selected, id)
		st.queue = slices.DeleteFunc(st.queue, func(e connector.Event) bool {
			f, ok := e.(*connector.Frames)
			return ok && f.Table.ID == id
		})
		if mt := st.db.byID(id); mt != nil {
			mt.unpublish(st.db.lsn)
		}
		return struct{}{}, nil
	})
	return err
}

func (mt *memoryTable) unpublish(lsn int64) {
	if n := len(mt.published); n > 0 && mt.published[n-1].to == 0 {
		mt.published[n-1].to = lsn
	}
}

// Next returns what the log has next, a Progress behind each run of transactions.
func (st *memoryStream) Next(ctx context.Context) (connector.Event, error) {
	event, err := guard(ctx, st.source.faults, memorySource, CallNext, func() (connector.Event, error) { return st.next(ctx) })
	if err != nil && ctx.Err() == nil {
		st.db.mu.Lock()
		defer st.db.mu.Unlock()
		if st.dead == nil {
			st.dead = err
		}
	}
	return event, err
}

func (st *memoryStream) next(ctx context.Context) (connector.Event, error) {
	for {
		event, changed, err := st.poll()
		if event != nil || err != nil {
			return event, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

// poll returns the next event, or what to wait for.
func (st *memoryStream) poll() (connector.Event, <-chan struct{}, error) {
	st.db.mu.Lock()
	defer st.db.mu.Unlock()
	if st.dead != nil {
		return nil, nil, st.dead
	}
	st.started = true
	if len(st.queue) == 0 {
		st.fill()
	}
	if len(st.queue) == 0 {
		return nil, st.db.changed, nil
	}
	event := st.queue[0]
	st.queue = st.queue[1:]
	return event, nil, nil
}

// fill queues the frames of the next transactions and the Progress behind them.
func (st *memoryStream) fill() {
	records := st.db.log[st.read:]
	for len(records) > 0 && records[0].lsn <= st.from {
		st.read++
		records = records[1:]
	}
	run := records[:min(len(records), st.db.RunCommits)]
	b := runBuilder{stream: st, open: make(map[schema.ID]*connector.Frames)}
	for _, r := range run {
		if r.newVersion != nil {
			b.schemaChange(r)
		} else {
			b.transaction(r)
		}
		st.cursor = r.lsn
		st.read++
	}
	b.flush()
	end := st.cursor
	if len(run) == len(records) {
		end = st.db.lsn // nothing that is logged is left
	}
	if end > st.cursor || len(run) > 0 || st.wantProgress {
		st.cursor = end
		st.wantProgress = st.wantProgress && len(run) < len(records)
		st.queue = append(st.queue, &connector.Progress{UpTo: connector.Positions{"": positionOf(end)}, Time: now()})
	}
}

// runBuilder makes Frames of transactions, one open per table.
type runBuilder struct {
	stream *memoryStream
	open   map[schema.ID]*connector.Frames
	order  []schema.ID
}

// transaction adds the changes of selected tables, pieces of at most PieceRows rows.
func (b *runBuilder) transaction(r *logRecord) {
	counts := make(map[schema.ID]int64)
	for _, c := range r.changes {
		id := c.table.ID
		b.unselected(c.table)
		if b.stream.selected[id] == nil || !b.stream.db.byID(id).isPublished(c.lsn) {
			continue
		}
		f := b.open[id]
		if f == nil {
			f = &connector.Frames{Table: c.table}
			b.open[id] = f
			b.order = append(b.order, id)
		}
		f.Data = appendMessage(f.Data, c)
		position := positionOf(r.lsn)
		if n := len(f.Commits); n > 0 && f.Commits[n-1].Position == position {
			f.Commits[n-1].Rows++
		} else {
			f.Commits = append(f.Commits, connector.Commit{Rows: 1, First: counts[id], Position: position, Tag: r.xid, Time: r.at})
		}
		counts[id]++
		if rowsIn(f) >= b.stream.db.PieceRows {
			b.close(id)
		}
	}
}

// unselected tells once of a table that was not added.
func (b *runBuilder) unselected(t *schema.Table) {
	st := b.stream
	if !st.db.PublishAll || st.selected[t.ID] != nil || st.told[t.ID] {
		return
	}
	st.told[t.ID] = true
	st.queue = append(st.queue, &connector.Unselected{ID: t.ID, Name: t.Name})
}

func rowsIn(f *connector.Frames) int {
	n := 0
	for _, c := range f.Commits {
		n += c.Rows
	}
	return n
}

func (b *runBuilder) schemaChange(r *logRecord) {
	delete(b.stream.told, r.newVersion.ID)
	known := b.stream.selected[r.newVersion.ID]
	if known == nil || known.Version >= r.newVersion.Version {
		return
	}
	b.close(r.newVersion.ID)
	b.stream.selected[r.newVersion.ID] = r.newVersion
	commit := connector.Commit{Position: positionOf(r.lsn), Tag: r.xid, Time: r.at}
	b.stream.queue = append(b.stream.queue, &connector.SchemaChange{Table: r.newVersion, Commit: commit})
}

// close queues the open Frames of a table.
func (b *runBuilder) close(id schema.ID) {
	if f := b.open[id]; f != nil {
		b.stream.queue = append(b.stream.queue, f)
		delete(b.open, id)
		b.order = slices.DeleteFunc(b.order, func(o schema.ID) bool { return o == id })
	}
}

func (b *runBuilder) flush() {
	for len(b.order) > 0 {
		b.close(b.order[0])
	}
}

// Ack lets the log go.
func (st *memoryStream) Ack(ctx context.Context, upTo connector.Positions) error {
	_, err := guard(ctx, st.source.faults, memorySource, CallAck, func() (struct{}, error) {
		st.db.mu.Lock()
		defer st.db.mu.Unlock()
		if st.dead != nil {
			return struct{}{}, st.dead
		}
		lsn, err := parsePosition(upTo[""])
		if err == nil && lsn > st.db.lsn {
			err = errors.New("the log does not reach so far")
		}
		if err != nil {
			return struct{}{}, sourceError(connector.Internal, "ack", schema.Name{}, err)
		}
		st.db.slot.acked = max(st.db.slot.acked, lsn)
		return struct{}{}, nil
	})
	return err
}

// Close ends the connection; the slot stays.
func (st *memoryStream) Close() error {
	st.db.mu.Lock()
	defer st.db.mu.Unlock()
	st.close()
	return nil
}

func (st *memoryStream) close() {
	st.dead = sourceError(connector.Unavailable, "next", schema.Name{}, errors.New("the stream is closed"))
	if st.db.slot != nil && st.db.slot.reader == st {
		st.db.slot.reader = nil
	}
	st.db.announce()
}
