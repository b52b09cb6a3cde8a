package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var (
	_ connector.Identifier  = (*Source)(nil)
	_ connector.Identifier  = (*Sink)(nil)
	_ connector.EntryReader = (*Sink)(nil)
)

// Identity names the database; see connector.Identifier.
func (s *Source) Identity(ctx context.Context) (string, error) {
	return databaseOf(ctx, s.pool, sourceSystem)
}

// Identity names the database; see connector.Identifier.
func (s *Sink) Identity(ctx context.Context) (string, error) {
	return databaseOf(ctx, s.pool, sinkSystem)
}

func databaseOf(ctx context.Context, pool *pgxpool.Pool, system string) (name string, err error) {
	err = pool.QueryRow(ctx, `SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()) || '/' || oid
		FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()`).Scan(&name)
	return name, wrapError(err, system, "identify the database", schema.Name{})
}

// Entries returns what is kept for the mirror; see connector.EntryReader.
func (s *Sink) Entries(ctx context.Context) (map[string]string, error) {
	const op = "read the entries"
	there, err := s.query(ctx, "SELECT 1 WHERE pg_catalog.to_regclass('sluice.mirror') IS NOT NULL AND pg_catalog.to_regclass('sluice.entry') IS NOT NULL")
	if err != nil || len(there) == 0 {
		return nil, wrapError(err, sinkSystem, op, schema.Name{})
	}
	name, id := quoteLiteral(s.env.Mirror), quoteLiteral(s.env.ID)
	rows, err := s.query(ctx, "SELECT e.key, e.value FROM sluice.entry e JOIN sluice.mirror m ON m.name = e.mirror WHERE m.name = "+
		name+" AND "+id+" IN ('', m.id)")
	entries := map[string]string{}
	for _, r := range rows {
		entries[r[0]] = r[1]
	}
	return entries, wrapError(err, sinkSystem, op, schema.Name{})
}
