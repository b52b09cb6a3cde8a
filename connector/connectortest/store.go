package connectortest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Store is what a [MemorySink] writes and what outlives it. Its methods are what a reader of the system sees.
type Store struct {
	mu      sync.Mutex
	mirrors map[string]*storedMirror
	tables  map[schema.Name]*storedTable
}

// storedMirror is the row of a mirror and its entries.
type storedMirror struct {
	id      string
	epoch   int // raised by each Claim
	entries map[string]string
}

// storedTable is a destination.
type storedTable struct {
	owner   string // the mirror; "": somebody else's
	columns []string
	numbers []int32 // of the source's columns, by column
	key     []int   // indexes into columns
	ready   int     // the copy that readers see; 0: none, and no readers
	rows    map[string]Row
	deleted map[string]string // by key, when a row that stays was deleted
	history []HistoryRow
	changes int      // commits that wrote it, to find writers that did not know of each other
	loading *copying // nil: no copy is under way
}

// copying is a copy that readers do not see.
type copying struct {
	number int
	rows   []Row
}

// HistoryRow is a row of a history target. Op is one of copy, gap, insert, update, delete, truncate and leave. A gap stands
// in front of each copy but the first, at the position of the row before it.
type HistoryRow struct {
	Op       string
	Position connector.Position
	Seq      int64 // of the row message in the commit
	Time     time.Time
	Row      Row // nil for truncate and gap; of a delete what was sent
	OldKey   Row // of an update that changed the key, the old one
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{mirrors: make(map[string]*storedMirror), tables: make(map[schema.Name]*storedTable)}
}

// Clone returns a store that holds what st holds now, as a backup restored elsewhere does. Copies under way are left out.
func (st *Store) Clone() *Store {
	st.mu.Lock()
	defer st.mu.Unlock()
	c := NewStore()
	for name, m := range st.mirrors {
		c.mirrors[name] = &storedMirror{id: m.id, epoch: m.epoch, entries: maps.Clone(m.entries)}
	}
	for name, t := range st.tables {
		stored := *t
		stored.rows, stored.deleted, stored.history, stored.loading = maps.Clone(t.rows), maps.Clone(t.deleted), slices.Clone(t.history), nil
		c.tables[name] = &stored
	}
	return c
}

// Rows returns the rows of a destination that readers see, ordered by key text; nil where there is none to read.
func (st *Store) Rows(name schema.Name) []Row {
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.tables[name]
	if t == nil || t.ready == 0 {
		return nil
	}
	rows := make([]Row, 0, len(t.rows))
	for _, k := range slices.Sorted(maps.Keys(t.rows)) {
		rows = append(rows, t.rows[k])
	}
	return rows
}

// SoftRows returns the rows of a destination with soft deletes, ordered by key text, each with the time of its deletion, or
// Null, behind its values; nil where there is none to read.
func (st *Store) SoftRows(name schema.Name) []Row {
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.tables[name]
	if t == nil || t.ready == 0 {
		return nil
	}
	rows := make([]Row, 0, len(t.rows))
	for _, k := range slices.Sorted(maps.Keys(t.rows)) {
		rows = append(rows, append(slices.Clone(t.rows[k]), cmp.Or(t.deleted[k], Null)))
	}
	return rows
}

// History returns the rows of a history destination in the order they were appended.
func (st *Store) History(name schema.Name) []HistoryRow {
	st.mu.Lock()
	defer st.mu.Unlock()
	t := st.tables[name]
	if t == nil || t.ready == 0 {
		return nil
	}
	return slices.Clone(t.history)
}

// Columns returns the names of a destination's columns, nil where there is none.
func (st *Store) Columns(name schema.Name) []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	if t := st.tables[name]; t != nil {
		return slices.Clone(t.columns)
	}
	return nil
}

// Entries returns the entries of a mirror.
func (st *Store) Entries(mirror string) map[string]string {
	st.mu.Lock()
	defer st.mu.Unlock()
	if m := st.mirrors[mirror]; m != nil {
		return maps.Clone(m.entries)
	}
	return nil
}

// CreateForeign makes a destination that is no mirror's.
func (st *Store) CreateForeign(name schema.Name, columns ...string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.tables[name] = &storedTable{columns: columns, ready: 1, rows: make(map[string]Row)}
}

// Remove deletes a destination, as somebody might by hand.
func (st *Store) Remove(name schema.Name) {
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.tables, name)
}

// mirrorID returns the id that a new mirror of this name gets.
func (st *Store) mirrorID(mirror string) string {
	return fmt.Sprintf("%s-%d", mirror, len(st.mirrors)+1)
}
