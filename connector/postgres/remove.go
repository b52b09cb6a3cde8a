package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Remover = (*Sink)(nil)

// Remove forgets the mirror that was claimed: its entries, which tables it owns, unfinished copies and the claim itself;
// with the last mirror goes the schema sluice, if nobody has put anything else there. Destinations stay.
func (s *Sink) Remove(ctx context.Context) error {
	const op = "remove the mirror"
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	id, name := quoteLiteral(x.claim.id), quoteLiteral(x.claim.mirror)
	// A copy is under way where loading is not 0; the name of its table follows from the destination's.
	owned, err := x.query(ctx, `SELECT schema, "table" FROM sluice.owner WHERE loading <> 0 AND mirror = `+id)
	for _, r := range owned {
		if err == nil {
			err = x.dropCopies(ctx, schema.Name{Schema: r[0], Table: r[1]})
		}
	}
	if err == nil {
		_, err = x.exec(ctx, fmt.Sprintf(`DELETE FROM sluice.owner WHERE mirror = %s; DELETE FROM sluice.entry WHERE mirror = %s;
			DELETE FROM sluice.mirror WHERE name = %[2]s`, id, name))
	}
	if err == nil {
		err = x.Commit(ctx, nil)
	}
	if err != nil {
		return wrapError(err, sinkSystem, op, schema.Name{})
	}
	return wrapError(s.dropAccounts(ctx), sinkSystem, op, schema.Name{})
}

// dropCopies drops the tables that copies of this destination were loaded into.
func (x *tx) dropCopies(ctx context.Context, destination schema.Name) error {
	left, err := x.query(ctx, fmt.Sprintf(`SELECT relname FROM pg_catalog.pg_class
		WHERE relnamespace = 'sluice'::regnamespace AND relkind = 'r' AND relname ~ '^%s[0-9]+$'`, copyPrefix(destination)))
	if err != nil || len(left) == 0 {
		return err
	}
	names := make([]string, len(left))
	for i, r := range left {
		names[i] = quoteName(schema.Name{Schema: sinkSchema, Table: r[0]})
	}
	_, err = x.exec(ctx, "DROP TABLE "+strings.Join(names, ", "))
	return err
}

// dropAccounts drops the schema sluice if no mirror is left in it. That something else stands there, or that it was made
// by another role, is no fault.
func (s *Sink) dropAccounts(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var empty bool
		_, err := tx.Exec(ctx, fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock(%d)", ddlLock))
		if err == nil {
			_, err = tx.Exec(ctx, "LOCK TABLE sluice.mirror, sluice.entry, sluice.owner IN ACCESS EXCLUSIVE MODE")
		}
		if err == nil {
			err = tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM sluice.mirror)").Scan(&empty)
		}
		if err == nil && empty {
			_, err = tx.Exec(ctx, "DROP TABLE sluice.mirror, sluice.entry, sluice.owner")
		}
		if err == nil && empty {
			_, err = tx.Exec(ctx, "DROP SCHEMA sluice")
		}
		return err
	})
	if isState(err, "42501", "2BP01", "55P03", "42P01") { // no right, something depends on it, in use, gone already
		return nil
	}
	return err
}
