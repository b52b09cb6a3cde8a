package mirror

import (
	"context"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Found is a table of the source.
type Found struct {
	Table       schema.Name
	Rows, Bytes int64 // estimates; -1 unknown
	Key         []string
	Selected    bool
	Refused     string // why it is not, or would not be, mirrored, and what to do; "" if it is or could be
}

// Discover returns all tables of the source, selected or not. It changes nothing.
func Discover(ctx context.Context, source connector.Source, sel func(*schema.Table) (Settings, bool)) ([]Found, error) {
	tables, err := source.Tables(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]Found, len(tables))
	for i, t := range tables {
		settings, selected := sel(t)
		found[i] = Found{
			Table: t.Name, Rows: t.Rows, Bytes: -1, Key: t.KeyNames(), Selected: selected, Refused: refusal(t, settings),
		}
		switch {
		case t.Rows == 0:
			found[i].Bytes = 0
		case t.Rows > 0 && t.RowBytes >= 0:
			found[i].Bytes = t.Rows * t.RowBytes
		}
	}
	return found, nil
}
