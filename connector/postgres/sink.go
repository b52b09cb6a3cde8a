package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// claimWait is how long a Claim waits for the transactions of earlier claimants before it ends their connections.
const claimWait = 30 * time.Second

var _ connector.Sink = (*Sink)(nil)

// Sink writes to one database. It implements connector.Sink; all its methods are safe for concurrent use.
//
// Every transaction of a mirror holds a shared advisory lock from before it checks the mirror's epoch until it has ended.
// Claim takes that lock exclusively before it raises the epoch, so it finds everything done that an earlier claimant
// began, a COMMIT whose answer was lost included, and nothing of an earlier claimant begins after it.
type Sink struct {
	config    *Config
	env       connector.Env
	pool      *pgxpool.Pool
	claimWait time.Duration

	mu      sync.Mutex
	claim   claim
	entries map[string]string           // what is stored, as far as this Sink knows
	types   map[string]sinkType         // by the text that names them; the ones found
	layouts map[schema.Name]*sinkLayout // of the targets last written, by destination
}

// claim is what a transaction proves before it does anything.
type claim struct {
	mirror, id string
	epoch      int64
}

// OpenSink returns a sink for the database that config names. It connects when first used. The Sink is to be closed.
func OpenSink(ctx context.Context, config *Config, e connector.Env) (*Sink, error) {
	pool, err := newPool(ctx, config, sinkSystem, "sluice "+e.Mirror)
	if err != nil {
		return nil, err
	}
	return &Sink{
		config: config, env: e, pool: pool, claimWait: claimWait,
		types: map[string]sinkType{}, layouts: map[schema.Name]*sinkLayout{},
	}, nil
}

// Traits says that rows and entries are one transaction, kept in the database.
func (s *Sink) Traits() connector.Traits {
	return connector.Traits{Atomic: true, Keeps: true, Writers: s.config.Connections}
}

// Close ends all connections. It waits for transactions that have not ended.
func (s *Sink) Close() error {
	s.pool.Close()
	return nil
}

// Claim takes the mirror over; see connector.Sink.
func (s *Sink) Claim(ctx context.Context, mirror, id string) (*connector.Claim, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, wrapError(err, sinkSystem, "connect", schema.Name{})
	}
	defer conn.Release()
	pg := conn.Conn().PgConn()
	if err := setUp(ctx, pg, conn.Conn().Config().Database, conn.Conn().Config().User); err != nil {
		return nil, err
	}
	if err := lockMirror(ctx, pg, mirror, s.claimWait); err != nil {
		return nil, err
	}
	made, taken, err := takeMirror(ctx, pg, mirror, id)
	if err != nil {
		_ = rollback(ctx, pg) // the connection is dropped by the pool if this fails
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claim = taken
	s.entries = maps.Clone(made.Entries)
	return made, nil
}

// lockMirror begins a transaction and takes the mirror's lock exclusively. Who still holds it after the wait is a
// connection of this mirror whose process hangs or is cut off: it is ended, which rolls back what it has not committed.
func lockMirror(ctx context.Context, pg *pgconn.PgConn, mirror string, wait time.Duration) error {
	const rounds = 3 // each ends all holders, so a second one is needed only for those that came in between
	key := mirrorLock(mirror)
	var err error
	for range rounds {
		_, err = pg.Exec(ctx, fmt.Sprintf("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = %d; "+
			"SELECT pg_catalog.pg_advisory_xact_lock(%d)", max(1, wait.Milliseconds()), key)).ReadAll()
		if !isState(err, "55P03") {
			break
		}
		_, err = pg.Exec(ctx, fmt.Sprintf(`ROLLBACK;
			SELECT pg_catalog.pg_terminate_backend(a.pid, 5000)
			FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a USING (pid)
			WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND a.datname = pg_catalog.current_database()
			  AND l.classid = %d AND l.objid = %d AND a.pid <> pg_catalog.pg_backend_pid()
			  AND a.application_name = pg_catalog.current_setting('application_name')`,
			uint32(uint64(key)>>32), uint32(key))).ReadAll()
		if err != nil {
			break
		}
		err = &connector.Error{
			Kind: connector.Conflict, System: sinkSystem, Op: "claim the mirror",
			Err: errors.New("a transaction of an earlier run of this mirror does not end"),
			Hint: "end the other run's connections: SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = " +
				quoteLiteral("sluice "+mirror),
		}
	}
	if err != nil {
		_ = rollback(ctx, pg)
	}
	return wrapError(err, sinkSystem, "claim the mirror", schema.Name{})
}

