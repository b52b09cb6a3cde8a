package connectortest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// memorySystem is a Database as a SourceSystem. With late, the last transactions stay logged and invisible for as long
// as nobody waits for them.
type memorySystem struct {
	db     *Database
	late   int // transactions that are held back at most
	mutate func(*MemorySource) connector.Source

	mu   sync.Mutex
	held []*Txn
}

func newMemorySystem(late int, mutate func(*MemorySource) connector.Source) *memorySystem {
	sys := &memorySystem{db: NewDatabase(), late: late, mutate: mutate}
	sys.db.OnWait = func(schema.Name, []*Txn) { sys.show(0) }
	return sys
}

// show makes all but the last keep transactions visible.
func (s *memorySystem) show(keep int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.held) > keep {
		s.held[0].Show()
		s.held = s.held[1:]
	}
}

func (s *memorySystem) Open(_ context.Context, alloc memory.Allocator) (connector.Source, error) {
	src := NewMemorySource(s.db, nil)
	src.Alloc = alloc
	if s.mutate != nil {
		return s.mutate(src), nil
	}
	return src, nil
}

func (s *memorySystem) Create(spec TableSpec) error {
	s.db.CreateTable(spec)
	return nil
}

func (s *memorySystem) AddColumn(table schema.Name, c schema.Column) error {
	s.show(0)
	_, err := s.db.AddColumn(table, c)
	return err
}

func (s *memorySystem) PublishAll() (bool, error) {
	s.db.PublishAll = true // nobody reads the stream at this moment
	return true, nil
}

func (s *memorySystem) Exec(changes ...Change) error {
	tx := s.db.Begin()
	err := execIn(tx, changes)
	if errors.Is(err, ErrLocked) {
		tx.Rollback()
		s.show(0)
		tx = s.db.Begin()
		err = execIn(tx, changes)
	}
	if err != nil {
		tx.Rollback()
		return err
	}
	tx.Log()
	s.mu.Lock()
	s.held = append(s.held, tx)
	s.mu.Unlock()
	if slices.ContainsFunc(changes, func(c Change) bool { return c.Op == connector.Truncate }) {
		s.show(0)
	}
	s.show(s.late)
	return nil
}

func execIn(tx *Txn, changes []Change) error {
	for _, c := range changes {
		var err error
		switch c.Op {
		case connector.Insert:
			err = tx.Insert(c.Table, c.Values)
		case connector.Update:
			err = tx.Update(c.Table, c.Key, c.Values)
		case connector.Delete:
			err = tx.Delete(c.Table, c.Key)
		case connector.Truncate:
			err = tx.Truncate(c.Table)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *memorySystem) Hold(changes ...Change) (func(...Change) error, error) {
	s.show(0)
	tx := s.db.Begin()
	if err := execIn(tx, changes); err != nil {
		tx.Rollback()
		return nil, err
	}
	return func(more ...Change) error {
		defer tx.Commit()
		return execIn(tx, more)
	}, nil
}

func (s *memorySystem) StrangePosition() connector.Position { return "elsewhere/1" }

func (s *memorySystem) Rows(table schema.Name) ([]Row, error) {
	s.show(0)
	return s.db.Rows(table), nil
}

// memoryStore is a Store as a SinkSystem.
type memoryStore struct {
	store  *Store
	mutate func(*MemorySink) connector.Sink
	faults *Faults // of the sink opened last
}

func newMemoryStore(mutate func(*MemorySink) connector.Sink) *memoryStore {
	return &memoryStore{store: NewStore(), mutate: mutate}
}

func (s *memoryStore) Open(context.Context, memory.Allocator) (connector.Sink, error) {
	s.faults = new(Faults)
	sink := NewMemorySink(s.store, s.faults)
	if s.mutate != nil {
		return s.mutate(sink), nil
	}
	return sink, nil
}

func (s *memoryStore) Rows(table schema.Name, columns []string) ([]Row, error) {
	rows := s.store.Rows(table)
	for i := range rows {
		var err error
		if rows[i], err = s.choose(table, columns, rows[i]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func (s *memoryStore) History(table schema.Name, columns []string) ([]HistoryRow, error) {
	history := s.store.History(table)
	for i := range history {
		var err error
		if history[i].Row, err = s.choose(table, columns, history[i].Row); err != nil {
			return nil, err
		}
	}
	return history, nil
}

// choose returns the values of a row under these names.
func (s *memoryStore) choose(table schema.Name, columns []string, row Row) (Row, error) {
	if row == nil {
		return nil, nil
	}
	stored := s.store.Columns(table)
	chosen := make(Row, len(columns))
	for i, name := range columns {
		c := slices.Index(stored, name)
		if c < 0 {
			return nil, fmt.Errorf("there is no column %q", name)
		}
		chosen[i] = row[c]
	}
	return chosen, nil
}

func (s *memoryStore) SoftRows(table schema.Name, _ []string) ([]Row, error) {
	return s.store.SoftRows(table), nil
}

func (s *memoryStore) LoseAnswer() { s.faults.LoseAnswer(CallCommit, 1, connector.Unavailable) }

func (s *memoryStore) CreateForeign(table schema.Name, columns ...string) error {
	s.store.CreateForeign(table, columns...)
	return nil
}

func TestMemorySourcePassesTheSuite(t *testing.T) {
	RunSource(t, SourceHarness{New: func(testing.TB) SourceSystem { return newMemorySystem(0, nil) }})
}

func TestMemorySourcePassesTheSuiteWithLateVisibility(t *testing.T) {
	RunSource(t, SourceHarness{New: func(testing.TB) SourceSystem {
		sys := newMemorySystem(3, nil)
		sys.db.FromAck = true
		return sys
	}})
}

func TestMemorySinkPassesTheSuite(t *testing.T) {
	RunSink(t, SinkHarness{New: func(testing.TB) SinkSystem { return newMemoryStore(nil) }})
}
