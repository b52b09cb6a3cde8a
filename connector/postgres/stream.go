package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	// flushBytes is how many bytes of rows are collected before they are handed out also in the middle of a transaction.
	flushBytes = 1 << 20
	// transactionWait is how long a part of a transaction waits for its rest: the server sends it without a pause.
	transactionWait = gatherTime
	// statusPeriod is the longest time between two status updates.
	statusPeriod = 10 * time.Second
	// heartbeatAfter is how long no position may come while the log grows before we write a message to get one.
	heartbeatAfter = 10 * time.Second
	// heartbeatTimeout bounds the queries of one heartbeat.
	heartbeatTimeout = 5 * time.Second
)

// tableLookup reads one table as the catalog has it now, Refused if it is gone.
type tableLookup func(ctx context.Context, oid uint32) (*schema.Table, error)

// stream implements connector.Stream. What stands below "reader" belongs to the goroutine in Next.
type stream struct {
	source *Source
	lookup tableLookup
	sender *walsender
	prefix string // of every position: system and timeline
	from   LSN    // where the slot stood: the server delivers what commits from here on
	start  LSN    // the same, or the position that was asked for
	fresh  bool   // the slot was made by this stream

	adding   sync.Mutex // one change of the publications and the selection at a time
	known    map[uint32]*membership
	selected atomic.Pointer[map[uint32]*selection] // replaced as a whole
	started  atomic.Bool                           // Next was called

	acked   atomic.Uint64
	limit   atomic.Uint64 // the highest end that was handed out
	moved   atomic.Int64  // when a position was last handed out, by our clock in nanoseconds
	answer  chan struct{} // a status update is due
	stop    context.CancelFunc
	stopped chan struct{} // the status goroutine has ended
	unsent  atomic.Pointer[error]

	reading sync.Mutex // held by Next
	closed  atomic.Bool
	reader
}

// selection is a table that was added.
type selection struct {
	table *schema.Table
	after atomic.Uint64 // rows of transactions before it are of no use: the table was added behind them
}

var (
	_ connector.Stream  = (*stream)(nil)
	_ connector.Coverer = (*stream)(nil)
	_ connector.Rewound = (*stream)(nil)
)

// Stream opens the log. See connector.Source; there is one log in a database, so its name does not matter.
func (s *Source) Stream(ctx context.Context, _ string, from connector.Positions) (connector.Stream, error) {
	conn, err := connectReplication(ctx, s.config, s.application())
	if err != nil {
		return nil, s.senderRefused(err, from == nil)
	}
	st, err := s.openStream(ctx, conn, from)
	if err != nil {
		conn.Close(context.WithoutCancel(ctx))
		return nil, streamError(err, "open the stream")
	}
	return st, nil
}

// senderRefused explains why the server gave no replication connection.
func (s *Source) senderRefused(err error, first bool) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	e := wrapError(err, sourceSystem, "connect for replication", schema.Name{}).(*connector.Error)
	switch pg.Code {
	case "42501": // not a role with the right
		e.Kind, e.Hint = connector.Setup, s.replicationRight()
	case "53300": // all senders are in use, which later on may be a connection of our own past
		if first {
			e.Kind, e.Hint = connector.Setup, "raise max_wal_senders, or end a replication connection that is not needed"
		}
	}
	return e
}

