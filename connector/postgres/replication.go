package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sluicehq/sluice/connector"
)

const (
	// receiveBuffer holds what one read brings; it grows for a message that is larger, and shrinks again behind it.
	receiveBuffer = 4 * gatherBytes
	// maxMessage is beyond what a server can send (MaxAllocSize in memutils.h): a larger length is damage.
	maxMessage = 1 << 30

	// A reader is busy from busyReads wake-ups within gatherTime on, until a read brings less than idleBytes.
	busyReads = 16
	idleBytes = 2 << 10

	xlogHeader      = 25 // of XLogData: type, start, end, the server's clock
	keepaliveLength = 18 // type, end, the server's clock, whether a reply is asked for
)

// walsender is the replication connection after START_REPLICATION (protocol-replication.html). One goroutine reads, one
// writes.
type walsender struct {
	wire     wire
	buf      []byte // buf[r:w] is received and not yet consumed
	r, w     int
	received atomic.Uint64 // the highest LSN that the server has told of

	gather      bool // the reader is busy
	drained     bool // the last read took all there was
	wakes       int  // reads since windowStart
	windowStart time.Time
	status      [34 + 5]byte
}

// copyData is one message of the stream: pgoutput's, or a keepalive.
type copyData struct {
	size   int    // bytes it takes in the buffer
	output []byte // a message of pgoutput, in the buffer; empty for a keepalive
	end    LSN    // keepalive: the server has sent all transactions whose commit record begins below it
	time   int64  // keepalive: the server's clock
	reply  bool   // keepalive: the server waits for a status update
}

// startReplication turns an idle replication connection into a walsender's. It owns conn, also when it fails.
func startReplication(ctx context.Context, conn *pgconn.PgConn, slot string, publications []string) (*walsender, error) {
	hijacked, err := conn.Hijack()
	if err != nil {
		conn.Close(ctx)
		return nil, err
	}
	wire, err := newWire(hijacked.Conn)
	if err != nil {
		return nil, err
	}
	w := &walsender{wire: wire, buf: make([]byte, receiveBuffer)}
	query, err := (&pgproto3.Query{String: startCommand(slot, publications)}).Encode(nil)
	if err == nil {
		err = wire.write(query)
	}
	if err == nil {
		err = w.awaitCopy(ctx)
	}
	if err != nil {
		wire.close()
		return nil, err
	}
	return w, nil
}

// startCommand starts from 0/0: the slot knows where it stands, and a start beyond its position would silently skip. The
// replication grammar knows no backslash in a string (repl_scanner.l).
func startCommand(slot string, publications []string) string {
	names := make([]string, len(publications))
	for i, p := range publications {
		names[i] = strings.ReplaceAll(quoteIdent(p), "'", "''")
	}
	return "START_REPLICATION SLOT " + quoteIdent(slot) + " LOGICAL 0/0 (proto_version '1', publication_names '" +
		strings.Join(names, ",") + "', messages 'true')"
}

// awaitCopy reads up to the CopyBothResponse.
func (w *walsender) awaitCopy(ctx context.Context) error {
	for {
		kind, body, err := w.peek()
		switch {
		case err != nil:
			return err
		case body == nil:
			if _, err := w.fill(ctx, -1); err != nil {
				return err
			}
			continue
		}
		w.r += 5 + len(body)
		switch kind {
		case 'W':
			return nil
		case 'E':
			return decodeServerError(body)
		case 'N', 'S': // notice, a parameter's value
		default:
			return damaged("message %q in answer to START_REPLICATION", kind)
		}
	}
}

// peek returns the next whole message of the buffer; a nil body: there is none.
func (w *walsender) peek() (kind byte, body []byte, err error) {
	have := w.buf[w.r:w.w]
	if len(have) < 5 {
		return 0, nil, nil
	}
	length := binary.BigEndian.Uint32(have[1:])
	if length < 4 || length > maxMessage {
		return 0, nil, damaged("message %q has the length %d", have[0], length)
	}
	if uint64(len(have)) <= uint64(length) {
		return 0, nil, nil
	}
	return have[0], have[5 : 1+length : 1+length], nil
}

