package connectortest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// What a transaction of a [Database] is refused for. A real server would make it wait instead of ErrLocked.
var (
	ErrLocked    = errors.New("another transaction holds a lock on it")
	ErrDuplicate = errors.New("a row with this key exists")
	ErrNoRow     = errors.New("no row has this key")
)

// Database is the system that a [MemorySource] reads. It behaves like PostgreSQL where that makes joining a snapshot to
// a stream hard: a transaction's record enters the log, and is streamed, before the transaction is visible to
// snapshots; changes made before their table was selected are not in the stream even if their transaction commits
// later; TRUNCATE is seen by snapshots older than it. Its exported fields are set before it is used.
type Database struct {
	PieceRows   int // rows in one Frames at most
	RunCommits  int // transactions in one Frames at most
	BatchRows   int // rows in one piece of a chunk
	ChunksAtMin int // chunks that a table with enough rows has at least

	// FromAck has a stream begin at the acknowledged position where it is asked for a later one, as that of PostgreSQL does.
	FromAck bool

	// PublishAll has the log keep the changes of tables too that no stream has added, as a publication of all tables does.
	PublishAll bool

	// OnWait, if set, is called by a Snapshot each time it finds transactions to wait for, in its goroutine, with no lock
	// held: it may end them.
	OnWait func(table schema.Name, holders []*Txn)

	mu      sync.Mutex
	changed chan struct{} // closed and made anew when anything changes
	lsn     int64         // of the last record, counted over writes, commits and changes of the selection
	xid     uint64        // of the last transaction begun
	tables  []*memoryTable
	log     []*logRecord // in commit order
	running map[*Txn]bool
	slot    *slot
}

// slot is what the server keeps of a reader between its connections.
type slot struct {
	acked  int64
	reader *memoryStream // the connection that has it; nil: none
}

// memoryTable is a table and all that hangs on it.
type memoryTable struct {
	current   *schema.Table
	toasted   []string // columns left out of updates that do not change them
	full      bool     // the whole old row is logged with each update and delete
	dropped   bool
	rows      map[string]Row
	nextRow   int             // makes the identity of rows without a key
	locked    map[string]*Txn // by key: the transaction that wrote it, until that is visible or gone
	file      int             // changes with each TRUNCATE
	published []span
	awaited   map[*Txn]bool // held a write lock when the table was last added to a stream
}

// span is a part of the log, from < lsn <= to; to is 0 while it lasts.
type span struct{ from, to int64 }

// logRecord is a commit or, where newVersion is set, a change of a table's schema.
type logRecord struct {
	lsn        int64
	xid        uint64
	at         time.Time
	changes    []change
	newVersion *schema.Table
}

// change is one row message.
type change struct {
	lsn    int64 // of the write, which decides whether its table was selected
	table  *schema.Table
	op     connector.Op
	before Row // nil: not logged
	row    Row // nil for Truncate

	old, new Row // whole, for LoggedChange
}

// LoggedChange is a committed change as it was made, whole.
type LoggedChange struct {
	Op       connector.Op
	Old, New Row // nil where there is none
	Position connector.Position
	Seq      int64 // among the transaction's changes to the table, from 0
	Tag      uint64
}

// TableSpec declares a table.
type TableSpec struct {
	Name         schema.Name
	Columns      []schema.Column
	Key          []string // none: rows can only be inserted and truncated
	Toasted      []string // columns that an update which does not change them leaves unsent
	FullIdentity bool     // the log has the whole old row of each update and delete
}

// NewDatabase returns an empty database.
func NewDatabase() *Database {
	return &Database{PieceRows: 3, RunCommits: 3, BatchRows: 2, ChunksAtMin: 3, changed: make(chan struct{}), running: make(map[*Txn]bool)}
}

// CreateTable makes a table and returns its description. It panics if the spec is wrong.
func (db *Database) CreateTable(spec TableSpec) *schema.Table {
	db.mu.Lock()
	defer db.mu.Unlock()
	t := &schema.Table{
		ID: schema.ID(fmt.Sprintf("table-%d", len(db.tables)+1)), Version: 1, Log: memoryLog, Name: spec.Name,
		Columns: slices.Clone(spec.Columns), Rows: -1, RowBytes: -1,
	}
	for i := range t.Columns {
		t.Columns[i].Number = int32(i + 1)
	}
	for _, name := range spec.Key {
		c := t.Column(name)
		if c < 0 {
			panic(fmt.Sprintf("connectortest: key column %q is not in table %s", name, spec.Name))
		}
		t.Key = append(t.Key, c)
		t.Columns[c].NotNull = true
	}
	if len(t.Key) == 0 {
		t.Keyless = "it was declared without a key"
	} else {
		t.Unique = []schema.UniqueKey{{Columns: t.Key}}
	}
	db.tables = append(db.tables, &memoryTable{
		current: t, toasted: spec.Toasted, full: spec.FullIdentity, rows: make(map[string]Row), locked: make(map[string]*Txn),
	})
	return t
}