func (s *Source) openStream(ctx context.Context, conn *pgconn.PgConn, from connector.Positions) (*stream, error) {
	id, err := identifySystem(ctx, conn)
	if err != nil {
		return nil, err
	}
	h, err := readHistory(ctx, conn, id.timeline)
	if err != nil {
		return nil, err
	}
	s.setHistory(h)
	timeout, err := senderTimeout(ctx, conn)
	if err != nil {
		return nil, err
	}
	st := &stream{source: s, prefix: position{system: id.system, timeline: id.timeline}.prefix(), lookup: s.table, fresh: from == nil}
	confirmed := LSN(0)
	if from == nil {
		confirmed, err = s.makeSlot(ctx)
		st.start = confirmed
	} else {
		confirmed, st.start, err = s.resumeSlot(ctx, id, h, from)
	}
	if err != nil {
		return nil, err
	}
	if st.known, err = s.readMembership(ctx, s.pool, 0); err != nil {
		return nil, wrapError(err, sourceSystem, "read the publications", schema.Name{})
	}
	if s.given { // what is not in it now has no changes in the log, whatever is done for it later
		maps.DeleteFunc(st.known, func(_ uint32, m *membership) bool { return !m.in[0] })
	}
	if st.sender, err = startReplication(ctx, conn, s.slotName(), s.publicationNames()); err != nil {
		return nil, err
	}
	st.from = confirmed
	st.begin(ctx, confirmed, timeout)
	return st, nil
}

// Delivers is part of connector.Rewound.
func (st *stream) Delivers() connector.Positions {
	return connector.Positions{"": st.position(st.from)}
}

// begin starts the goroutine that keeps the server informed, which Close ends and waits for.
func (st *stream) begin(ctx context.Context, confirmed LSN, timeout time.Duration) {
	st.acked.Store(uint64(confirmed))
	st.limit.Store(uint64(st.start))
	st.moved.Store(time.Now().UnixNano())
	st.answer, st.stopped = make(chan struct{}, 1), make(chan struct{})
	st.selected.Store(&map[uint32]*selection{})
	period, patience := statusPeriod, statusPeriod
	if timeout > 0 {
		period, patience = min(period, timeout/3), timeout
	}
	st.reader = newReader(st.start, patience)
	// The call's ctx ends with the call, the stream does not.
	ctx, st.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(st.stopped)
		st.keepInformed(ctx, period)
	}()
}

// makeSlot makes publications and slot, in this order: decoding reads the catalog as it was at each point of the log.
// What a killed call of ours left is dropped first.
func (s *Source) makeSlot(ctx context.Context) (LSN, error) {
	if err := s.checkLogLevel(ctx); err != nil {
		return 0, err
	}
	pubs, err := s.readPublications(ctx)
	if err != nil {
		return 0, err
	}
	if p := pubs.foreign(); p != nil {
		return 0, s.notOurs("open the stream", fmt.Sprintf("publication %q", p.name), "DROP PUBLICATION "+quoteIdent(p.name))
	}
	if s.given && !pubs[0].exists {
		return 0, s.givenGone()
	}
	r, err := s.readSlot(ctx)
	if err != nil {
		return 0, err
	}
	if r != nil {
		if !s.ownsSlot(pubs) || !r.decodes(s.server.database) {
			return 0, s.notOurs("open the stream", fmt.Sprintf("replication slot %q", r.name), r.dropStatement())
		}
		if err := s.dropSlot(ctx, r); err != nil {
			return 0, err
		}
	}
	if !s.given {
		if err := s.remakePublications(ctx, pubs); err != nil {
			return 0, err
		}
	}
	return s.createSlot(ctx)
}

func (s *Source) remakePublications(ctx context.Context, old publications) error {
	if err := s.dropPublications(ctx, old); err != nil {
		return err
	}
	if err := s.createPublications(ctx); err != nil {
		return err
	}
	s.log().Info("publications were made", "publications", s.publicationNames())
	return nil
}

func (s *Source) checkLogLevel(ctx context.Context) error {
	var level string
	if err := s.pool.QueryRow(ctx, "SELECT pg_catalog.current_setting('wal_level')").Scan(&level); err != nil {
		return wrapError(err, sourceSystem, "open the stream", schema.Name{})
	}
	if level == "logical" {
		return nil
	}
	return &connector.Error{
		Kind: connector.Setup, System: sourceSystem, Op: "open the stream",
		Err:  fmt.Errorf("wal_level is %s, not logical", level),
		Hint: "ALTER SYSTEM SET wal_level = logical, then restart the server",
	}
}

