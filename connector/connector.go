// Package connector is the contract between the engine and the systems it reads and writes. Unless a comment says
// otherwise, a method is called from one goroutine at a time, ctx covers the call alone, and errors are [*Error].
package connector

import (
	"context"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/sluicehq/sluice/schema"
)

type (
	// Position is a point in a part of a log: the source's own text, the server's identity included. Only the source
	// compares two of them.
	Position string
	// Positions holds one Position for each part of a log (a DynamoDB shard); a log without parts uses the part "".
	Positions map[string]Position
	// Event is what a [Stream] delivers: [*Frames], [*SchemaChange], [*Unselected] or [*Progress].
	Event interface{ event() }
	// Op is what a row does.
	Op uint8
)

// Source reads one system. All methods are safe for concurrent use.
type Source interface {
	// Tables returns all tables as they are now, those that cannot be mirrored with the reason in Refused. A later call
	// gives an unchanged table the same Version, a changed one a higher Version.
	Tables(ctx context.Context) ([]*schema.Table, error)
	// Stream opens a log after from; nil: from now on, making what that needs (slot, publication) or taking over what a
	// killed call of ours left. Kind Gap if the log does not reach back to from, or somebody else moved our slot.
	Stream(ctx context.Context, log string, from Positions) (Stream, error)
	// Snapshot opens a view of t, after Stream.Add. Each change ever committed to t is in the view, or the stream delivers
	// it, or both: it waits for all who held a write lock on t when Add returned; at the end of ctx Conflict names them.
	// Kind ViewLost if t is no longer the table's version.
	Snapshot(ctx context.Context, t *schema.Table) (Snapshot, error)
	// Contains reports whether the view that token names holds c. It needs no open Snapshot and works after a restart.
	Contains(token string, c Commit) (bool, error)
	// Compare orders two Positions of one part, by commit. Kind Gap if they have no order (another server or timeline).
	Compare(a, b Position) (int, error)
	// Head returns the log's end, not before the call; a Progress will reach it.
	Head(ctx context.Context, log string) (Positions, error)
	// Decoder turns Frames written under this version of a table into Rows, by the same type table as Snapshot.
	Decoder(t *schema.Table) (Decoder, error)
	Close() error
}

// Decoder is pure: no network, no clock. Damaged frames are an *Error of Kind TableFault, never a panic. Several
// Decoders run at once, one Decoder in one goroutine.
type Decoder interface {
	Decode(f *Frames) (*Rows, error)
	Missing() (*Rows, error) // one row: the Missing value of each column, null where it has none
}

// Snapshot is a view of one table at one moment. Read is safe for concurrent use.
type Snapshot interface {
	Token() string // for Contains; made durable before the first Read
	// Layout says what Chunks depend on but the view: columns, files. A Chunk planned under an equal Layout stands for the
	// same range of the table in this view. "": Chunks are good for their own view alone, as those of a table without key.
	Layout() string
	Chunks(ctx context.Context, rows int64) ([]Chunk, error) // pieces of about so many rows that make up the table
	Read(ctx context.Context, c Chunk) (RowReader, error)    // Kind ViewLost when the view is gone
	Close() error
}

// Chunk is a piece of a table. Under a later Snapshot with the same Layout it keeps its meaning.
type Chunk struct {
	ID          int
	Rows        int64  // estimate
	Spec, After string // the source's own text; a RowReader's Cursor to go on from, "": from the beginning
}

// RowReader reads one chunk. Next returns io.EOF after the last rows, and only once the source has proven that the chunk
// was read whole from the table that the Snapshot saw; until then what was returned must not be committed.
type RowReader interface {
	Next(ctx context.Context) (*Rows, error)
	Cursor() string // where a later Read can go on after the rows returned so far; "": only from the beginning
	Close() error
}

// Stream follows one log. Add, Drop and Ack may be called while Next blocks.
type Stream interface {
	// Add selects a table: before the first Next from the stream's start, later from the Positions returned. Changes
	// committed after them are delivered, earlier ones may be. Adding a table again gives it a new version.
	Add(ctx context.Context, t *schema.Table) (Positions, error)
	Drop(ctx context.Context, id schema.ID) error
	// Next blocks until there is something and holds nothing back. A change comes once, in commit order by table and part.
	Next(ctx context.Context) (Event, error)
	Ack(ctx context.Context, upTo Positions) error // durable up to here, in sinks or spool, and in the state: the log may go
	Close() error
}