// takeMirror raises the epoch in the transaction that lockMirror began, reads the entries and commits.
func takeMirror(ctx context.Context, pg *pgconn.PgConn, mirror, id string) (*connector.Claim, claim, error) {
	c := claim{mirror: mirror, epoch: 1}
	made := &connector.Claim{Entries: map[string]string{}}
	name := quoteLiteral(mirror)
	rows, err := readRows(ctx, pg, "SELECT id, epoch FROM sluice.mirror WHERE name = "+name)
	if err != nil {
		return nil, c, wrapError(err, sinkSystem, "claim the mirror", schema.Name{})
	}
	var change string
	if len(rows) == 0 {
		made.New, made.ID = true, id
		if id == "" {
			made.ID = newMirrorID()
		}
		change = fmt.Sprintf("INSERT INTO sluice.mirror (name, id, epoch, format) VALUES (%s, %s, 1, %d)", name, quoteLiteral(made.ID), sinkFormat)
	} else {
		made.ID = rows[0][0]
		if id != "" && id != made.ID {
			return nil, c, &connector.Error{
				Kind: connector.Setup, System: sinkSystem, Op: "claim the mirror",
				Err:  fmt.Errorf("another mirror named %q already writes here", mirror),
				Hint: "give this mirror another name, or tear the other one down",
			}
		}
		if _, err := fmt.Sscan(rows[0][1], &c.epoch); err != nil {
			return nil, c, wrapError(err, sinkSystem, "claim the mirror", schema.Name{})
		}
		c.epoch++
		change = fmt.Sprintf("UPDATE sluice.mirror SET epoch = %d, claimed_at = now() WHERE name = %s", c.epoch, name)
	}
	c.id = made.ID
	rows, err = readRows(ctx, pg, change+"; SELECT key, value FROM sluice.entry WHERE mirror = "+name)
	if err == nil {
		_, err = pg.Exec(ctx, "COMMIT").ReadAll()
	}
	for _, r := range rows {
		made.Entries[r[0]] = r[1]
	}
	return made, c, wrapError(err, sinkSystem, "claim the mirror", schema.Name{})
}

// readRows returns the text of the last statement's rows.
func readRows(ctx context.Context, pg *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := pg.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	return textRows(results[len(results)-1]), nil
}

// textRows copies the text of a result's rows, NULL as "".
func textRows(r *pgconn.Result) [][]string {
	rows := make([][]string, len(r.Rows))
	for i, row := range r.Rows {
		rows[i] = make([]string, len(row))
		for j, v := range row {
			rows[i][j] = string(v)
		}
	}
	return rows
}

func rollback(ctx context.Context, pg *pgconn.PgConn) error {
	_, err := pg.Exec(ctx, "ROLLBACK").ReadAll()
	return err
}

// current returns the claim that transactions prove.
func (s *Sink) current() (claim, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.mirror == "" {
		return claim{}, &connector.Error{System: sinkSystem, Op: "begin", Err: errors.New("the mirror was not claimed")}
	}
	return s.claim, nil
}

// sinkFault makes an error of ours, one that no server sent.
func sinkFault(kind connector.Kind, op string, table schema.Name, hint, format string, args ...any) error {
	return &connector.Error{Kind: kind, System: sinkSystem, Op: op, Table: table, Hint: hint, Err: fmt.Errorf(format, args...)}
}
