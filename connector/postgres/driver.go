package postgres

import (
	"context"

	"github.com/sluicehq/sluice/connector"
)

// Driver returns the entry for the list of connectors.
func Driver() connector.Driver {
	return connector.Driver{
		Name:      "postgres",
		NewConfig: NewConfig,
		Source: func(ctx context.Context, c connector.Config, e connector.Env) (connector.Source, error) {
			s, err := OpenSource(ctx, c.(*Config), e)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Sink: func(ctx context.Context, c connector.Config, e connector.Env) (connector.Sink, error) {
			s, err := OpenSink(ctx, c.(*Config), e)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
	}
}