// Progress says that every selected change committed at or before UpTo has been handed out; it comes on an idle log too.
type Progress struct {
	UpTo Positions // an empty Position forgets its part
	Time time.Time // the source's clock at UpTo
}

// SchemaChange stands after the last row of a table's old version. Table.Refused is set when the table was dropped. What
// leads from the version before to this one is for the reader to find out, see [schema.Compare] and [Rewriter].
type SchemaChange struct {
	Table   *schema.Table
	Commit  Commit
	Rewrote bool // the version that follows is not known, and neither are its values: the table needs a new copy
}

// Unselected says that the log has changes of a table that was not added: a new one, or one that was made fit. A Stream
// whose log tells of such tables delivers it when it meets one for the first time, and when the table has changed since;
// the changes themselves are thrown away.
type Unselected struct {
	ID   schema.ID
	Name schema.Name // as of these changes
}

// What a row does.
const (
	Insert   Op = iota
	Update      // the new row
	Delete      // the old row, or its key and the rest Unsent
	Before      // the old row or key of the Update after it, where the source sends one
	Truncate    // a row without values: all rows before it are gone
	Leave       // for a History alone, from the engine: the key of a row that is at the source and not mirrored any more
)

// Frames is a run of one table's changes as the log sent them, undecoded: many transactions, or a piece of a large
// one. It is what lanes and spool hold. Who gets a Frames owns Data.
type Frames struct {
	Table   *schema.Table // the version they were written under; Refused if that is not known, and nobody can decode them
	Data    []byte        // row messages in the source's own form, each behind its length (uint32, big endian)
	Commits []Commit      // cover the row messages in order
}

// Commit is a run of rows of one source transaction. A checkpoint is (Position, First+Rows): all earlier transactions
// and that many of this one's row messages, counted as the log sends them, before any filter. In a Rows, a run covers
// the decoded rows, Before rows included, while First still counts row messages.
type Commit struct {
	Rows     int
	First    int64     // number of its first row among the transaction's changes to this table, from 0
	Part     string    // of the log
	Position Position  // of the commit, the same for every row of the transaction, greater than that of every earlier one
	Tag      uint64    // for Contains: a transaction id
	Time     time.Time // of the commit, by the source's clock
}

// Rows is a batch of one table's rows in order, decoded: a piece of a copy, or what a Decoder made of Frames.
// Who gets a Rows returned owns it and calls Release once; who is passed one borrows it for the call.
type Rows struct {
	Table    *schema.Table // the version they were written under
	Ops      []Op          // one a row; nil: all Insert
	Values   arrow.RecordBatch
	Unsent   [][]byte // by column, a bitmap in Arrow's bit order: value not sent, keep the stored one; nil: all sent
	Absent   [][]byte // likewise: no such attribute (DynamoDB), remove the stored one; nil: none
	Commits  []Commit // cover the rows in order; nil in a copy and in a folded batch
	Distinct bool     // folded, see Tx.Write; else row by row, in order
	// Deleted is, of a folded batch for a SoftDelete target, by row when it was deleted; the zero time: it lives. An Insert
	// or Update with a time is a row that came or changed, and went, within the batch. nil otherwise. See DeletionTimes.
	Deleted []time.Time
}

// Sink writes to one system. Plan, Create and Begin are safe for concurrent use.
type Sink interface {
	Traits() Traits
	// Plan returns how want would be stored and changes nothing. Copy is the number of the copy last ready there, 0 if the
	// destination does not exist or no copy was ever ready. A destination that is not ours to write is an *Error of Kind
	// TableFault.
	Plan(ctx context.Context, want Target) (*Target, error)
	// Claim makes us the only writer of the mirror of this name and returns the entries kept; earlier claimants' Commits
	// fail: Fenced. It waits for what they have under way. An id that is not the one stored is Kind Setup and claims
	// nothing; an empty id takes the stored one, or makes one where the mirror is new.
	Claim(ctx context.Context, mirror, id string) (*Claim, error)
	Create(ctx context.Context, t *Target) error // the table that copy t.Copy is loaded into, unseen by readers; repeatable
	// Ready ends a copy in one step: its rows take the place of the old ones, what depends on the table stays, entries
	// are kept. Readers see all or nothing of it. A History target's rows are appended to: in front of every copy but the
	// first goes a row with the operation gap, in the same step.
	Ready(ctx context.Context, t *Target, entries map[string]string) error
	// Change takes the destination of t to another version of its table and returns the Target of that. Rows and entries
	// change in one step, as in Ready, and it may be repeated; only what must be committed before it is used, and harms
	// nobody (a type, an enum's label), comes before. A nil Target says that the destination cannot be altered like that:
	// the table needs a new copy.
	Change(ctx context.Context, t *Target, a Alteration) (*Target, error)
	Begin(ctx context.Context) (Tx, error) // takes one connection until Commit or Rollback
	Close() error
}

