package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const (
	// slotBusyWait is how long a slot may stay in use before opening it is given up.
	slotBusyWait = 30 * time.Second
	// ownSenderWait is how long a connection of our own past has to notice that it is gone.
	ownSenderWait = time.Second
	// slotPoll is the pause between two looks at a slot that is in use.
	slotPoll = 50 * time.Millisecond
	// creationReport is how often the wait for old transactions is logged.
	creationReport = 10 * time.Second
	// reportTimeout bounds the query for whom we waited, after the caller's time is up.
	reportTimeout = 5 * time.Second
)

// slot is a row of pg_replication_slots, and who uses it.
type slot struct {
	name, kind, plugin, database string
	confirmed                    LSN    // confirmed_flush_lsn
	lost                         string // why it is invalid; "" if it is not
	pid                          int32  // who uses it; 0: nobody
	application                  string
}

// decodes reports whether the slot is one that we could have made in this database.
func (s *slot) decodes(database string) bool {
	return s.kind == "logical" && s.plugin == "pgoutput" && s.database == database
}

func (s *slot) dropStatement() string {
	return "SELECT pg_drop_replication_slot(" + strings.TrimSpace(quoteLiteral(s.name)) + ")"
}

// slotName is what our slot is called. The mark on a publication of ours tells whose the slot is; where the publication was
// given, the slot's own name must.
func (s *Source) slotName() string {
	if s.given {
		return s.markedSlotName()
	}
	return s.baseSlotName()
}

func (s *Source) baseSlotName() string {
	if s.config.Slot != "" {
		return s.config.Slot
	}
	return objectName(s.env.Mirror)
}

// markedSlotName ends with a hash of the mirror's id.
func (s *Source) markedSlotName() string { return fitName(s.baseSlotName(), s.env.ID, true) }

// ownsSlot reports whether a slot of our name, if there is one, is ours.
func (s *Source) ownsSlot(ps publications) bool { return s.given || ps.anyOurs() }

func (s *Source) application() string { return "sluice " + s.env.Mirror }

// isOurs reports whether an application_name is ours. The server keeps no more of one than of an identifier.
func (s *Source) isOurs(application string) bool {
	ours := s.application()
	return application == ours[:min(len(ours), maxNameLength)]
}

// invalidations explains why the server gave a slot up, by the names of 17 and later (SlotInvalidationCauses in slot.c).
var invalidations = map[string]string{
	"wal_removed":            "the log it needs was removed (max_slot_wal_keep_size)",
	"rows_removed":           "rows of the catalog that it needs were removed (conflict with recovery)",
	"wal_level_insufficient": "wal_level was lowered on the primary",
	"idle_timeout":           "it was not used for long (idle_replication_slot_timeout)",
}

// readSlot returns our slot's row, nil if there is none.
func (s *Source) readSlot(ctx context.Context) (*slot, error) {
	return s.readSlotNamed(ctx, s.slotName())
}

// readSlotNamed reads the columns that not every version has through JSON.
func (s *Source) readSlotNamed(ctx context.Context, name string) (*slot, error) {
	r := slot{name: name}
	var confirmed string
	err := s.pool.QueryRow(ctx, `
		SELECT r.slot_type, coalesce(r.plugin, ''), coalesce(r.database, ''),
		       coalesce(r.confirmed_flush_lsn, '0/0')::text,
		       coalesce(to_jsonb(r)->>'invalidation_reason',
		                CASE WHEN to_jsonb(r)->>'conflicting' = 'true' THEN 'rows_removed'
		                     WHEN r.wal_status = 'lost' THEN 'wal_removed' END, ''),
		       coalesce(r.active_pid, 0), coalesce(a.application_name, '')
		FROM pg_catalog.pg_replication_slots r LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = r.active_pid
		WHERE r.slot_name = $1`, r.name).
		Scan(&r.kind, &r.plugin, &r.database, &confirmed, &r.lost, &r.pid, &r.application)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if explained := invalidations[r.lost]; explained != "" {
		r.lost = explained
	}
	if err == nil {
		r.confirmed, err = ParseLSN(confirmed)
	}
	if err != nil {
		return nil, wrapError(err, sourceSystem, "read the replication slot", schema.Name{})
	}
	return &r, nil
}

// createSlot makes the slot and returns its consistent point. The server waits for every transaction that runs now; the
// end of ctx ends the wait.
func (s *Source) createSlot(ctx context.Context) (LSN, error) {
	type result struct {
		lsn string
		err error
	}
	done := make(chan result, 1)
	go func() { // it is received from below, whatever happens
		var r result
		r.err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			// The server waits for transactions as for locks, but nobody waits behind us.
			if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = 0"); err != nil {
				return err
			}
			return tx.QueryRow(ctx, "SELECT lsn::text FROM pg_catalog.pg_create_logical_replication_slot($1, 'pgoutput')",
				s.slotName()).Scan(&r.lsn)
		})
		done <- r
	}()
	report := time.NewTicker(creationReport)
	defer report.Stop()
	for {
		select {
		case <-report.C:
			s.log().Warn("replication slot waits for transactions to end", "slot", s.slotName(), "transactions", s.running(ctx))
		case r := <-done:
			if r.err != nil {
				return 0, s.slotCreationError(ctx, r.err)
			}
			return ParseLSN(r.lsn)
		}
	}
}