// AddColumn adds a column, NULL in all rows that exist, and returns the table's new version. It fails with [ErrLocked]
// while a transaction has written the table.
func (db *Database) AddColumn(table schema.Name, c schema.Column) (*schema.Table, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	mt, err := db.find(table)
	if err != nil {
		return nil, err
	}
	if len(db.holders(mt)) > 0 {
		return nil, fmt.Errorf("add a column to %s: %w", table, ErrLocked)
	}
	next := *mt.current
	next.Version++
	c.Number = int32(len(next.Columns) + 1)
	next.Columns = append(slices.Clone(next.Columns), c)
	value := missingOf(&next)[len(next.Columns)-1]
	for k, row := range mt.rows {
		mt.rows[k] = append(slices.Clone(row), value)
	}
	db.alter(mt, &next)
	return &next, nil
}

// DropTable drops a table. It fails with [ErrLocked] while a transaction has written it.
func (db *Database) DropTable(table schema.Name) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	mt, err := db.find(table)
	if err != nil {
		return err
	}
	if len(db.holders(mt)) > 0 {
		return fmt.Errorf("drop %s: %w", table, ErrLocked)
	}
	gone := *mt.current
	gone.Version++
	gone.Refused = "the table was dropped"
	mt.dropped = true
	db.alter(mt, &gone)
	return nil
}

// alter logs a new version of a table. The caller holds mu.
func (db *Database) alter(mt *memoryTable, next *schema.Table) {
	mt.current = next
	db.xid++
	db.lsn++
	db.log = append(db.log, &logRecord{lsn: db.lsn, xid: db.xid, at: now(), newVersion: next})
	db.announce()
}

// Rows returns the rows of a table that are visible, in the order of the key.
func (db *Database) Rows(table schema.Name) []Row {
	db.mu.Lock()
	defer db.mu.Unlock()
	mt, err := db.find(table)
	if err != nil {
		return nil
	}
	return mt.sorted()
}

// Changes returns everything that was ever logged of a table, in commit order.
func (db *Database) Changes(table schema.Name) []LoggedChange {
	db.mu.Lock()
	defer db.mu.Unlock()
	var all []LoggedChange
	for _, r := range db.log {
		var seq int64
		for _, c := range r.changes {
			if c.table.Name == table {
				all = append(all, LoggedChange{Op: c.op, Old: c.old, New: c.new, Position: positionOf(r.lsn), Seq: seq, Tag: r.xid})
				seq++
			}
		}
	}
	return all
}

// Published reports whether changes made now to the table would be in the stream.
func (db *Database) Published(table schema.Name) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	mt, err := db.find(table)
	return err == nil && mt.isPublished(db.lsn+1)
}

// now is the database's clock.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// announce wakes all who wait for a change. The caller holds mu.
func (db *Database) announce() {
	close(db.changed)
	db.changed = make(chan struct{})
}

func (db *Database) find(name schema.Name) (*memoryTable, error) {
	for _, mt := range db.tables {
		if mt.current.Name == name && !mt.dropped {
			return mt, nil
		}
	}
	return nil, fmt.Errorf("no table %s", name)
}

func (db *Database) byID(id schema.ID) *memoryTable {
	for _, mt := range db.tables {
		if mt.current.ID == id {
			return mt
		}
	}
	return nil
}

// holders returns the transactions that hold a write lock on a table, in the order they began. The caller holds mu.
func (db *Database) holders(mt *memoryTable) []*Txn {
	var held []*Txn
	for tx := range db.running {
		if tx.pending[mt] != nil {
			held = append(held, tx)
		}
	}
	slices.SortFunc(held, func(a, b *Txn) int { return int(a.xid) - int(b.xid) })
	return held
}

// isPublished reports whether a write at lsn is in the stream.
func (mt *memoryTable) isPublished(lsn int64) bool {
	return slices.ContainsFunc(mt.published, func(s span) bool { return s.from < lsn && (s.to == 0 || lsn <= s.to) })
}

// sorted returns the visible rows in key order.
func (mt *memoryTable) sorted() []Row {
	if len(mt.current.Key) == 0 {
		var rows []Row
		for _, k := range slices.Sorted(maps.Keys(mt.rows)) {
			rows = append(rows, mt.rows[k])
		}
		return rows
	}
	return slices.SortedFunc(maps.Values(mt.rows), func(a, b Row) int {
		return compareKeys(mt.current, keyOf(mt.current, a), keyOf(mt.current, b))
	})
}

// keyOf returns the key of a row.
func keyOf(t *schema.Table, row Row) Row {
	key := make(Row, len(t.Key))
	for i, c := range t.Key {
		key[i] = row[c]
	}
	return key
}

// keyText joins a key to one comparable text.
func keyText(key Row) string { return strings.Join(key, "\x1f") }