// next returns the next message of the stream without consuming it; false: the buffer holds no whole one. The message
// is valid until the next fill.
func (w *walsender) next() (copyData, bool, error) {
	for {
		kind, body, err := w.peek()
		if err != nil || body == nil {
			return copyData{}, false, err
		}
		switch kind {
		case 'd':
			d, err := w.parse(body)
			return d, err == nil, err
		case 'N':
			if err := noticedGap(body); err != nil {
				return copyData{}, false, err
			}
			w.r += 5 + len(body)
		case 'S':
			w.r += 5 + len(body)
		case 'E':
			return copyData{}, false, decodeServerError(body)
		case 'c':
			return copyData{}, false, fmt.Errorf("the server ended the stream: %w", io.EOF)
		default:
			return copyData{}, false, damaged("unexpected message %q", kind)
		}
	}
}

func (w *walsender) parse(body []byte) (copyData, error) {
	d := copyData{size: 5 + len(body)}
	switch {
	case len(body) > xlogHeader && body[0] == 'w':
		w.advance(binary.BigEndian.Uint64(body[1:]))
		d.output = body[xlogHeader:]
	case len(body) >= keepaliveLength && body[0] == 'k':
		d.end = LSN(binary.BigEndian.Uint64(body[1:]))
		d.time = int64(binary.BigEndian.Uint64(body[9:]))
		d.reply = body[17] != 0
		w.advance(uint64(d.end))
	case len(body) == 0:
		return d, damaged("CopyData is empty")
	default:
		return d, damaged("CopyData of type %q has %d bytes", body[0], len(body))
	}
	return d, nil
}

func (w *walsender) advance(lsn uint64) {
	if lsn > w.received.Load() { // the reader alone stores
		w.received.Store(lsn)
	}
}

func (w *walsender) consume(d copyData) { w.r += d.size }

// fill reads more. It waits at most for wait, until ctx ends if that is negative, and returns 0 if nothing came.
func (w *walsender) fill(ctx context.Context, wait time.Duration) (int, error) {
	w.makeRoom()
	if wait < 0 {
		stop := context.AfterFunc(ctx, w.wire.wake)
		defer stop()
	}
	n, err := w.wire.read(w.buf[w.w:], wait, w.gather)
	w.w += n
	w.drained = n < gatherBytes && w.w < len(w.buf)
	w.adapt(n)
	if err == nil && n == 0 {
		err = ctx.Err()
	}
	return n, err
}

// adapt decides whether the next read gathers.
func (w *walsender) adapt(n int) {
	if w.gather {
		w.gather = n >= idleBytes
		return
	}
	if now := time.Now(); now.Sub(w.windowStart) > gatherTime {
		w.windowStart, w.wakes = now, 0
	}
	w.wakes++
	w.gather = w.wakes > busyReads || n >= gatherBytes/4
}

// makeRoom moves an incomplete message to the front of the buffer. A buffer that it fills is doubled: a length alone, which
// may be damage, allocates nothing.
func (w *walsender) makeRoom() {
	need := 0
	if have := w.buf[w.r:w.w]; len(have) >= 5 {
		need = 1 + int(binary.BigEndian.Uint32(have[1:]))
	}
	switch {
	case need > len(w.buf) && w.w-w.r == len(w.buf):
		grown := make([]byte, min(need, 2*len(w.buf)))
		w.r, w.w, w.buf = 0, copy(grown, w.buf[w.r:w.w]), grown
	case len(w.buf) > receiveBuffer && need <= receiveBuffer && w.w-w.r <= receiveBuffer/2:
		small := make([]byte, receiveBuffer)
		w.r, w.w, w.buf = 0, copy(small, w.buf[w.r:w.w]), small
	case w.r > 0:
		w.r, w.w = 0, copy(w.buf, w.buf[w.r:w.w])
	}
}

// sendStatus writes a Standby Status Update. flushed is what the server may forget.
func (w *walsender) sendStatus(flushed LSN, now time.Time) error {
	m := w.status[:0]
	m = append(m, 'd')
	m = binary.BigEndian.AppendUint32(m, 4+34)
	m = append(m, 'r')
	m = binary.BigEndian.AppendUint64(m, max(w.received.Load(), uint64(flushed)))
	m = binary.BigEndian.AppendUint64(m, uint64(flushed))
	m = binary.BigEndian.AppendUint64(m, uint64(flushed))
	m = binary.BigEndian.AppendUint64(m, uint64(serverMicros(now)))
	m = append(m, 0)
	return w.wire.write(m)
}