// resumeSlot proves that the slot delivers everything after from.
func (s *Source) resumeSlot(ctx context.Context, id identity, h history, from connector.Positions) (confirmed, start LSN, err error) {
	p, err := parsePosition(from[""])
	if err != nil {
		return 0, 0, &connector.Error{System: sourceSystem, Op: "open the stream", Err: err}
	}
	if p.system != id.system {
		return 0, 0, otherHistory(p, fmt.Errorf("this is another server: its system identifier is %d", id.system))
	}
	if !h.contains(p) {
		if p, err = s.whereAgreed(ctx, h, p); err != nil {
			return 0, 0, err
		}
	}
	flushed, err := s.readLSN(ctx, flushedLog)
	if err != nil {
		return 0, 0, err
	}
	if flushed < p.lsn {
		return 0, 0, otherHistory(p, fmt.Errorf("the server's log ends at %s, before this position: it was restored from a backup", flushed))
	}
	pubs, err := s.readPublications(ctx)
	if err != nil {
		return 0, 0, err
	}
	r, err := s.readSlot(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := s.checkSlot(r, p); err != nil {
		return 0, 0, err
	}
	if err := s.checkPublications(pubs, p); err != nil {
		return 0, 0, err
	}
	if r, err = s.awaitFreeSlot(ctx, r); err != nil {
		return 0, 0, err
	}
	if err := s.checkSlot(r, p); err != nil { // what used it may have moved it
		return 0, 0, err
	}
	return r.confirmed, p.lsn, nil
}

// whereAgreed returns where the slot stands if that is before the server's history left the one of p, so that everything
// from where both agree is delivered: the slot was kept on the standby that was promoted.
func (s *Source) whereAgreed(ctx context.Context, h history, p position) (position, error) {
	r, err := s.readSlot(ctx)
	if err != nil {
		return p, err
	}
	left, known := h.ancestors[p.timeline]
	if !known || r == nil || r.lost != "" || r.confirmed > left {
		return p, otherHistory(p, fmt.Errorf("the server is on timeline %d, which left timeline %d before this position (it was promoted or restored)", h.timeline, p.timeline))
	}
	return position{system: p.system, timeline: h.timeline, lsn: r.confirmed}, nil
}

// position writes a point of this stream's timeline; it is called for each transaction.
func (st *stream) position(l LSN) connector.Position {
	b := make([]byte, 0, 48)
	b = append(b, st.prefix...)
	b = appendHex(b, uint32(l>>32))
	b = append(b, '/')
	b = appendHex(b, uint32(l))
	return connector.Position(b)
}

func appendHex(b []byte, v uint32) []byte {
	const digits = "0123456789ABCDEF"
	for shift := 28; shift >= 0; shift -= 4 {
		b = append(b, digits[v>>shift&15])
	}
	return b
}

// Add publishes and selects a table. What the table's transactions wrote before its publication may not come.
func (st *stream) Add(ctx context.Context, t *schema.Table) (connector.Positions, error) {
	oid, err := tableOID(t.ID)
	if err != nil {
		return nil, wrapError(err, sourceSystem, "select a table", t.Name)
	}
	st.adding.Lock()
	defer st.adding.Unlock()
	changed, err := st.publishOnce(ctx, oid, t)
	if err != nil {
		return nil, err
	}
	chosen, again := st.choose(oid, t)
	if !st.started.Load() && (!changed || st.fresh) {
		return connector.Positions{"": st.position(st.start)}, nil
	}
	// Read after the table was chosen: the transactions that commit behind it are not yet read.
	end, err := st.source.readLSN(ctx, endOfLog)
	if err != nil {
		return nil, err
	}
	if !again {
		chosen.after.Store(uint64(end))
	}
	return connector.Positions{"": st.position(end)}, nil
}

// publishOnce spares the statements for a table that was in its place when the stream was opened, the first time it is
// added.
func (st *stream) publishOnce(ctx context.Context, oid uint32, t *schema.Table) (changed bool, err error) {
	m := st.known[oid]
	delete(st.known, oid)
	if st.source.given {
		return m == nil, st.source.checkCoverage(ctx, oid, t)
	}
	if m.settled(t) {
		return false, nil
	}
	return st.source.publish(ctx, oid, t)
}

// choose selects a table, or gives a selected one its new version, from the next transaction on.
func (st *stream) choose(oid uint32, t *schema.Table) (chosen *selection, again bool) {
	next := maps.Clone(*st.selected.Load())
	chosen = &selection{table: t}
	before, again := next[oid]
	if again {
		chosen.after.Store(before.after.Load())
	}
	next[oid] = chosen
	st.selected.Store(&next)
	return chosen, again
}

// Drop ends the selection and the publication of a table.
func (st *stream) Drop(ctx context.Context, id schema.ID) error {
	oid, err := tableOID(id)
	if err != nil {
		return wrapError(err, sourceSystem, "drop a table from the stream", schema.Name{})
	}
	st.adding.Lock()
	defer st.adding.Unlock()
	next := maps.Clone(*st.selected.Load())
	t := &schema.Table{ID: id}
	if chosen := next[oid]; chosen != nil {
		t = chosen.table
	}
	delete(next, oid)
	st.selected.Store(&next)
	delete(st.known, oid)
	return st.source.unpublish(ctx, oid, t)
}

// Ack lets the server forget the log up to a position, but never what was not yet handed out.
func (st *stream) Ack(_ context.Context, upTo connector.Positions) error {
	p, err := parsePosition(upTo[""])
	if err != nil {
		return &connector.Error{System: sourceSystem, Op: "acknowledge", Err: err}
	}
	for {
		before := st.acked.Load()
		if uint64(p.lsn) <= before {
			return nil
		}
		if st.acked.CompareAndSwap(before, uint64(p.lsn)) {
			st.inform()
			return nil
		}
	}
}

// flushed is what the server may forget.
func (st *stream) flushed() LSN { return LSN(min(st.acked.Load(), st.limit.Load())) }

// inform makes a status update due.
func (st *stream) inform() {
	select {
	case st.answer <- struct{}{}:
	default: // it is due already
	}
}

// keepInformed sends status updates, also while nobody calls Next. It alone writes to the walsender.
func (st *stream) keepInformed(ctx context.Context, period time.Duration) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	heartbeat := heartbeat{stream: st}
	for {
		select {
		case <-ctx.Done():
			_ = st.sender.sendStatus(st.flushed(), time.Now()) // what was acknowledged last; the connection may be gone
			return
		case <-st.answer:
		case <-tick.C:
			heartbeat.beat(ctx)
		}
		if err := st.sender.sendStatus(st.flushed(), time.Now()); err != nil {
			st.unsent.Store(&err)
			st.sender.wire.wake()
			return
		}
	}
}

// heartbeat writes a message into a log in which only others write, when the server tells of no position for long. It
// comes back as a transaction and makes the slot move.
type heartbeat struct {
	stream *stream
	warned bool
}

func (h *heartbeat) beat(ctx context.Context) {
	st := h.stream
	if time.Since(time.Unix(0, st.moved.Load())) < heartbeatAfter {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	end, err := st.source.readLSN(ctx, endOfLog)
	if err == nil && uint64(end) > st.limit.Load() {
		err = st.source.emitMessage(ctx)
	}
	st.moved.Store(time.Now().UnixNano()) // not again before heartbeatAfter
	if err != nil && ctx.Err() == nil && !h.warned {
		h.warned = true
		st.source.log().Warn("heartbeat message could not be written", "error", err)
	}
}

// Close ends the stream. The slot stays.
func (st *stream) Close() error {
	if st.closed.Swap(true) {
		return nil
	}
	st.sender.wire.wake()
	st.stop()
	<-st.stopped
	st.reading.Lock() // a Next that was waiting has returned
	defer st.reading.Unlock()
	return wrapError(st.sender.close(), sourceSystem, "close the stream", schema.Name{})
}
