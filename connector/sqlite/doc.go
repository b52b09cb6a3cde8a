// Package sqlite writes to one SQLite database file. What users must know is in docs/connectors/sqlite.md.
//
// Tables are STRICT and the file has a write-ahead log, so readers of any program see the last committed state while we
// write. A commit is on disk when it returns (synchronous = FULL).
//
// Values keep what they are: whatever SQLite's own numbers cannot hold exactly is text, in the form that PostgreSQL
// prints; see types.go and array.go.
//
// # Where the formats are described
//
//   - https://www.sqlite.org/stricttables.html
//   - https://www.sqlite.org/wal.html
//   - https://www.sqlite.org/lang_altertable.html ("Making Other Kinds Of Table Schema Changes")
//   - https://www.sqlite.org/rescode.html
package sqlite