// Claim is what a sink knows of a mirror.
type Claim struct {
	ID      string            // the mirror's, made at its first Claim
	New     bool              // this Claim made it
	Entries map[string]string // as kept
}

// Alteration is what a Change leads to.
type Alteration struct {
	Want        Target // as it would be passed to Plan; its Table is the new version
	Missing     *Rows  // of the new version's Decoder: what the stored rows hold in new columns
	DropColumns bool   // a column that the source dropped goes, but not from a table of others; else it stays, may be NULL, and gets NULL in new rows
	Entries     map[string]string
}

// Tx is rows of one or more tables, in their Targets' versions, and the entries that account for them.
type Tx interface {
	Load(ctx context.Context, t *Target, r *Rows) error // rows of a copy, by the bulk path
	// Write applies changes. Rows that are Distinct are applied as a set, and no two of its Insert, Update and Delete rows
	// have one key: first each Update's unsent values are taken from the stored row under the key of the Before in front
	// of it, else under its own; then the rows under the keys of all Delete and Before rows go; then Insert and Update
	// rows are put. An Update with unsent values and no stored row is Kind BadRow. Other Rows are applied one by one in
	// order. A History target gets every row appended, as Commits describe them.
	//
	// In a SoftDelete target rows do not go: what would go stays with its values and gets the time of its deletion in the
	// column DeletedAt, unless it has one. Such a row is not there for an Update with unsent values; an Insert or Update of
	// its key replaces it whole, which a set's rows with a time in Rows.Deleted do too.
	Write(ctx context.Context, t *Target, r *Rows) error
	// Commit makes both durable; a "" value deletes its key. After Kind Unavailable it may have happened: Claim and look.
	Commit(ctx context.Context, entries map[string]string) error
	Rollback() error // harmless after Commit
}

// Traits is what the engine must know of a sink.
type Traits struct {
	Atomic  bool // rows and entries appear together; else entries follow the rows
	Keeps   bool // the sink keeps entries; else the state store does, after Commit
	Writers int  // transactions at once; 1: the engine puts several tables into one
}

// DeletedAt is the column in which a SoftDelete target keeps the commit time of a row's deletion; NULL: it lives.
const DeletedAt = "_sluice_deleted_at"

// Existing is what becomes of a destination that somebody else has made and that holds rows.
type Existing uint8

// What becomes of it.
const (
	RefuseExisting  Existing = iota // Plan refuses it, unless it is empty
	ReplaceExisting                 // the copy's rows take the place of its rows, in the same table
	MergeExisting                   // the copy's rows are put among its rows; what the source does not have stays
)

// String returns the setting's text.
func (e Existing) String() string { return [...]string{"refuse", "replace", "merge"}[e] }

// Target is how the sink stores a table. Plan is passed the first five lines and fills in the rest, by column. Existing is
// left as it is where the table is somebody else's making, and cleared where it is ours: the table itself then stays for ever.
type Target struct {
	Table                         *schema.Table
	Name                          schema.Name
	Key                           []string // nil: the table's own
	History, SoftDelete           bool
	Existing                      Existing
	Columns                       []int    // stored ones, indexes into Table.Columns; nil to Plan: all
	SinkNames, SinkTypes, Misfits []string // Misfits: which values do not fit; "": all do
	Copy                          int      // number of the copy under way, or last ready; a new number begins without rows
	// UniqueBeyondKey says that the destination, as it is now, has a unique or exclusion constraint, or such an index, that
	// the key does not imply. States that the source never had may break it, so a copy does not go on under a second Snapshot.
	UniqueBeyondKey bool
	Notes           []string // for people: what at the destination may refuse or change rows
}
