package sqlite

import (
	"context"

	"github.com/sluicehq/sluice/connector"
)

// Driver returns the entry for the list of connectors.
func Driver() connector.Driver {
	return connector.Driver{
		Name:      "sqlite",
		NewConfig: NewConfig,
		Sink: func(_ context.Context, c connector.Config, e connector.Env) (connector.Sink, error) {
			s, err := OpenSink(c.(*Config), e)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	}
}
