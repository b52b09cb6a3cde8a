package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// minVersion is the oldest server that is read or written, as server_version_num.
const minVersion = 140000

// Source reads one database. It implements connector.Source.
type Source struct {
	config *Config
	env    connector.Env
	pool   *pgxpool.Pool // queries, snapshots and chunks; the replication connection comes on top
	server server
	given  bool          // the publication is somebody else's, see findGiven
	views  chan struct{} // one for each open snapshot: they leave half of the pool to what reads under them

	timelines timelines
	versions  tableVersions
	seen      seenToken
}

var _ connector.Source = (*Source)(nil)

// server is what a source must know of the cluster it is connected to.
type server struct {
	system   uint64 // pg_control_system().system_identifier
	timeline uint32
	version  int // server_version_num
	database string
}

// OpenSource connects to the database that config names. The Source is to be closed.
func OpenSource(ctx context.Context, config *Config, e connector.Env) (*Source, error) {
	pool, err := newPool(ctx, config, sourceSystem, "sluice "+e.Mirror)
	if err != nil {
		return nil, err
	}
	s := &Source{config: config, env: e, pool: pool, views: make(chan struct{}, max(1, config.Connections/2))}
	if s.server, err = readServer(ctx, pool); err == nil {
		s.given, err = s.findGiven(ctx)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

func readServer(ctx context.Context, pool *pgxpool.Pool) (server, error) {
	var s server
	var system string
	err := pool.QueryRow(ctx, `
		SELECT (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
		       (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint()),
		       pg_catalog.current_setting('server_version_num')::int,
		       pg_catalog.current_database()`).Scan(&system, &s.timeline, &s.version, &s.database)
	if err != nil {
		return server{}, wrapError(err, sourceSystem, "read the server's identity", schema.Name{})
	}
	if _, err := fmt.Sscan(system, &s.system); err != nil {
		return server{}, wrapError(err, sourceSystem, "read the server's identity", schema.Name{})
	}
	if s.version < minVersion {
		return server{}, &connector.Error{
			Kind: connector.Setup, System: sourceSystem, Op: "connect",
			Err:  fmt.Errorf("server version %d.%d is older than 14", s.version/10000, s.version%10000),
			Hint: "use a supported server, PostgreSQL 14 or later",
		}
	}
	return s, nil
}

// Close ends all connections of the source but those of its streams.
func (s *Source) Close() error {
	s.pool.Close()
	return nil
}