// close leaves in an orderly way, so that the server frees the slot at once. No other call may be under way.
func (w *walsender) close() error {
	_ = w.wire.write([]byte{'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4}) // CopyDone, Terminate; the connection may be gone
	return w.wire.close()
}

// damagedError says that what the server sent cannot be understood. Another connection may do better.
type damagedError struct{ what string }

func (e *damagedError) Error() string { return "the replication connection is damaged: " + e.what }

func damaged(format string, args ...any) error { return &damagedError{fmt.Sprintf(format, args...)} }

func decodeServerError(body []byte) error {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return damaged("error message: %v", err)
	}
	return pgconn.ErrorResponseToPgError(&m)
}

// noticedGap reports that a publication did not exist at a point of the log, so that changes there are left out. Of that
// servers from 18 on only warn (LoadPublications in pgoutput.c), where older ones end the stream with an error.
func noticedGap(body []byte) error {
	var m pgproto3.NoticeResponse
	if err := m.Decode(body); err != nil {
		return damaged("notice: %v", err)
	}
	if m.Code != "55000" || m.Routine != "LoadPublications" {
		return nil
	}
	warning := serverError{pgconn.ErrorResponseToPgError((*pgproto3.ErrorResponse)(&m))}
	return &connector.Error{
		Kind: connector.Gap, System: sourceSystem, Op: "read the stream", Hint: hintPublicationLost,
		Err: fmt.Errorf("a publication does not exist at this point of the log: %w", warning),
	}
}

// streamError classifies what ends a stream. The codes are those of walsender.c, logical.c and slot.c.
func streamError(err error, op string) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := errors.AsType[*connector.Error](err); ok {
		return err
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok { // the network, damage on it, or a message we do not know: a new connection is the remedy
		return &connector.Error{Kind: connector.Unavailable, System: sourceSystem, Op: op, Err: err}
	}
	e := &connector.Error{Kind: kindOfState(pg.Code), System: sourceSystem, Op: op, Hint: pg.Hint, Err: serverError{pg}}
	switch {
	case pg.Code == "42704" && strings.Contains(pg.Message, "publication"):
		e.Kind, e.Hint = connector.Gap, hintPublicationLost
	case pg.Code == "55000", pg.Code == "58P01": // slot invalidated; log segment removed
		e.Kind, e.Hint = connector.Gap, hintGap
	case pg.Code == "42704": // slot
		e.Kind, e.Hint = connector.Gap, hintGap
	case e.Kind != connector.Setup:
		e.Kind = connector.Unavailable
	}
	return e
}

const (
	hintGap = "the change log is not complete any more: a new copy is needed, which `on_gap: resync` makes by itself " +
		"and `sluice resync` by hand"
	hintNewCopies = "a run makes a new slot, and its tables wait for `sluice resync`, or are copied at once with `on_gap: resync`"

	hintPublicationLost = "decoding reads the catalog as it was at that point of the log, so a publication that is made " +
		"(again) later does not help: a new slot and a new copy are needed, which `on_gap: resync` makes by itself and " +
		"`sluice resync` by hand"
)

// identity is the answer to IDENTIFY_SYSTEM.
type identity struct {
	system   uint64
	timeline uint32
}

func identifySystem(ctx context.Context, conn *pgconn.PgConn) (identity, error) {
	row, err := replicationRow(ctx, conn, "IDENTIFY_SYSTEM")
	if err != nil {
		return identity{}, err
	}
	if len(row) < 2 {
		return identity{}, fmt.Errorf("IDENTIFY_SYSTEM returned %d columns", len(row))
	}
	system, err := strconv.ParseUint(string(row[0]), 10, 64)
	if err != nil {
		return identity{}, fmt.Errorf("IDENTIFY_SYSTEM: system identifier: %w", err)
	}
	timeline, err := strconv.ParseUint(string(row[1]), 10, 32)
	if err != nil {
		return identity{}, fmt.Errorf("IDENTIFY_SYSTEM: timeline: %w", err)
	}
	return identity{system, uint32(timeline)}, nil
}

// senderTimeout returns the wal_sender_timeout of this connection; 0: none.
func senderTimeout(ctx context.Context, conn *pgconn.PgConn) (time.Duration, error) {
	row, err := replicationRow(ctx, conn, "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'")
	if err != nil || len(row) == 0 {
		return 0, err
	}
	millis, err := strconv.ParseInt(string(row[0]), 10, 64)
	return time.Duration(millis) * time.Millisecond, err
}

// replicationRow runs a command of the replication protocol, or SQL on its connection, and returns the first row.
func replicationRow(ctx context.Context, conn *pgconn.PgConn, command string) ([][]byte, error) {
	results, err := conn.Exec(ctx, command).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) == 0 || len(results[0].Rows) == 0 {
		return nil, nil
	}
	return results[0].Rows[0], nil
}
