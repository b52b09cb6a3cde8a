// Package postgres reads and writes PostgreSQL, 14 and later. As a source it discovers tables in the catalog, copies them
// in chunks under an exported snapshot and follows the log through a logical slot and the output plugin pgoutput; as a
// sink it loads copies with COPY and applies changes as sets. Rights, settings and limits for users are in
// docs/connectors/postgres.md.
//
// # As a source
//
// The server runs with wal_level = logical. The role may log in for replication (REPLICATION) and read what is mirrored
// (SELECT on the tables, USAGE on their schemas); row security must not apply to it, since a copy would lack rows that
// the stream has.
//
// Tables come from the catalog. Those that the log does not carry are refused: views, foreign and unlogged tables. A
// partitioned table is one table, an inheritance parent is read without its children, which are tables of their own.
// A table's key is the primary key or index whose columns its replica identity sends with every update and delete.
//
// Values come in binary form from a copy (COPY ... TO STDOUT (FORMAT binary)) and as text from the stream (pgoutput). The
// table of types in types.go says which logical type stands for a native one; every type that it does not name is carried
// as the text that its output function makes, in both.
//
// Generated columns are not in the log; they are left out of copies too, and NULL in all rows.
//
// A snapshot is taken after the transactions that wrote to the table have ended; it is then read in chunks, each in a
// short transaction that proves that the table was not altered, rewritten or emptied since.
//
// # Where the formats are described
//
//   - https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
//   - https://www.postgresql.org/docs/current/protocol-replication.html
//   - https://www.postgresql.org/docs/current/sql-copy.html (binary format)
//   - the *send and *_out functions in src/backend/utils/adt of the server's source
package postgres
