package connector

import (
	"context"
	"log/slog"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/schema"
)

// Optional abilities, each one method, found by type assertion.
type (
	// Checker is a Source or a Sink that finds every set-up fault at once; it changes nothing.
	Checker interface {
		Check(ctx context.Context, ts []*schema.Table) ([]Problem, error)
	}
	// Finder is a Source that reads the rows with these keys as they are now; a key that is gone is not in the answer.
	Finder interface {
		Find(ctx context.Context, t *schema.Table, keys arrow.RecordBatch) (*Rows, error)
	}
	// Scanner is a Source or a Sink that reads the rows of a key range in the server's own order; nil bounds are open.
	Scanner interface {
		Scan(ctx context.Context, t *schema.Table, after, upTo arrow.RecordBatch) (RowReader, error)
	}
	// Retainer is a Source that knows how many bytes of log the server keeps for us.
	Retainer interface {
		Retained(ctx context.Context, log string) (int64, error)
	}
	// Remover is a Source that drops the slot and publication that Stream made.
	Remover interface {
		Remove(ctx context.Context) error
	}
)

// Driver is an entry in the list of connectors (connector/all). The engine never names one.
type Driver struct {
	Name      string
	NewConfig func() Config                                              // a pointer to a struct, its defaults set; tags declare key, text, limits, secrecy
	Source    func(ctx context.Context, c Config, e Env) (Source, error) // nil: not a source
	Sink      func(ctx context.Context, c Config, e Env) (Sink, error)   // nil: not a sink
}

// Config is the part of a config file that belongs to a connector.
type Config interface{ Validate() []Problem }

// Problem is one finding of a check, with the statement or setting that mends it. In a Config's findings Table is the
// key at fault.
type Problem struct{ Table, What, Fix string }

// Env is what a connector gets from outside.
type Env struct {
	Mirror string // its name, for names of slots and the like
	ID     string // its id, to recognise what is ours; "" where nothing is made (plan, check)
	Dir    string // the folder of the config file, for relative paths
	Log    *slog.Logger
	Alloc  memory.Allocator
}
