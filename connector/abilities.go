package connector

import (
	"context"
	"log/slog"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/schema"
)

// Optional abilities, each one method, found by type assertion.
type (
	// Checker is a Source or a Sink that finds every set-up fault at once; it changes nothing. ts are the tables that are
	// to be mirrored, for a Sink under the names of their destinations. An error says that it could not look.
	Checker interface {
		Check(ctx context.Context, ts []*schema.Table) ([]Problem, error)
	}
	// Finder is a Source that reads the rows with these keys as they are now, in any order; a key that is gone is not in the
	// answer. Keys has the key's columns as t has them, in key order. Kind ViewLost if t is no longer the table's version.
	Finder interface {
		Find(ctx context.Context, t *schema.Table, keys arrow.RecordBatch) (*Rows, error)
	}
	// Scanner is a Source or a Sink that reads the rows of a key range in the server's own order; nil bounds are open.
	Scanner interface {
		Scan(ctx context.Context, t *schema.Table, after, upTo arrow.RecordBatch) (RowReader, error)
	}
	// Noter is a Source that tells, for people, what it would use or make at the system beside the tables, where the settings
	// leave that open. It writes nothing.
	Noter interface {
		Notes(ctx context.Context) ([]string, error)
	}
	// Rewriter is a Source that can tell from the Layouts of two versions of a table, the one that a destination's rows are
	// of and a later one, that stored values have changed, or may have, without changes in the log. It returns why, for
	// people; "": they have not. It is pure.
	Rewriter interface {
		Rewrote(from, to *schema.Table) string
	}
	// Rewound is a Stream that may begin before the position that it was opened after: where the log stands that keeps what
	// was not acknowledged. Every transaction from there on comes, so one that the sink knows of and that does not come was
	// in another history: that of a server which was restored since, and whose log has grown beyond it again. It may also
	// begin before a position that its history has left, where both still agree: Compare tells so, by Kind Gap.
	Rewound interface {
		Delivers() Positions // from here on
	}
	// Coverer is a Stream that looks whether all changes of the tables that were added to it are still sent. It returns
	// the others, each with what keeps changes from being sent.
	Coverer interface {
		Uncovered(ctx context.Context) (map[schema.ID]string, error)
	}
	// Retainer is a Source that knows what makes the server keep log for us, and how much. It writes nothing.
	Retainer interface {
		Retained(ctx context.Context, log string) (Retained, error)
	}
	// Meter is a Source that knows its clock and how much of a log, as it is now, lies behind each of these points: -1 where
	// that cannot be told. It writes nothing.
	Meter interface {
		Measure(ctx context.Context, log string, from []Positions) (bytes []int64, clock time.Time, err error)
	}
	// Identifier is a Source or a Sink that names the database behind it: two names are equal where it is one and the same, so
	// that no table is mirrored into itself. It writes nothing.
	Identifier interface {
		Identity(ctx context.Context) (string, error)
	}
	// EntryReader is a Sink that returns what it keeps for the mirror of its Env without a Claim; nil if that is nothing, or
	// another mirror's. It writes nothing.
	EntryReader interface {
		Entries(ctx context.Context) (map[string]string, error)
	}
	// Remover is a Source or a Sink that drops what it has made for the mirror of its Env, and nothing else: a Source slot
	// and publication, a Sink, once claimed, its accounts of the mirror and unfinished copies, never a destination. It may
	// be repeated. What is not this mirror's is Kind Setup and stays.
	Remover interface {
		Remove(ctx context.Context) error
	}
)

// Retained is log that a server keeps for us.
type Retained struct {
	By    string // what makes it keep it, for people: replication slot "sluice_shop"
	Bytes int64
}

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
type Problem struct {
	Table, What, Fix string
	Note             bool // worth knowing, no fault
}

// Env is what a connector gets from outside.
type Env struct {
	Mirror string // its name, for names of slots and the like
	ID     string // its id, to recognise what is ours; "" where nothing is made (plan, check)
	Dir    string // the folder of the config file, for relative paths
	Log    *slog.Logger
	Alloc  memory.Allocator
}
