// Package postgres reads and writes PostgreSQL, from version 14 on. As a source it discovers tables in the catalog, follows
// the log through a logical slot and the output plugin pgoutput, and copies tables in chunks under an exported snapshot; as
// a sink it loads copies with COPY and applies changes as sets.
//
// Rights, settings and limits are in docs/connectors/postgres.md. The protocols, chapters of the server's documentation:
// "Streaming Replication Protocol", "Logical Streaming Replication Protocol", "Logical Replication Message Formats", and
// COPY's binary format in the reference of COPY.
package postgres
