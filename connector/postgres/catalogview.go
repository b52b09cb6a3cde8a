package postgres

import (
	"context"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// catalogView is all tables as the catalog had them at one moment. A server describes every table anew when any table is
// published; while many tables join, and are written, each change comes behind such a description. To look each one up
// would take longer than the changes take to come.
type catalogView struct {
	seen   view // transactions that were visible before the catalog was read
	tables map[schema.ID]*schema.Table

	looks int       // lookups of single tables, from since on
	since time.Time //
}

const (
	// looksBeforeView is how many single tables are looked up within looksWithin before all are read at once.
	looksBeforeView = 4
	looksWithin     = time.Second
)

// holds reports whether the catalog holds a version of a table, unchanged, as of the transaction that is being read or
// later. If it returns false that is not certain. Who changes a table locks it until the change is visible, and who writes
// it afterwards is visible later: so a view that sees the writer shows the table as the writer had it, or newer.
func (st *stream) holds(ctx context.Context, version *schema.Table) (bool, error) {
	v := &st.catalog
	if !v.shows(st.tx) {
		if now := time.Now(); now.Sub(v.since) > looksWithin {
			v.looks, v.since = 0, now
		}
		if v.looks++; v.looks <= looksBeforeView {
			return false, nil
		}
		v.looks = 0
		if err := st.viewCatalog(ctx); err != nil || !v.shows(st.tx) {
			return false, err
		}
	}
	now := v.tables[version.ID]
	return now != nil && now.Refused == "" && alike(version, now), nil
}

func (v *catalogView) shows(tx transaction) bool {
	return v.tables != nil && v.seen.sees(uint32(tx.tag))
}

// viewCatalog reads the catalog anew.
func (st *stream) viewCatalog(ctx context.Context) error {
	var text string
	if err := st.source.pool.QueryRow(ctx, "SELECT pg_catalog.pg_current_snapshot()::text").Scan(&text); err != nil {
		return wrapError(err, sourceSystem, "read the catalog", schema.Name{})
	}
	seen, err := parseSnapshot(text)
	if err != nil {
		return &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: "read the catalog", Err: err}
	}
	tables, err := st.source.Tables(ctx)
	if err != nil {
		return err
	}
	st.catalog.seen, st.catalog.tables = seen, make(map[schema.ID]*schema.Table, len(tables))
	for _, t := range tables {
		st.catalog.tables[t.ID] = t
	}
	return nil
}
