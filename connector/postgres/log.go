package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// endOfLog is where the next record will be written; on a standby what it has replayed.
const endOfLog = `CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
	ELSE pg_catalog.pg_current_wal_insert_lsn() END`

// flushedLog is up to where the log is on disk, which is what a walsender sends.
const flushedLog = `CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
	ELSE pg_catalog.pg_current_wal_flush_lsn() END`

// messagePrefix marks our own logical messages. They carry nothing: the transaction around one makes a position move.
const messagePrefix = "sluice"

// Head returns the end of the log and writes a message behind it, so that the stream passes it also where nobody else
// writes.
func (s *Source) Head(ctx context.Context, _ string) (connector.Positions, error) {
	end, err := s.readLSN(ctx, endOfLog)
	if err != nil {
		return nil, err
	}
	if err := s.emitMessage(ctx); err != nil {
		if _, ok := errors.AsType[*pgconn.PgError](err); !ok {
			return nil, wrapError(err, sourceSystem, "read the end of the log", schema.Name{})
		}
		// Without the right, or on a standby: the keepalives of an idle server reach what is on disk now.
		if end, err = s.readLSN(ctx, flushedLog); err != nil {
			return nil, err
		}
	}
	p := position{system: s.server.system, timeline: s.currentTimeline(), lsn: end}
	return connector.Positions{"": p.Position()}, nil
}

// emitMessage does not wait for a synchronous standby, which may be away: what the message says is nothing to lose.
func (s *Source) emitMessage(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "SELECT pg_catalog.set_config('synchronous_commit', 'local', true), "+
		"pg_catalog.pg_logical_emit_message(true, $1, '')", messagePrefix)
	return err
}

// currentTimeline is the one that a Stream found last, which is newer than what the last checkpoint has recorded.
func (s *Source) currentTimeline() uint32 {
	s.timelines.mu.RLock()
	defer s.timelines.mu.RUnlock()
	return max(s.timelines.history.timeline, s.server.timeline)
}

func (s *Source) readLSN(ctx context.Context, expression string) (LSN, error) {
	var text string
	err := s.pool.QueryRow(ctx, "SELECT ("+expression+")::text").Scan(&text)
	if err != nil {
		return 0, wrapError(err, sourceSystem, "read the end of the log", schema.Name{})
	}
	return ParseLSN(text)
}

// Retained returns how many bytes of log the server keeps for our slot.
func (s *Source) Retained(ctx context.Context, _ string) (int64, error) {
	var bytes int64
	err := s.pool.QueryRow(ctx, "SELECT coalesce(pg_catalog.pg_wal_lsn_diff("+endOfLog+", restart_lsn), 0)::bigint "+
		"FROM pg_catalog.pg_replication_slots WHERE slot_name = $1", s.slotName()).Scan(&bytes)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, s.slotGone("read the retained log")
	}
	return bytes, wrapError(err, sourceSystem, "read the retained log", schema.Name{})
}

// Remove drops the slot and then the publications, which are what tells that the slot is ours.
func (s *Source) Remove(ctx context.Context) error {
	pubs, err := s.readPublications(ctx)
	if err != nil {
		return err
	}
	slot, err := s.readSlot(ctx)
	if err != nil {
		return err
	}
	ours := pubs.anyOurs()
	if slot != nil {
		if !ours || !slot.decodes(s.server.database) {
			return s.notOurs("remove the slot", fmt.Sprintf("replication slot %q", slot.name), slot.dropStatement())
		}
		if err := s.dropSlot(ctx, slot); err != nil {
			return err
		}
	}
	return s.dropPublications(ctx, pubs)
}
