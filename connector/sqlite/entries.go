package sqlite

import (
	"context"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.EntryReader = (*Sink)(nil)

// Entries returns what is kept for the mirror; see connector.EntryReader.
func (s *Sink) Entries(ctx context.Context) (map[string]string, error) {
	var entries map[string]string
	mirror, id := s.mirrorIDs()
	err := s.read(ctx, func(conn *sqlite.Conn) error { // it may be called twice
		entries = map[string]string{}
		there, err := queryText(conn, "SELECT count(*) FROM sqlite_schema WHERE name IN ('sluice_entry', 'sluice_mirror')")
		if err != nil || there != "2" {
			return err
		}
		return query(conn, `SELECT e.key, e.value FROM sluice_entry e JOIN sluice_mirror m ON m.name = e.mirror
			WHERE m.name = ?1 AND ?2 IN ('', m.id)`, func(row *sqlite.Stmt) {
			entries[row.ColumnText(0)] = row.ColumnText(1)
		}, mirror, id)
	})
	return entries, wrapError(err, "read the entries", schema.Name{})
}
