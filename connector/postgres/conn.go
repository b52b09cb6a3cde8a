package postgres

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// connectTimeout bounds one attempt to connect, so that a host that does not answer becomes a fault and not a wait.
const connectTimeout = 15 * time.Second

// sessionSettings are the same on every connection, the walsender's included: the text of a value must not depend on the
// role's or the database's defaults, nor a copy on row security. lock_timeout keeps us from queuing others behind us.
// Notices would fill the connection while we only send rows, until both sides wait for the other to read.
var sessionSettings = map[string]string{
	"TimeZone":                            "UTC",
	"DateStyle":                           "ISO, YMD",
	"IntervalStyle":                       "postgres",
	"extra_float_digits":                  "3",
	"bytea_output":                        "hex",
	"lc_monetary":                         "C",
	"xmloption":                           "content",
	"client_encoding":                     "UTF8",
	"client_min_messages":                 "error",
	"search_path":                         "", // every name in SQL and in format_type's answers is qualified
	"row_security":                        "off",
	"statement_timeout":                   "0",
	"idle_in_transaction_session_timeout": "0",
	"lock_timeout":                        "5s",
	"synchronous_commit":                  "on",
}

// newPool returns a pool of at most c.Connections connections with our session settings, each opened when first needed.
func newPool(ctx context.Context, c *Config, system, application string) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, badURL(system)
	}
	setSession(&pc.ConnConfig.Config, application)
	if system == sourceSystem {
		// What we commit at the source, a publication, must be on its own disk. We do not wait for a synchronous standby that
		// may be away: no table could join until it is back.
		pc.ConnConfig.RuntimeParams["synchronous_commit"] = "local"
	}
	pc.MaxConns = int32(c.Connections)
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	return pool, wrapError(err, system, "connect", schema.Name{})
}

// connectReplication opens a connection to the walsender of the database (protocol-replication.html, replication=database).
func connectReplication(ctx context.Context, c *Config, application string) (*pgconn.PgConn, error) {
	pc, err := pgconn.ParseConfig(c.URL)
	if err != nil {
		return nil, badURL(sourceSystem)
	}
	setSession(pc, application)
	pc.RuntimeParams["replication"] = "database"
	pc.RuntimeParams["client_min_messages"] = "warning" // see noticedGap
	conn, err := pgconn.ConnectConfig(ctx, pc)
	return conn, wrapError(err, sourceSystem, "connect for replication", schema.Name{})
}

func badURL(system string) error {
	return &connector.Error{Kind: connector.Setup, System: system, Op: "connect", Err: errors.New("url " + unreadableURL), Hint: readableURL}
}

func setSession(pc *pgconn.Config, application string) {
	maps.Copy(pc.RuntimeParams, sessionSettings)
	pc.RuntimeParams["application_name"] = application
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = connectTimeout
	}
}
