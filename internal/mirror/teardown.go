package mirror

import (
	"context"
	"errors"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/lane"
	"github.com/sluicehq/sluice/schema"
)

// TearDown removes what a mirror has made at the source, its spool, and then what the sink keeps of it. It returns the destinations,
// which stay. The sink is claimed, so that a run on another machine ends; the caller holds the state, and removes it when
// all is done: it tells which mirror's things these are. It may be repeated.
func TearDown(ctx context.Context, o Options) ([]schema.Name, error) {
	id, err := o.Store.MirrorID(ctx)
	if err != nil {
		return nil, err
	}
	tables, err := o.Store.Tables(ctx)
	if err != nil {
		return nil, err
	}
	sink, err := o.Sink(ctx, id)
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	claim, err := sink.Claim(ctx, o.Mirror, id)
	if err != nil {
		return nil, err
	}
	err = removeSource(ctx, o, claim.ID)
	if err == nil && o.Spool != "" {
		err = lane.RemoveSpool(o.Spool, claim.ID)
	}
	if err == nil || claim.New { // what the claim has just made is of no use to anybody
		err = errors.Join(err, remove(ctx, sink))
	}
	var stay []schema.Name
	for _, t := range tables {
		if t.Copy > 0 {
			stay = append(stay, t.Destination)
		}
	}
	return stay, err
}

func removeSource(ctx context.Context, o Options, id string) error {
	source, err := o.Source(ctx, id)
	if err != nil {
		return err
	}
	defer source.Close()
	return remove(ctx, source)
}

// remove has a side drop what it made, if it makes anything.
func remove(ctx context.Context, side any) error {
	if remover, ok := side.(connector.Remover); ok {
		return remover.Remove(ctx)
	}
	return nil
}
