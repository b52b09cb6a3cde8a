package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

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

var (
	_ connector.Retainer = (*Source)(nil)
	_ connector.Meter    = (*Source)(nil)
	_ connector.Remover  = (*Source)(nil)
)

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

func (s *Source) emitMessage(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "SELECT pg_catalog.pg_logical_emit_message(true, $1, '')", messagePrefix)
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
func (s *Source) Retained(ctx context.Context, _ string) (connector.Retained, error) {
	r := connector.Retained{By: fmt.Sprintf("replication slot %q", s.slotName())}
	err := s.pool.QueryRow(ctx, "SELECT coalesce(pg_catalog.pg_wal_lsn_diff("+endOfLog+", restart_lsn), 0)::bigint "+
		"FROM pg_catalog.pg_replication_slots WHERE slot_name = $1", s.slotName()).Scan(&r.Bytes)
	if errors.Is(err, pgx.ErrNoRows) {
		return r, s.slotGone("read the retained log")
	}
	return r, wrapError(err, sourceSystem, "read the retained log", schema.Name{})
}

// Measure returns how many bytes the log has beyond each of these positions, and the server's clock. Those of another
// server have no place in this log.
func (s *Source) Measure(ctx context.Context, _ string, from []connector.Positions) ([]int64, time.Time, error) {
	const op = "measure the log"
	var text string
	var clock time.Time
	err := s.pool.QueryRow(ctx, "SELECT ("+endOfLog+")::text, pg_catalog.clock_timestamp()").Scan(&text, &clock)
	if err != nil {
		return nil, clock, wrapError(err, sourceSystem, op, schema.Name{})
	}
	end, err := ParseLSN(text)
	if err != nil {
		return nil, clock, wrapError(err, sourceSystem, op, schema.Name{})
	}
	bytes := make([]int64, len(from))
	for i, at := range from {
		p, err := parsePosition(at[""])
		if err != nil || p.system != s.server.system {
			bytes[i] = -1
			continue
		}
		bytes[i] = max(0, int64(end)-int64(p.lsn))
	}
	return bytes, clock, nil
}

// Remove drops the slot and then the publications, which are what tells that the slot is ours. One that was given stays.
func (s *Source) Remove(ctx context.Context) error {
	pubs, err := s.readPublications(ctx)
	if err != nil {
		return err
	}
	slot, err := s.readSlot(ctx)
	if err != nil {
		return err
	}
	if slot != nil {
		if !s.ownsSlot(pubs) || !slot.decodes(s.server.database) {
			return s.notOurs("remove the slot", fmt.Sprintf("replication slot %q", slot.name), slot.dropStatement())
		}
		if err := s.dropSlot(ctx, slot); err != nil {
			return err
		}
	}
	return s.dropPublications(ctx, pubs)
}
