package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// sinkSchema holds what we keep beside the mirrored tables: what mirrors there are, their entries, who owns which
// destination, and the tables that copies are loaded into.
const sinkSchema = "sluice"

// sinkFormat is the version of the tables below. A database that holds a newer one is refused.
const sinkFormat = 1

// sinkTables makes what Claim needs. The copy of an owner is the number of the copy last ready in the destination, 0 if
// none; loading is that of the copy under way; foreign_made says that somebody else has made the destination. Entries are rewritten with every batch, hence the room in their pages.
const sinkTables = `
CREATE SCHEMA IF NOT EXISTS sluice;
CREATE TABLE IF NOT EXISTS sluice.mirror (
	name text PRIMARY KEY, id text NOT NULL, epoch bigint NOT NULL, format int NOT NULL,
	claimed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS sluice.entry (
	mirror text, key text, value text NOT NULL, PRIMARY KEY (mirror, key)) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS sluice.owner (
	schema text, "table" text, mirror text NOT NULL, source text NOT NULL,
	copy int NOT NULL DEFAULT 0, loading int NOT NULL DEFAULT 0, foreign_made boolean NOT NULL DEFAULT false, PRIMARY KEY (schema, "table"));
ALTER TABLE sluice.owner ADD COLUMN IF NOT EXISTS foreign_made boolean NOT NULL DEFAULT false;
`

// setUp makes the schema sluice where it is missing and refuses a newer format.
func setUp(ctx context.Context, pg *pgconn.PgConn, database, role string) error {
	const op = "set up the schema sluice"
	missing, err := readRows(ctx, pg, `SELECT 1 WHERE pg_catalog.to_regclass('sluice.mirror') IS NULL
		OR pg_catalog.to_regclass('sluice.entry') IS NULL OR pg_catalog.to_regclass('sluice.owner') IS NULL
		OR NOT EXISTS (SELECT FROM pg_catalog.pg_attribute WHERE attrelid = pg_catalog.to_regclass('sluice.owner') AND attname = 'foreign_made')`)
	if err == nil && len(missing) > 0 {
		_, err = pg.Exec(ctx, fmt.Sprintf("BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(%d); %s COMMIT", ddlLock, sinkTables)).ReadAll()
	}
	if err != nil {
		return needsSchemaRight(err, op, schema.Name{}, database, role)
	}
	newer, err := readRows(ctx, pg, "SELECT max(format) FROM sluice.mirror HAVING max(format) > "+strconv.Itoa(sinkFormat))
	if err == nil && len(newer) > 0 {
		return sinkFault(connector.Setup, op, schema.Name{}, "use the newer version of sluice for this database",
			"the schema sluice has format %s, newer than %d", newer[0][0], sinkFormat)
	}
	return wrapError(err, sinkSystem, op, schema.Name{})
}

// needsSchemaRight wraps the error of a statement that makes schemas and names the right that it needs.
func needsSchemaRight(err error, op string, table schema.Name, database, role string) error {
	err = wrapError(err, sinkSystem, op, table)
	if e, ok := errors.AsType[*connector.Error](err); ok && isState(err, "42501") {
		e.Hint = fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", quoteIdent(database), quoteIdent(role))
	}
	return err
}

// ddlLock serialises what several tables may make at once: schemas, types, our own tables.
var ddlLock = lockKey("sluice ddl")

// mirrorLock is the advisory lock that a mirror's transactions share and its Claim takes alone.
func mirrorLock(mirror string) int64 { return lockKey("sluice mirror " + mirror) }

// lockKey makes a key of the server's advisory locks. Two names with one key would only wait for each other.
func lockKey(name string) int64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	return int64(h.Sum64())
}

func newMirrorID() string { return rand.Text() }
