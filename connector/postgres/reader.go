package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/sluicehq/sluice/connector"
)

// reader is the state of a stream that the goroutine in Next owns.
type reader struct {
	current     *map[uint32]*selection // as of the transaction's Begin
	relations   map[uint32]*relation
	last        *relation // of the last row: mostly the next one's too
	tx          transaction
	touched     []*relation // those with pending rows, in the order first touched
	pending     int         // bytes of rows in them
	reserved    int         // bytes of room made for rows in them
	end         LSN         // everything that commits below it has been read
	endTime     int64       // the server's clock there
	reported    LSN         // end, as last handed out
	queue       []connector.Event
	head        int // queue[head:] is not yet handed out
	failed      error
	shutdown    shutdown
	patience    time.Duration // wal_sender_timeout, or statusPeriod where it is off
	truncated   []uint32
	typeNames   map[columnType]string
	catalog     catalogView
	transaction uint64 // counts them, for relation.transaction
}

// transaction is the one that is being read.
type transaction struct {
	open     bool
	final    LSN
	position connector.Position // made for the first row
	tag      uint64
	time     time.Time
}

func newReader(start LSN, patience time.Duration) reader {
	return reader{
		relations: map[uint32]*relation{}, typeNames: map[columnType]string{},
		end: start, reported: start, patience: patience,
	}
}

// Next returns the next event. It holds rows back only while more can be read at once, and no more than flushBytes.
func (st *stream) Next(ctx context.Context) (connector.Event, error) {
	st.reading.Lock()
	defer st.reading.Unlock()
	st.started.Store(true)
	if err := st.interrupted(); err != nil {
		return nil, streamError(err, "read the stream")
	}
	for {
		if e := st.dequeue(); e != nil {
			return e, nil
		}
		if st.failed != nil {
			return nil, st.failed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := st.read(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				return nil, err // nothing was consumed: the next call goes on
			}
			st.failed = streamError(err, "read the stream")
		}
	}
}

func (st *stream) dequeue() connector.Event {
	if st.head == len(st.queue) {
		st.queue, st.head = st.queue[:0], 0
		return nil
	}
	e := st.queue[st.head]
	st.queue[st.head] = nil
	st.head++
	return e
}

// read consumes what is in the buffer and then waits for more. It returns when there is something to hand out.
func (st *stream) read(ctx context.Context) error {
	for {
		if err := st.consume(ctx); err != nil || len(st.queue) > 0 {
			return err
		}
		if st.sender.drained && !st.tx.open {
			st.flush()
			if len(st.queue) > 0 {
				return nil
			}
		}
		wait := time.Duration(-1)
		if st.pending > 0 || st.end > st.reported {
			wait = transactionWait
		}
		n, err := st.sender.fill(ctx, wait)
		if err != nil {
			return err
		}
		if err := st.interrupted(); err != nil {
			return err
		}
		if n == 0 {
			st.flush()
		}
	}
}

// interrupted reports why there is nothing more to read for, other than the connection's own errors.
func (st *stream) interrupted() error {
	if st.closed.Load() {
		return &connector.Error{System: sourceSystem, Op: "read the stream", Err: errors.New("the stream is closed")}
	}
	if err := st.unsent.Load(); err != nil {
		return *err
	}
	return nil
}

// consume takes the whole messages in the buffer, until there is something to hand out.
func (st *stream) consume(ctx context.Context) error {
	for len(st.queue) == 0 {
		d, ok, err := st.sender.next()
		if err != nil || !ok {
			return err
		}
		if d.output == nil {
			if err := st.keepalive(d); err != nil {
				return err
			}
		} else if err := st.message(ctx, d.output); err != nil {
			return err
		}
		st.sender.consume(d)
		if st.pending >= flushBytes {
			st.flush()
		}
	}
	return nil
}

// keepalive moves the end of what was read, unless it came inside a transaction: it then tells of the time before it.
func (st *stream) keepalive(d copyData) error {
	if !st.tx.open && d.end > st.end {
		st.end, st.endTime = d.end, d.time
	}
	if d.reply {
		st.inform()
		return st.shutdown.asked(d, st.patience)
	}
	return nil
}

// shutdownRequests is how many requests for a reply within one wal_sender_timeout tell that the server is shutting down:
// usually there is one in half of it.
const shutdownRequests = 8

// shutdown notices that the server wants to stop: it then asks again and again at one position until all it has sent is
// acknowledged (WalSndDone in walsender.c). We do not acknowledge what is not durable, so that it would wait for ever.
type shutdown struct {
	end      LSN
	requests int
	since    int64 // by the server's clock
}

func (s *shutdown) asked(d copyData, patience time.Duration) error {
	if d.end != s.end || d.time-s.since > patience.Microseconds() {
		*s = shutdown{end: d.end, since: d.time}
	}
	if s.requests++; s.requests >= shutdownRequests {
		return errShutdown
	}
	return nil
}

var errShutdown = errors.New("the server is shutting down and waits for us to leave")

