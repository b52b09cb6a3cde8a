package connectortest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Change is one statement of a transaction at the source. Values are the whole row of an Insert, the new row of an
// Update, where [Unsent] stands for a column that the statement does not name; Key is that of the row changed.
type Change struct {
	Op          connector.Op
	Table       schema.Name
	Key, Values Row
}

// InsertRow, UpdateRow, DeleteRow and TruncateTable make Changes.
func InsertRow(table schema.Name, values ...string) Change {
	return Change{Op: connector.Insert, Table: table, Values: values}
}

// UpdateRow changes the row under a key of one column.
func UpdateRow(table schema.Name, key string, values ...string) Change {
	return Change{Op: connector.Update, Table: table, Key: Row{key}, Values: values}
}

// DeleteRow deletes the row under a key of one column.
func DeleteRow(table schema.Name, key string) Change {
	return Change{Op: connector.Delete, Table: table, Key: Row{key}}
}

// TruncateTable deletes all rows.
func TruncateTable(table schema.Name) Change { return Change{Op: connector.Truncate, Table: table} }

// Harness is what the suites must know of a connector.
type Harness[System any] struct {
	// New makes an empty system for one check; it uses t.Cleanup to remove it.
	New func(t testing.TB) System
	// Schema is the part of a name in front of a table's: "public"; "" where the system has none.
	Schema string
	// Timeout bounds one check, so that a connector that hangs is a failure with a name; 0: a minute.
	Timeout time.Duration
	// Skip names checks that the system cannot pass, each with the reason.
	Skip map[string]string
}

type (
	// SourceHarness is what [RunSource] needs.
	SourceHarness = Harness[SourceSystem]
	// SinkHarness is what [RunSink] needs.
	SinkHarness = Harness[SinkSystem]
)

// SourceSystem is a source's server with one database. Where it implements [Holder], [Alterer], [Publisher] or [Stranger], checks use
// that; what it does not implement is skipped by name.
type SourceSystem interface {
	// Open returns the source as a process just started opens it: with the same slot, and rows from alloc.
	Open(ctx context.Context, alloc memory.Allocator) (connector.Source, error)
	// Create makes a table. Its toasted columns leave values above 2 kB out of updates that do not change them
	// (PostgreSQL: STORAGE EXTERNAL).
	Create(spec TableSpec) error
	// Exec runs one transaction.
	Exec(changes ...Change) error
	// Rows returns the rows of a table as they are.
	Rows(table schema.Name) ([]Row, error)
}

// Holder is a SourceSystem with transactions.
type Holder interface {
	// Hold begins a transaction with these changes and leaves it open; end goes on with more changes and commits.
	Hold(changes ...Change) (end func(more ...Change) error, err error)
}

// Alterer is a SourceSystem whose tables can change.
type Alterer interface {
	AddColumn(table schema.Name, c schema.Column) error
}

// Publisher is a SourceSystem whose log can have changes of tables that were not added to the stream.
type Publisher interface {
	// PublishAll puts the changes of all tables into the log of the open stream, those of later tables too. It returns
	// false if this server cannot.
	PublishAll() (able bool, err error)
}

// Stranger is a SourceSystem whose positions name their server.
type Stranger interface {
	// StrangePosition returns a position of another server.
	StrangePosition() connector.Position
}

// SinkSystem is a sink's server. Where it implements [HistoryReader], [SoftReader], [AnswerLoser] or [ForeignMaker], checks
// use that; what it does not implement is skipped by name.
type SinkSystem interface {
	// Open returns the sink as a process just started opens it.
	Open(ctx context.Context, alloc memory.Allocator) (connector.Sink, error)
	// Rows returns the rows of a destination as somebody else reads them, nil if there is no such table.
	Rows(table schema.Name, columns []string) ([]Row, error)
}

// HistoryReader is a SinkSystem that keeps history.
type HistoryReader interface {
	// History returns the rows of a history destination in the order of position and seq, those of a copy first; a
	// row's Time may be left out.
	History(table schema.Name, columns []string) ([]HistoryRow, error)
}

// SoftReader is a SinkSystem that keeps deleted rows.
type SoftReader interface {
	// SoftRows returns the rows of a destination with soft deletes, each with one value more: when it was deleted, in the form
	// of [schema.AppendTimestampTZ], [Null] if it lives.
	SoftRows(table schema.Name, columns []string) ([]Row, error)
}

// AnswerLoser is a SinkSystem whose connections can be cut.
type AnswerLoser interface {
	// LoseAnswer makes the next Commit of the sink opened last take effect and its answer get lost.
	LoseAnswer()
}

// ForeignMaker is a SinkSystem in which somebody else can make tables.
type ForeignMaker interface {
	// CreateForeign makes a table with these text columns and a row in it.
	CreateForeign(table schema.Name, columns ...string) error
}

// check is one check of a suite, named after what it protects.
type check[C any] struct {
	name string
	run  func(c C)
}

// RunSource runs every check of a source, each on a system of its own.
func RunSource(t *testing.T, h SourceHarness) {
	for _, ch := range sourceChecks {
		t.Run(ch.name, func(t *testing.T) {
			if reason := h.Skip[ch.name]; reason != "" {
				t.Skip(reason)
			}
			runSourceCheck(t, h, ch)
		})
	}
}

// RunSink runs every check of a sink, each on a system of its own.
func RunSink(t *testing.T, h SinkHarness) {
	for _, ch := range sinkChecks {
		t.Run(ch.name, func(t *testing.T) {
			if reason := h.Skip[ch.name]; reason != "" {
				t.Skip(reason)
			}
			runSinkCheck(t, h, ch)
		})
	}
}

