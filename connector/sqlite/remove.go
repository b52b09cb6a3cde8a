package sqlite

import (
	"context"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Remover = (*Sink)(nil)

// Remove forgets the mirror that was claimed, in one transaction: its entries, which tables it owns, unfinished copies and
// the claim itself; with the last mirror go the tables that they were kept in. Destinations stay, and so does the file.
func (s *Sink) Remove(ctx context.Context) error {
	const op = "remove the mirror"
	x, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer x.Rollback()
	err = x.do(ctx, op, schema.Name{}, func(w *writer) error {
		if err := w.dropCopies(); err != nil {
			return err
		}
		err := w.exec("DELETE FROM sluice_owner WHERE mirror = ?", w.claim.id)
		if err == nil {
			err = w.exec("DELETE FROM sluice_entry WHERE mirror = ?", w.claim.mirror)
		}
		if err == nil {
			err = w.exec("DELETE FROM sluice_mirror WHERE name = ?", w.claim.mirror)
		}
		if err != nil {
			return err
		}
		return w.dropAccounts()
	})
	if err != nil {
		return err
	}
	return x.Commit(ctx, nil)
}

// dropCopies drops the tables that copies of this mirror's destinations were loaded into; their names follow from the
// destinations'.
func (w *writer) dropCopies() error {
	var prefixes []string
	err := w.query(`SELECT "table" FROM sluice_owner WHERE mirror = ?`, func(row *sqlite.Stmt) {
		prefixes = append(prefixes, copyPrefix(row.ColumnText(0)))
	}, w.claim.id)
	var left []string
	for _, prefix := range prefixes {
		if err == nil {
			err = w.query("SELECT name FROM sqlite_schema WHERE type = 'table' AND substr(name, 1, ?2) = ?1", func(row *sqlite.Stmt) {
				left = append(left, row.ColumnText(0))
			}, prefix, len(prefix))
		}
	}
	for _, table := range left {
		if err == nil {
			err = w.exec("DROP TABLE " + quoteIdent(table))
		}
	}
	return err
}

// dropAccounts drops the tables that mirrors are kept in if none is left.
func (w *writer) dropAccounts() error {
	left, err := queryText(w.conn, "SELECT 1 FROM sluice_mirror LIMIT 1")
	if err != nil || left != "" {
		return err
	}
	for _, table := range []string{"sluice_mirror", "sluice_entry", "sluice_owner"} {
		if err := w.exec("DROP TABLE " + table); err != nil {
			return err
		}
	}
	return nil
}
