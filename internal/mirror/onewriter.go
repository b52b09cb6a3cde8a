package mirror

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/schema"
)

// A sink with one writer makes its tables wait for each other, so no transaction may take long, and a commit, which waits
// for the disk, should serve many of them. Batches that wait at one time are written together, in transactions of bounded
// time; and a table is copied in chunks that are small, read before the transaction begins.
const (
	// writeTime is how long a transaction writes, about. A table waits for one of changes and one of a copy at most before
	// it has its turn: so its changes are there within a second though others are written without a pause.
	writeTime = 200 * time.Millisecond
	// groupTables is how many tables' batches are prepared at once.
	groupTables = 256
	// leastRows is how many rows a table's batch may have at least, however many tables wait.
	leastRows = 100
	// firstRows is how many rows a table's batch may have before it is known how long they take; each one that takes less
	// than half of writeTime doubles that.
	firstRows = 500
	// apartTime is how long a table's batches are written by themselves after one of them made a common transaction fail.
	apartTime = 10 * time.Second
	// smallChunkRows and smallChunkBytes bound a chunk, by the source's estimates: SQLite writes either in about 100 ms.
	smallChunkRows  = 20_000
	smallChunkBytes = 4 << 20
	// aheadBytes is how much of a chunk is read before its transaction begins. One that is larger than estimated is read
	// on in the transaction.
	aheadBytes = 2 * smallChunkBytes
)

func (s *session) oneWriter() bool { return s.sink.Traits().Writers == 1 }

// applyTogether applies the batches of all tables until the queue is finished and empty.
func (s *session) applyTogether(ctx context.Context) error {
	aside, working := errgroup.WithContext(ctx)
	aside.SetLimit(s.Limits.Appliers)
	g := grouper{session: s, aside: aside}
	err := g.run(working)
	if asideErr := aside.Wait(); asideErr != nil {
		return asideErr
	}
	if err != nil {
		return err
	}
	return s.applyAll(ctx) // what tables have left that were aside when the queue was empty
}

// grouper writes batches of several tables in one transaction. What may take long and is one table's affair goes aside.
type grouper struct {
	*session
	aside *errgroup.Group
}

// member is a table of a group with its batch.
type member struct {
	table *table
	batch *apply.Batch
	begun time.Time // taken from the lane
}

func (g *grouper) run(ctx context.Context) error {
	for {
		ts, err := g.ready.popAll(ctx, groupTables)
		if err != nil || len(ts) == 0 {
			return ended(err)
		}
		group, err := g.prepare(ctx, ts)
		for err == nil && len(group) > 0 {
			group, err = g.write(ctx, group)
		}
		if err != nil {
			for _, m := range group {
				m.batch.Release()
			}
			return err
		}
	}
}

// prepare takes a batch of each table. Each may have half of what is left of one full batch, and the last one the rest;
// so all have their turn, the one that waits longest gets most, and memory is bounded.
func (g *grouper) prepare(ctx context.Context, ts []*table) (group []member, err error) {
	rows, bytes := g.Limits.BatchRows, g.Limits.BatchBytes
	until := time.Now().Add(g.Limits.BatchAge)
	for i, t := range ts {
		left := time.Until(until)
		if left <= 0 && i > 0 { // the others come in the next group
			if err := g.giveBack(t, nil); err != nil {
				return group, err
			}
			continue
		}
		share, size := rows, bytes
		if i < len(ts)-1 {
			share, size = rows/2, bytes/2
		}
		share, size = max(share, min(leastRows, g.Limits.BatchRows)), max(size, g.Limits.BatchBytes/groupTables)
		m, err := g.prepareOne(ctx, t, t.atMost(share), size, left)
		if err != nil {
			return group, err
		}
		if m == nil {
			continue
		}
		rows, bytes = rows-int(m.batch.Messages), bytes-m.batch.Bytes
		group = append(group, *m)
	}
	return group, nil
}

// prepareOne takes one table's batch; nil: it has none to be written with those of others.
func (g *grouper) prepareOne(ctx context.Context, t *table, rows int, bytes int64, age time.Duration) (*member, error) {
	if t.isHalted() {
		return nil, g.giveBack(t, nil)
	}
	if why := g.doomedFor(t); why != nil {
		g.do(t, func() error { return g.giveUp(ctx, t, why) })
		return nil, nil
	}
	if t.apply.Converges() {
		rows = min(rows, convergingRows)
	}
	items, err := t.lane.Take(t.apply.MostRows(rows), bytes, age)
	if err != nil || !applicable(items) {
		g.do(t, func() error { return g.attend(ctx, t, items, err) })
		return nil, nil
	}
	if t.apply.MayRead() {
		g.do(t, func() error { return g.applyItems(ctx, t, items) })
		return nil, nil
	}
	begun := time.Now()
	batch, err := t.apply.Prepare(ctx, framesOf(items))
	switch {
	case err != nil:
		g.do(t, func() error { return g.applied(ctx, t, nil, begun, err) })
	case batch == nil:
		return nil, g.giveBack(t, g.applied(ctx, t, nil, begun, nil))
	case t.isApart():
		g.writeAlone(ctx, member{t, batch, begun})
	default:
		return &member{t, batch, begun}, nil
	}
	return nil, nil
}

