package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Waits between two looks at the locks.
const (
	lockPollMin = 5 * time.Millisecond
	lockPollMax = 100 * time.Millisecond
)

// writeModes are the modes of table locks under which rows can be written (documentation, "Table-Level Locks"); SHARE and
// SHARE UPDATE EXCLUSIVE are those of index builds and of vacuum.
var writeModes = []string{"RowExclusiveLock", "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock"}

// writer is a transaction that has written, or is about to.
type writer struct {
	transaction string // virtual transaction id; a prepared transaction keeps that of its session
	pid         int32  // 0: prepared
	application string
	gid         string // of a prepared one
	since       string // "" if we may not know
}

func (w writer) String() string {
	who := fmt.Sprintf("pid %d", w.pid)
	if w.application != "" {
		who += " (" + w.application + ")"
	}
	if w.pid == 0 {
		who = fmt.Sprintf("prepared transaction %q", w.gid)
	}
	if w.since != "" {
		who += " since " + w.since
	}
	return who
}

// keepsOldPublication reports whether a server of this version goes on, for transactions that are running when a table
// enters a publication, with the publication as it was. Mended in 14.18, 15.13, 16.9 and 17.5 (release notes of May 2025).
func keepsOldPublication(version int) bool {
	mended := map[int]int{14: 18, 15: 13, 16: 9, 17: 5}
	minor, ok := mended[version/10_000]
	return ok && version%10_000 < minor
}

// waitForWriters waits until each transaction that held a write lock on the table or a partition of it at the beginning
// has let go. A lock outlives the commit until the transaction is visible, so that a snapshot taken after the wait sees
// every change that the stream, which has the table already, did not deliver. Nothing is locked.
func (s *Source) waitForWriters(ctx context.Context, t *schema.Table, oid uint32) error {
	const op = "wait for open transactions"
	relations, err := s.treeOf(ctx, oid)
	if err != nil {
		return wrapError(err, sourceSystem, op, t.Name)
	}
	all := keepsOldPublication(s.server.version)
	open, err := s.writers(ctx, relations, all, nil)
	if err != nil {
		return wrapError(err, sourceSystem, op, t.Name)
	}
	for pause := lockPollMin; len(open) > 0; pause = min(2*pause, lockPollMax) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return stillOpen(ctx, op, t.Name, open)
		}
		noted := make([]string, len(open))
		for i, w := range open {
			noted[i] = w.transaction
		}
		left, err := s.writers(ctx, relations, all, noted)
		if ctx.Err() != nil {
			return stillOpen(ctx, op, t.Name, open)
		}
		if err != nil {
			return wrapError(err, sourceSystem, op, t.Name)
		}
		open = left
	}
	return nil
}

func stillOpen(ctx context.Context, op string, table schema.Name, open []writer) error {
	return &connector.Error{
		Kind: connector.Conflict, System: sourceSystem, Op: op, Table: table,
		Err:  fmt.Errorf("%w: the table was written by transactions that are still open: %s", ctx.Err(), joinWriters(open)),
		Hint: "commit them or roll them back",
	}
}

// namedWriters bounds how many transactions an error or a warning names.
const namedWriters = 10

func joinWriters(open []writer) string {
	names := make([]string, min(len(open), namedWriters))
	for i := range names {
		names[i] = open[i].String()
	}
	if more := len(open) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// treeOf returns the table and, if it is partitioned, all partitions of all depths.
func (s *Source) treeOf(ctx context.Context, oid uint32) ([]uint32, error) {
	rows, err := s.pool.Query(ctx, leafTree+` SELECT member FROM tree UNION SELECT $2::oid`, []uint32{oid}, oid)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uint32])
}

// writers returns the transactions that hold a write lock on one of the relations; with all, every transaction that has
// an id. A noted list confines them to those in it. The oldest ones come first, as far as we may know since when they run.
func (s *Source) writers(ctx context.Context, relations []uint32, all bool, noted []string) ([]writer, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT DISTINCT l.virtualtransaction, coalesce(l.pid, 0), coalesce(a.application_name, ''), coalesce(p.gid, ''),
		       coalesce(a.xact_start, p.prepared)::timestamptz(0)::text AS since
		FROM pg_catalog.pg_locks l
		LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		LEFT JOIN pg_catalog.pg_locks x ON l.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
			AND x.virtualtransaction = l.virtualtransaction
		LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
		WHERE l.granted AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
		  AND ($4::text[] IS NULL OR l.virtualtransaction = ANY($4::text[]))
		  AND (l.locktype = 'relation' AND l.relation = ANY($1::oid[]) AND l.mode = ANY($2::text[])
		       AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
		    OR $3::bool AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock')
		ORDER BY since`,
		relations, writeModes, all, noted)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (w writer, err error) {
		var since *string
		err = row.Scan(&w.transaction, &w.pid, &w.application, &w.gid, &since)
		if since != nil {
			w.since = *since
		}
		return w, err
	})
}
