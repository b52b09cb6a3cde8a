package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	// rollbackTimeout bounds Rollback, which has no context; the connection is given up after it.
	rollbackTimeout = 5 * time.Second
	// stageBuffers is the memory that a session may use for its stage tables before they go to disk.
	stageBuffers = "64MB"
	// maxPrepared bounds the statements that a connection keeps; beyond it the connection is replaced.
	maxPrepared = 256
	// maxStages bounds the stage tables of a connection: the server empties all of them at each commit.
	maxStages = 4
)

// divisionByZero is how our own checks inside SQL fail, so that what follows in the same round trip is not done.
const divisionByZero = "22012"

// session is what we remember of a connection between transactions.
type session struct {
	prepared map[statement]string // their names on the server
	stages   []string             // names of stage tables, the one used last at the end
	buffer   []byte               // for CopyData messages
	replica  bool                 // foreign keys and triggers do not act on what it writes
}

// statement is what a prepared statement depends on. The types are those of the parameters: a table that is made anew with
// other types is another statement.
type statement struct{ sql, types string }

// params are the parameters of a statement.
type params struct {
	values  [][]byte // nil is NULL
	formats []int16
	types   []uint32
}

func (p *params) typeKey() []byte {
	key := make([]byte, 0, 4*len(p.types))
	for _, t := range p.types {
		key = appendUint32(key, t)
	}
	return key
}

func (p *params) clear() {
	p.values, p.formats, p.types = p.values[:0], p.formats[:0], p.types[:0]
}

// tx is a transaction on one connection. It implements connector.Tx.
//
// Its beginning, with the check that the mirror is still ours, is not sent before there is something to do, and then in
// the same round trip.
type tx struct {
	sink    *Sink
	conn    *pgxpool.Conn
	pg      *pgconn.PgConn
	session *session
	claim   claim
	begun   bool
	copy    *copyIn  // open, and everything else must wait for its end
	stages  []string // of the session, as they will be if this commits
	staged  []string // stage tables that hold rows of this transaction
	broken  bool     // which statements are prepared is not known, or a COPY was left in the middle
	ended   bool
}

// Begin takes a connection for a transaction; see connector.Sink.
func (s *Sink) Begin(ctx context.Context) (connector.Tx, error) {
	x, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (s *Sink) begin(ctx context.Context) (*tx, error) {
	c, err := s.current()
	if err != nil {
		return nil, err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, wrapError(err, sinkSystem, "begin", schema.Name{})
	}
	x := &tx{sink: s, conn: conn, pg: conn.Conn().PgConn(), claim: c}
	const key = "sluice"
	var known bool
	if x.session, known = x.pg.CustomData()[key].(*session); !known {
		// temp_buffers can be set only before a session's first temporary table, and a rollback would undo it.
		if _, err := x.pg.Exec(ctx, "SET temp_buffers = '"+stageBuffers+"'").ReadAll(); err != nil {
			conn.Release()
			return nil, wrapError(err, sinkSystem, "begin", schema.Name{})
		}
		x.session = &session{prepared: map[statement]string{}}
		// Tables are mirrored independently of each other, so a row may come before the one that it refers to. A role that may
		// not do this is refused by Plan where it matters.
		_, err := x.pg.Exec(ctx, "SET session_replication_role = replica").ReadAll()
		if err != nil && !isState(err, "42501") {
			conn.Release()
			return nil, wrapError(err, sinkSystem, "begin", schema.Name{})
		}
		x.session.replica = err == nil
		x.pg.CustomData()[key] = x.session
	}
	x.stages = x.session.stages
	return x, nil
}

// opening are the statements that begin the transaction. The lock comes before the check and in a statement of its own,
// so that the check sees what a Claim that held the lock has committed. The check fails if the mirror is not ours.
func (x *tx) opening() []string {
	opening := []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock_shared(%d)", mirrorLock(x.claim.mirror)),
		fmt.Sprintf("SELECT 1 / count(*) FROM sluice.mirror WHERE name = %s AND id = %s AND epoch = %d",
			quoteLiteral(x.claim.mirror), quoteLiteral(x.claim.id), x.claim.epoch),
	}
	if !x.session.replica { // else the server does not check deferrable constraints
		opening = append(opening, "SET CONSTRAINTS ALL DEFERRED")
	}
	return opening
}