// do does aside what a table needs, waiting while too many are aside already.
func (g *grouper) do(t *table, f func() error) {
	g.aside.Go(func() error { return g.giveBack(t, f()) })
}

// writeAlone writes one table's batch in a transaction of its own.
func (g *grouper) writeAlone(ctx context.Context, m member) {
	g.do(m.table, func() error {
		defer m.batch.Release()
		return g.applied(ctx, m.table, m.batch, m.begun, m.batch.Apply(ctx))
	})
}

// write writes the first batches of a group in one transaction, as many as there is time for, and returns the others. If
// it fails each of its batches is written again by itself, so that a table's fault is its own.
func (g *grouper) write(ctx context.Context, group []member) ([]member, error) {
	tx, err := g.sink.Begin(ctx)
	if err != nil {
		return group, err
	}
	n, entries, err := g.fill(ctx, tx, group)
	if err != nil {
		if ofOneTable(err) {
			group[n-1].table.setApart()
		}
		err = errors.Join(err, tx.Rollback())
	} else {
		err = tx.Commit(ctx, entries)
	}
	if err != nil && (ctx.Err() != nil || !ofOneTable(err)) {
		return group, err
	}
	for i, m := range group[:n] {
		if err != nil {
			g.writeAlone(ctx, m)
			continue
		}
		m.batch.Committed()
		m.batch.Release()
		if err := g.giveBack(m.table, g.applied(ctx, m.table, m.batch, m.begun, nil)); err != nil {
			return group[i+1:], err
		}
	}
	return group[n:], nil
}

// fill writes batches until the time is over. It returns how many it has begun to write, and what accounts for them.
func (g *grouper) fill(ctx context.Context, tx connector.Tx, group []member) (n int, entries map[string]string, err error) {
	entries = map[string]string{}
	began := time.Now()
	for before := began; n < len(group) && (n == 0 || before.Sub(began) < writeTime); {
		m := group[n]
		n++
		if err := m.batch.Write(ctx, tx); err != nil {
			return n, nil, err
		}
		now := time.Now()
		m.table.paced(now.Sub(before), int(m.batch.Messages), g.Limits.BatchRows)
		before = now
		maps.Copy(entries, m.batch.Entries())
	}
	return n, entries, nil
}

// atMost returns how many rows a batch may have of which there is room for so many.
func (t *table) atMost(rows int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return min(rows, cmp.Or(t.pace, firstRows))
}

// paced learns from the time that a table's batch took how large the next one may be; full is the size of a full one.
func (t *table) paced(took time.Duration, rows, full int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pace := cmp.Or(t.pace, firstRows)
	switch {
	case took > writeTime:
		t.pace = max(int(float64(rows)*float64(writeTime)/float64(took)), 1)
	case took < writeTime/2 && rows >= pace/2 && pace < full:
		t.pace = 2 * pace
	}
}

func (t *table) setApart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.apart = time.Now().Add(apartTime)
}

func (t *table) isApart() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.apart)
}

// chunkRows is how many rows a chunk of a table's copy is to have.
func (s *session) chunkRows(t *schema.Table) int64 {
	if !s.oneWriter() {
		return s.Limits.ChunkRows
	}
	rows := min(s.Limits.ChunkRows, smallChunkRows)
	if t.RowBytes > 0 {
		rows = min(rows, max(smallChunkBytes/t.RowBytes, 1))
	}
	return rows
}

// readAhead returns a reader of a chunk that has read it, or much of it, already: a transaction that waited for the source
// would have all tables wait.
func readAhead(ctx context.Context, from connector.RowReader) (connector.RowReader, error) {
	r := &readRows{RowReader: from}
	for bytes := int64(0); bytes < aheadBytes; {
		rows, err := from.Next(ctx)
		if errors.Is(err, io.EOF) {
			r.whole = true
			break
		}
		if err != nil {
			r.release()
			return nil, err
		}
		r.rows = append(r.rows, rows)
		for _, column := range rows.Values.Columns() {
			bytes += int64(column.Data().SizeInBytes())
		}
	}
	return r, nil
}

// readRows is a RowReader that begins with rows that were read already.
type readRows struct {
	connector.RowReader
	rows  []*connector.Rows
	whole bool // and ends with them
}

func (r *readRows) Next(ctx context.Context) (*connector.Rows, error) {
	switch {
	case len(r.rows) > 0:
		rows := r.rows[0]
		r.rows = r.rows[1:]
		return rows, nil
	case r.whole:
		return nil, io.EOF
	}
	return r.RowReader.Next(ctx)
}

func (r *readRows) Close() error {
	r.release()
	return r.RowReader.Close()
}

func (r *readRows) release() {
	for _, rows := range r.rows {
		rows.Release()
	}
	r.rows = nil
}
