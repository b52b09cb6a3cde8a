package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/schema"
)

// connectTimeout bounds one attempt to connect, so that a host that does not answer becomes a fault and not a wait.
const connectTimeout = 15 * time.Second

// sessionSettings are the same on every connection, the walsender's included: the text of a value must not depend on the
// role's or the database's defaults, nor a copy on row security. lock_timeout keeps us from queuing others behind us.
var sessionSettings = map[string]string{
	"TimeZone":                            "UTC",
	"DateStyle":                           "ISO, YMD",
	"IntervalStyle":                       "postgres",
	"extra_float_digits":                  "3",
	"bytea_output":                        "hex",
	"lc_monetary":                         "C",
	"xmloption":                           "content",
	"client_encoding":                     "UTF8",
	"search_path":                         "", // every name in SQL and in format_type's answers is qualified
	"row_security":                        "off",
	"statement_timeout":                   "0",
	"idle_in_transaction_session_timeout": "0",
	"lock_timeout":                        "5s",
	"synchronous_commit":                  "on",
}

// connect opens a connection with our session settings. extra adds to them or overrides them ("replication").
func connect(ctx context.Context, c *Config, system, application string, extra map[string]string) (*pgconn.PgConn, error) {
	pc, err := pgconn.ParseConfig(c.URL)
	if err != nil {
		return nil, wrapError(fmt.Errorf("connection string: %w", err), system, "connect", schema.Name{})
	}
	for k, v := range sessionSettings {
		pc.RuntimeParams[k] = v
	}
	pc.RuntimeParams["application_name"] = application
	for k, v := range extra {
		pc.RuntimeParams[k] = v
	}
	if pc.ConnectTimeout == 0 {
		pc.ConnectTimeout = connectTimeout
	}
	conn, err := pgconn.ConnectConfig(ctx, pc)
	return conn, wrapError(err, system, "connect", schema.Name{})
}