// fenced makes of a failed check what it means.
func fenced(err error) error {
	if isState(err, "42P01", "3F000") {
		return sinkFault(connector.Setup, "write", schema.Name{}, "start the mirror again; it copies its tables anew",
			"the schema sluice of this mirror was dropped")
	}
	if !isState(err, divisionByZero) {
		return err
	}
	return sinkFault(connector.Fenced, "write", schema.Name{}, "leave the mirror to the other process",
		"another process writes this mirror, or its entries in the schema sluice were changed")
}

// exec runs statements in one round trip, behind the transaction's beginning if need be, and returns their results.
func (x *tx) exec(ctx context.Context, sql string) ([]*pgconn.Result, error) {
	if err := x.endCopy(ctx); err != nil {
		return nil, err
	}
	sql, skip := x.afterOpening(sql)
	results, err := x.pg.Exec(ctx, sql).ReadAll()
	if err != nil {
		// A statement that fails while it runs has a result, with the error in it.
		if n := len(results); n < skip || n == skip && n > 0 && results[n-1].Err != nil {
			err = fenced(err)
		}
		return nil, err
	}
	return results[skip:], nil
}

// afterOpening puts the transaction's beginning in front of sql where it has not been sent, and returns the number of
// results that it has.
func (x *tx) afterOpening(sql string) (string, int) {
	if x.begun {
		return sql, 0
	}
	x.begun = true
	opening := x.opening()
	for i := len(opening) - 1; i >= 0; i-- {
		sql = opening[i] + "; " + sql
	}
	return sql, len(opening)
}

// query returns the text of the rows of one statement, NULL as "".
func (x *tx) query(ctx context.Context, sql string) ([][]string, error) {
	results, err := x.exec(ctx, sql)
	if err != nil {
		return nil, err
	}
	return textRows(results[len(results)-1]), nil
}

// pipe collects statements that are sent together and answered in one round trip. After a failed one the others are
// not run.
type pipe struct {
	x       *tx
	p       *pgconn.Pipeline
	replies []func(pgconn.CommandTag, error) error
}

// pipe starts a pipeline, behind the transaction's beginning if need be. finish must be called on it.
func (x *tx) pipe(ctx context.Context) (*pipe, error) {
	if err := x.endCopy(ctx); err != nil {
		return nil, err
	}
	q := &pipe{x: x, p: x.pg.StartPipeline(ctx)}
	if !x.begun {
		x.begun = true
		for _, sql := range x.opening() {
			q.send(sql, func(_ pgconn.CommandTag, err error) error { return fenced(err) })
		}
	}
	return q, nil
}

// send adds a statement without parameters; reply judges its answer.
func (q *pipe) send(sql string, reply func(pgconn.CommandTag, error) error) {
	q.p.SendQueryParams(sql, nil, nil, nil, nil)
	q.replies = append(q.replies, reply)
}

// call adds a statement with parameters, which the connection prepares when it first sees it with these types.
func (q *pipe) call(sql string, p params, reply func(pgconn.CommandTag, error) error) {
	key := statement{sql, string(p.typeKey())}
	name, ok := q.x.session.prepared[key]
	if !ok {
		name = fmt.Sprintf("sluice_%d", len(q.x.session.prepared)+1)
		q.x.session.prepared[key] = name
		q.p.SendPrepare(name, sql, p.types)
		q.replies = append(q.replies, func(_ pgconn.CommandTag, err error) error { return err })
	}
	q.p.SendQueryPrepared(name, p.values, p.formats, nil)
	q.replies = append(q.replies, reply)
}

// finish sends what was collected, reads the answers and returns the first fault that a reply found.
func (q *pipe) finish() error {
	err := q.p.Sync()
	for i := 0; err == nil && i < len(q.replies); i++ {
		err = q.answer(q.replies[i])
	}
	if closeErr := q.p.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		q.x.broken = true
	}
	return err
}

func (q *pipe) answer(reply func(pgconn.CommandTag, error) error) error {
	result, err := q.p.GetResults()
	var tag pgconn.CommandTag
	if r, ok := result.(*pgconn.ResultReader); ok && err == nil {
		tag, err = r.Close()
	}
	return reply(tag, err)
}