// bench is what a check of either suite stands on.
type bench struct {
	testing.TB
	ctx     context.Context
	timeout time.Duration
	schema  string
	alloc   *memory.CheckedAllocator
}

// newBench returns a bench and what ends it: a check leaves no goroutine and no Arrow memory behind.
func newBench(t testing.TB, schema string, timeout time.Duration) (*bench, func()) {
	if timeout == 0 {
		timeout = time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	b := &bench{TB: t, ctx: ctx, schema: schema, timeout: timeout, alloc: memory.NewCheckedAllocator(memory.DefaultAllocator)}
	before := goleak.IgnoreCurrent()
	return b, func() {
		cancel()
		if !t.Failed() {
			goleak.VerifyNone(t, before)
			b.alloc.AssertSize(t, 0)
		}
	}
}

// patience is how long a call may go on after the end of its context.
func (b *bench) patience() time.Duration { return b.timeout / 6 }

// name returns the name of a table of the check.
func (b *bench) name(table string) schema.Name { return schema.Name{Schema: b.schema, Table: table} }

// ok ends the check if err is not nil.
func (b *bench) ok(err error, doing string) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", doing, err)
	}
}

// kind ends the check if err is not of a Kind.
func (b *bench) kind(err error, want connector.Kind, doing string) {
	b.Helper()
	if err == nil || connector.KindOf(err) != want {
		b.Fatalf("%s: error %v of kind %s, want kind %s", doing, err, connector.KindOf(err), want)
	}
}

// sameRows compares rows in any order.
func (b *bench) sameRows(got, want []Row, what string) {
	b.Helper()
	missing, extra := difference(rowLines(got), rowLines(want))
	if len(missing)+len(extra) > 0 {
		b.Fatalf("%s: of %d rows %d are missing: %s; %d are too many: %s", what, len(want), len(missing), firstOf(missing), len(extra), firstOf(extra))
	}
}

// difference returns what sorted got lacks of sorted want, and has beyond it.
func difference(got, want []string) (missing, extra []string) {
	for len(got) > 0 || len(want) > 0 {
		switch {
		case len(got) == 0 || len(want) > 0 && want[0] < got[0]:
			missing, want = append(missing, want[0]), want[1:]
		case len(want) == 0 || got[0] < want[0]:
			extra, got = append(extra, got[0]), got[1:]
		default:
			got, want = got[1:], want[1:]
		}
	}
	return missing, extra
}

// firstOf renders the first of some lines.
func firstOf(lines []string) string {
	const most = 8
	if len(lines) > most {
		return fmt.Sprintf("%q and more", lines[:most])
	}
	return fmt.Sprintf("%q", lines)
}

// rowLines renders rows in a fixed order, long values cut.
func rowLines(rows []Row) []string {
	lines := make([]string, len(rows))
	for i, row := range rows {
		lines[i] = rowLine(row)
	}
	slices.Sort(lines)
	return lines
}

func rowLine(row Row) string {
	short := make([]string, len(row))
	for i, v := range row {
		short[i] = v
		if len(v) > 24 {
			short[i] = fmt.Sprintf("%s…(%d bytes)", v[len(v)-8:], len(v))
		}
	}
	return strings.Join(short, "|")
}

// large returns a value that is toasted, ended by mark.
func large(mark string) string { return strings.Repeat("0123456789abcdef", 256) + mark }

// itemColumns are those of the tables that the suites use: key, text, text that is often NULL, toasted text.
var itemColumns = []schema.Column{Int64("id"), Text("name"), Text("note"), Text("big")}

// replica is a table kept up by the rules of connector.Tx.Write, row by row.
type replica map[string]Row

// apply applies one row; before is the Before row in front of it, if any.
func (r replica) apply(t *schema.Table, op connector.Op, row, before Row) error {
	if op == connector.Truncate {
		clear(r)
		return nil
	}
	k := keyText(keyOf(t, row))
	switch op {
	case connector.Before:
		return nil
	case connector.Delete:
		delete(r, k)
		return nil
	}
	under := k
	if before != nil {
		under = keyText(keyOf(t, before))
	}
	next, stored := slices.Clone(row), r[under]
	for c, v := range next {
		if v != Unsent {
			continue
		}
		if stored == nil {
			return fmt.Errorf("row %s leaves out a value and no row is stored", rowLine(row))
		}
		next[c] = stored[c]
	}
	delete(r, under)
	r[k] = next
	return nil
}

// fits reports a change that does not follow from what is stored: one that was applied already, or whose
// forerunner was lost.
func (r replica) fits(t *schema.Table, op connector.Op, row, before Row) error {
	if op == connector.Truncate {
		return nil
	}
	k, under := keyText(keyOf(t, row)), keyText(keyOf(t, row))
	if before != nil {
		under = keyText(keyOf(t, before))
	}
	switch {
	case op == connector.Insert && r[k] != nil:
		return fmt.Errorf("row %s is inserted and is there already", rowLine(row))
	case op != connector.Insert && r[under] == nil:
		return fmt.Errorf("row %s is changed and is not there", under)
	case under != k && r[k] != nil:
		return fmt.Errorf("row %s is moved to a key that another row has", rowLine(row))
	}
	return nil
}

// rows returns the rows in the order of the key's text.
func (r replica) rows() []Row {
	rows := make([]Row, 0, len(r))
	for _, k := range slices.SortedFunc(maps.Keys(r), cmp.Compare[string]) {
		rows = append(rows, r[k])
	}
	return rows
}