func (s *Source) slotCreationError(ctx context.Context, err error) error {
	const op = "create the replication slot"
	if ctx.Err() == context.Canceled {
		return ctx.Err()
	}
	if ctx.Err() != nil {
		return &connector.Error{
			Kind: connector.Conflict, System: sourceSystem, Op: op,
			Err:  fmt.Errorf("%w while it waited for open transactions: %s", ctx.Err(), s.running(ctx)),
			Hint: "let them end, or end them",
		}
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return wrapError(err, sourceSystem, op, schema.Name{})
	}
	e := &connector.Error{Kind: kindOfState(pg.Code), System: sourceSystem, Op: op, Err: serverError{pg}, Hint: pg.Hint}
	switch {
	case pg.Code == "53400": // configuration_limit_exceeded
		e.Kind, e.Hint = connector.Setup, "raise max_replication_slots, or drop a slot that is not needed"
	case pg.Code == "42501":
		e.Kind, e.Hint = connector.Setup, s.replicationRight()
	case strings.HasPrefix(pg.Code, "42"), pg.Code == "55000": // a name it does not take; wal_level
		e.Kind = connector.Setup
	}
	return e
}

func (s *Source) replicationRight() string {
	return "ALTER ROLE " + quoteIdent(s.pool.Config().ConnConfig.User) + " REPLICATION"
}

// running names the transactions with writes that run now, prepared ones too: creating a slot waits three times for those
// of the moment, so that also later ones than the creation may be waited for.
func (s *Source) running(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	open, err := s.writers(ctx, nil, true, nil)
	switch {
	case err != nil:
		return "not known: " + err.Error()
	case len(open) == 0:
		return "none is left"
	}
	return joinWriters(open)
}

// awaitFreeSlot waits until nobody uses the slot. A connection of our own past is ended after a moment.
func (s *Source) awaitFreeSlot(ctx context.Context, r *slot) (*slot, error) {
	began := time.Now()
	for r != nil && r.pid != 0 {
		waited := time.Since(began)
		if ctx.Err() == context.Canceled {
			return r, ctx.Err()
		}
		if ctx.Err() != nil || waited > slotBusyWait {
			return r, s.slotInUse(r)
		}
		if waited > ownSenderWait && s.isOurs(r.application) {
			s.log().Info("ending our own earlier replication connection", "pid", r.pid, "slot", r.name)
			if _, err := s.pool.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend($1)", r.pid); err != nil {
				return r, wrapError(err, sourceSystem, "end our own earlier replication connection", schema.Name{})
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(slotPoll):
		}
		again, err := s.readSlot(ctx)
		if err != nil {
			if ctx.Err() == context.DeadlineExceeded {
				return r, s.slotInUse(r)
			}
			return r, err
		}
		r = again
	}
	return r, nil
}

func (s *Source) slotInUse(r *slot) error {
	return &connector.Error{
		Kind: connector.Setup, System: sourceSystem, Op: "open the stream",
		Err:  fmt.Errorf("replication slot %q is in use by pid %d (application %q)", r.name, r.pid, r.application),
		Hint: "stop what uses it, or set `slot` and `publication` to names of this mirror's own",
	}
}

// dropSlot drops our own slot.
func (s *Source) dropSlot(ctx context.Context, r *slot) error {
	r, err := s.awaitFreeSlot(ctx, r)
	if err != nil || r == nil {
		return err
	}
	_, err = s.pool.Exec(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", r.name)
	return wrapError(err, sourceSystem, "drop the replication slot", schema.Name{})
}

// checkSlot reports why the stream cannot go on from a position with this slot.
func (s *Source) checkSlot(r *slot, from position) error {
	switch {
	case r == nil:
		return s.slotGone("open the stream")
	case !r.decodes(s.server.database):
		return s.notOurs("open the stream", fmt.Sprintf("replication slot %q (%s, plugin %q, database %q)", r.name, r.kind, r.plugin, r.database), r.dropStatement())
	case r.lost != "":
		return gap(from, fmt.Errorf("replication slot %q is invalid: %s", r.name, r.lost))
	case r.confirmed > from.lsn:
		return gap(from, fmt.Errorf("replication slot %q stands at %s, beyond this position: somebody else moved it, or the sink was restored from a backup", r.name, r.confirmed))
	}
	return nil
}

func (s *Source) slotGone(op string) error {
	return &connector.Error{
		Kind: connector.Gap, System: sourceSystem, Op: op,
		Err:  fmt.Errorf("replication slot %q does not exist", s.slotName()),
		Hint: hintGap,
	}
}

func gap(from position, why error) error {
	return &connector.Error{
		Kind: connector.Gap, System: sourceSystem, Op: "open the stream", Position: from.Position(), Err: why, Hint: hintGap,
	}
}

// otherHistory is a gap behind which the server may not be the one that it was.
func otherHistory(from position, why error) error {
	return gap(from, &connector.OtherHistoryError{Err: why})
}

// notOurs refuses to touch an object that carries one of our names but not our mark.
func (s *Source) notOurs(op, what, drop string) error {
	return &connector.Error{
		Kind: connector.Setup, System: sourceSystem, Op: op,
		Err:  fmt.Errorf("%s exists and was not made by this mirror", what),
		Hint: "if nothing needs it: " + drop + "; else set `slot` and `publication` to other names",
	}
}

func (s *Source) log() *slog.Logger {
	if s.env.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.env.Log
}