// keepEntries changes entries if all of them are still as expected, and fails otherwise: an insert of one that should
// not exist by the primary key, an update or a delete that finds too few by a division by zero. $2 are keys, $3 the
// expected values and $4 the new ones, "" where there is none; $5 is the number of those that should exist.
const keepEntries = `
WITH want AS (SELECT * FROM unnest($2::text[], $3::text[], $4::text[]) AS w(key, old, new)),
put AS (INSERT INTO sluice.entry (mirror, key, value) SELECT $1::text, key, new FROM want WHERE old = ''),
changed AS (UPDATE sluice.entry e SET value = w.new FROM want w
	WHERE e.mirror = $1 AND e.key = w.key AND e.value = w.old AND w.new <> '' RETURNING 1),
gone AS (DELETE FROM sluice.entry e USING want w
	WHERE e.mirror = $1 AND e.key = w.key AND e.value = w.old AND w.old <> '' AND w.new = '' RETURNING 1)
SELECT 1 / ((SELECT count(*) FROM changed) + (SELECT count(*) FROM gone) = $5::text::bigint)::int`

// sendEntries adds the compare-and-set of entries.
func (q *pipe) sendEntries(entries map[string]string) {
	s := q.x.sink
	var keys, olds, news []string
	existing := 0
	s.mu.Lock()
	for k, v := range entries {
		old := s.entries[k]
		if old == "" && v == "" {
			continue
		}
		if old != "" {
			existing++
		}
		keys, olds, news = append(keys, k), append(olds, old), append(news, v)
	}
	s.mu.Unlock()
	if keys == nil {
		return
	}
	values := [][]byte{[]byte(q.x.claim.mirror), textArray(keys), textArray(olds), textArray(news), fmt.Append(nil, existing)}
	q.call(keepEntries, params{values: values}, func(_ pgconn.CommandTag, err error) error {
		if isState(err, "23505") {
			return fenced(&pgconn.PgError{Code: divisionByZero})
		}
		return fenced(err)
	})
}

// textArray writes strings as a constant of type text[].
func textArray(values []string) []byte {
	b := []byte{'{'}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		start := len(b)
		b = append(escapeInPlace(append(b, v...), start, quoteEscape), '"')
	}
	return append(b, '}')
}

// Commit ends the transaction; see connector.Tx. The connection is given back whatever it returns.
func (x *tx) Commit(ctx context.Context, entries map[string]string) error {
	if x.ended {
		return &connector.Error{System: sinkSystem, Op: "commit", Err: errors.New("the transaction has ended")}
	}
	defer x.Rollback()
	q, err := x.pipe(ctx)
	if err != nil {
		return wrapError(err, sinkSystem, "commit", schema.Name{})
	}
	q.sendEntries(entries)
	q.send("COMMIT", func(tag pgconn.CommandTag, err error) error {
		if err == nil && tag.String() != "COMMIT" {
			err = &connector.Error{System: sinkSystem, Op: "commit", Err: errors.New("a statement before it had failed")}
		}
		return err
	})
	if err := q.finish(); err != nil {
		return wrapError(err, sinkSystem, "commit", schema.Name{})
	}
	x.session.stages = x.stages
	x.sink.mu.Lock()
	defer x.sink.mu.Unlock()
	if x.sink.claim == x.claim {
		for k, v := range entries {
			if v == "" {
				delete(x.sink.entries, k)
			} else {
				x.sink.entries[k] = v
			}
		}
	}
	return nil
}

// Rollback undoes the transaction unless it has ended and gives the connection back. It returns nil also where the
// connection is gone: the server rolls back by itself.
func (x *tx) Rollback() error {
	if x.ended {
		return nil
	}
	x.ended = true
	defer x.conn.Release()
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout) // Rollback is given no context
	defer cancel()
	switch {
	case x.pg.IsClosed():
		return nil
	case x.copy != nil, x.broken, x.pg.IsBusy(), len(x.session.prepared) > maxPrepared:
		// Such a connection costs more to mend than to replace.
		_ = x.pg.Close(ctx)
	case x.pg.TxStatus() != 'I':
		if rollback(ctx, x.pg) != nil {
			_ = x.pg.Close(ctx)
		}
	}
	return nil
}