// message handles one message of pgoutput. After an error that ctx caused it may be called again with the same one.
func (st *stream) message(ctx context.Context, m []byte) error {
	switch m[0] {
	case messageInsert, messageUpdate, messageDelete:
		oid, err := parseRow(m)
		if err != nil {
			return damagedMessage(m, err)
		}
		return st.row(ctx, oid, m)
	case messageBegin:
		b, err := parseBegin(m)
		if err != nil {
			return damagedMessage(m, err)
		}
		st.beginTransaction(b)
	case messageCommit:
		c, err := parseCommit(m)
		if err != nil {
			return damagedMessage(m, err)
		}
		st.tx.open = false
		st.end, st.endTime = max(st.end, c.end), c.time
	case messageRelation:
		r, err := parseRelation(m)
		if err != nil {
			return damagedMessage(m, err)
		}
		st.describe(r)
	case messageTruncate:
		return st.truncate(ctx, m)
	case messageOrigin, messageType, messageLogical:
	default:
		return damaged("pgoutput message of unknown type %q", m[0])
	}
	return nil
}

func damagedMessage(m []byte, err error) error {
	return damaged("pgoutput message %q of %d bytes: %v", m[0], len(m), err)
}

func (st *stream) beginTransaction(b beginMessage) {
	st.tx = transaction{open: true, final: b.final, tag: uint64(b.xid), time: serverTime(b.time)}
	st.transaction++
	if chosen := st.selected.Load(); chosen != st.current {
		st.current = chosen
		for oid, r := range st.relations {
			r.choose((*chosen)[oid])
		}
	}
}

// truncate gives each selected table that a Truncate names the whole message as a row.
func (st *stream) truncate(ctx context.Context, m []byte) error {
	var err error
	if st.truncated, err = parseTruncate(m, st.truncated[:0]); err != nil {
		return damagedMessage(m, err)
	}
	for _, oid := range st.truncated { // all of them first: it may have to be repeated
		if _, err := st.ready(ctx, oid); err != nil {
			return err
		}
	}
	for _, oid := range st.truncated {
		if err := st.row(ctx, oid, m); err != nil {
			return err
		}
	}
	return nil
}

// row appends a row message to its table's pending frames.
func (st *stream) row(ctx context.Context, oid uint32, m []byte) error {
	r := st.last
	if r == nil || r.oid != oid || !r.settled || r.chosen == nil {
		var err error
		if r, err = st.ready(ctx, oid); err != nil || r == nil {
			return err
		}
		st.last = r
	}
	if uint64(st.tx.final) < r.chosen.after.Load() {
		return nil
	}
	if r.transaction != st.transaction {
		r.transaction, r.rows, r.inFrames = st.transaction, 0, false
	}
	first := r.rows
	r.rows++
	version := r.table
	if version == nil {
		version = r.unreadable
	}
	if version == nil {
		return nil // withheld, see settle
	}
	f := r.frames
	if f == nil {
		f = &connector.Frames{Table: version, Data: make([]byte, 0, r.capacity(len(m), flushBytes-st.reserved))}
		st.reserved += cap(f.Data)
		r.frames, r.inFrames = f, false
		st.touched = append(st.touched, r)
	}
	if !r.inFrames {
		r.inFrames = true
		f.Commits = append(f.Commits, st.commit(first))
	}
	f.Commits[len(f.Commits)-1].Rows++
	f.Data = binary.BigEndian.AppendUint32(f.Data, uint32(len(m)))
	f.Data = append(f.Data, m...)
	st.pending += 4 + len(m)
	return nil
}

// commit returns a run without rows of the transaction that is being read.
func (st *stream) commit(first int64) connector.Commit {
	if st.tx.position == "" {
		st.tx.position = st.position(st.tx.final + 1)
	}
	return connector.Commit{First: first, Position: st.tx.position, Tag: st.tx.tag, Time: st.tx.time}
}

// flush queues what is pending, and then how far the log was read. A transaction that is still open is not part of that.
func (st *stream) flush() {
	for _, r := range st.touched {
		f := r.frames
		if cap(f.Data) > 2*len(f.Data) {
			f.Data = slices.Clone(f.Data) // it may be held for long
		}
		st.queue = append(st.queue, f)
		r.lastBytes, r.frames = len(f.Data), nil
	}
	clear(st.touched)
	st.touched, st.pending, st.reserved = st.touched[:0], 0, 0
	if st.end > st.reported {
		st.reported = st.end
		st.moved.Store(time.Now().UnixNano())
		st.limit.Store(max(st.limit.Load(), uint64(st.end)))
		st.queue = append(st.queue, &connector.Progress{
			UpTo: connector.Positions{"": st.position(st.end)},
			Time: serverTime(st.endTime),
		})
	}
}

// describe keeps what a Relation message says until a row needs it. It tells of one of a table that was not added: somebody
// has put more tables into a publication than we did.
func (st *stream) describe(m relationMessage) {
	r := st.relations[m.oid]
	if r == nil {
		r = &relation{}
		st.relations[m.oid] = r
		if st.current != nil {
			r.choose((*st.current)[m.oid])
		}
	} else {
		r.resent = true
	}
	r.relationMessage = m
	r.settled = false
	if r.chosen == nil {
		st.queue = append(st.queue, &connector.Unselected{ID: tableID(m.oid), Name: m.name})
	}
}
