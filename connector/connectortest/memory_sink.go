package connectortest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

const memorySink = "sink memory"

var (
	_ connector.Sink        = (*MemorySink)(nil)
	_ connector.EntryReader = (*MemorySink)(nil)
)

// MemorySink implements connector.Sink over a [Store]. Rows and entries are committed together.
type MemorySink struct {
	Writers int    // see connector.Traits; set before use
	Mirror  string // whose Entries are read before a Claim; set before use
	// RefuseRow, if set, reports rows that the sink cannot hold, as a CHECK constraint would. Set before use.
	RefuseRow func(table schema.Name, row Row) bool

	store  *Store
	faults *Faults

	mu     sync.Mutex // taken after store.mu where both are
	dead   bool
	mirror string
	epoch  int               // 0: nothing is claimed
	known  map[string]string // entries as this sink last knew them
}

// NewMemorySink returns a sink that writes store; faults may be nil. Several of them over one Store are several processes.
func NewMemorySink(store *Store, faults *Faults) *MemorySink {
	if faults == nil {
		faults = new(Faults)
	}
	return &MemorySink{Writers: 4, store: store, faults: faults}
}

// Reopen returns the sink of the process started anew: what was committed is there, open transactions are lost, and
// nothing more comes of s.
func (s *MemorySink) Reopen(faults *Faults) *MemorySink {
	s.Close()
	next := NewMemorySink(s.store, faults)
	next.Writers, next.Mirror, next.RefuseRow = s.Writers, s.Mirror, s.RefuseRow
	return next
}

// Traits says that rows and entries appear together and that the store keeps both.
func (s *MemorySink) Traits() connector.Traits {
	return connector.Traits{Atomic: true, Keeps: true, Writers: s.Writers}
}

// Plan stores each column under its own name.
func (s *MemorySink) Plan(ctx context.Context, want connector.Target) (*connector.Target, error) {
	return guard(ctx, s.faults, memorySink, CallPlan, func() (*connector.Target, error) {
		if c := want.Table.Column(connector.DeletedAt); c >= 0 && want.SoftDelete {
			return nil, sinkError(connector.TableFault, "plan", want.Name, fmt.Errorf("the source has a column %s", connector.DeletedAt))
		}
		t := want
		nameColumns(&t)
		if _, err := keyColumns(&t); err != nil {
			return nil, sinkError(connector.TableFault, "plan", t.Name, err)
		}
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		t.Copy = 0
		if stored := s.store.tables[t.Name]; stored != nil {
			if err := s.checkOwner(stored); err != nil {
				return nil, sinkError(connector.TableFault, "plan", t.Name, err)
			}
			t.Copy = stored.ready
		}
		return &t, nil
	})
}

// nameColumns fills in how the columns are stored, all of them unless Columns says which.
func nameColumns(t *connector.Target) {
	if t.Columns == nil {
		for i := range t.Table.Columns {
			t.Columns = append(t.Columns, i)
		}
	}
	t.SinkNames, t.SinkTypes, t.Misfits = nil, nil, nil
	for _, c := range t.Columns {
		t.SinkNames = append(t.SinkNames, t.Table.Columns[c].Name)
		t.SinkTypes = append(t.SinkTypes, t.Table.Columns[c].Type.Native)
		t.Misfits = append(t.Misfits, "")
	}
}

// keyColumns returns the places of the key among the stored columns.
func keyColumns(t *connector.Target) ([]int, error) {
	names := t.Key
	if names == nil {
		names = t.Table.KeyNames()
	}
	if len(names) == 0 && !t.History {
		return nil, errors.New("the table has no key")
	}
	key := make([]int, len(names))
	for i, name := range names {
		key[i] = slices.IndexFunc(t.Columns, func(c int) bool { return t.Table.Columns[c].Name == name })
		if key[i] < 0 {
			return nil, fmt.Errorf("key column %q is not stored", name)
		}
	}
	return key, nil
}

// checkOwner tells whether the destination may be written. The caller holds store.mu.
func (s *MemorySink) checkOwner(t *storedTable) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.owner == "":
		return errors.New("the destination exists and is not a mirror's")
	case s.mirror != "" && t.owner != s.mirror:
		return fmt.Errorf("the destination belongs to mirror %s", t.owner)
	}
	return nil
}

// Claim raises the mirror's epoch, which all earlier claims then lack.
func (s *MemorySink) Claim(ctx context.Context, mirror, id string) (*connector.Claim, error) {
	claim, err := guard(ctx, s.faults, memorySink, CallClaim, func() (*connector.Claim, error) {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		if err := s.alive("claim"); err != nil {
			return nil, err
		}
		m := s.store.mirrors[mirror]
		isNew := m == nil
		if isNew {
			if id == "" {
				id = s.store.mirrorID(mirror)
			}
			m = &storedMirror{id: id, entries: make(map[string]string)}
			s.store.mirrors[mirror] = m
		} else if id != "" && id != m.id {
			return nil, sinkError(connector.Setup, "claim", schema.Name{}, fmt.Errorf("mirror %s has id %s there, not %s", mirror, m.id, id))
		}
		m.epoch++
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mirror, s.epoch, s.known = mirror, m.epoch, maps.Clone(m.entries)
		return &connector.Claim{ID: m.id, New: isNew, Entries: maps.Clone(m.entries)}, nil
	})
	return claim, err
}

// Entries returns what is kept for the mirror claimed, or else for the one of [MemorySink.Mirror].
func (s *MemorySink) Entries(context.Context) (map[string]string, error) {
	return s.store.Entries(cmp.Or(s.mirrorName(), s.Mirror)), nil
}

// Create begins copy t.Copy, or goes on with it.
func (s *MemorySink) Create(ctx context.Context, t *connector.Target) error {
	_, err := guard(ctx, s.faults, memorySink, CallCreate, func() (struct{}, error) {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		return struct{}{}, s.create(t)
	})
	return err
}

func (s *MemorySink) create(t *connector.Target) error {
	if _, err := s.claimed("create", s.currentEpoch()); err != nil {
		return err
	}
	stored := s.store.tables[t.Name]
	if stored == nil {
		stored = &storedTable{owner: s.mirrorName(), rows: make(map[string]Row)}
		s.store.tables[t.Name] = stored
	}
	if err := s.checkOwner(stored); err != nil {
		return sinkError(connector.TableFault, "create", t.Name, err)
	}
	if t.Copy <= stored.ready {
		return sinkError(connector.Internal, "create", t.Name, fmt.Errorf("copy %d, but copy %d is ready", t.Copy, stored.ready))
	}
	if stored.loading != nil && stored.loading.number == t.Copy {
		return nil
	}
	stored.loading = &copying{number: t.Copy}
	return nil
}

// Ready puts the copy's rows in the place of the old ones.
func (s *MemorySink) Ready(ctx context.Context, t *connector.Target, entries map[string]string) error {
	_, err := guard(ctx, s.faults, memorySink, CallReady, func() (struct{}, error) {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		return struct{}{}, s.ready(t, entries)
	})
	if err == nil {
		s.learn(entries)
	}
	return err
}

func (s *MemorySink) ready(t *connector.Target, entries map[string]string) error {
	m, err := s.claimed("ready", s.currentEpoch())
	if err != nil {
		return err
	}
	stored := s.store.tables[t.Name]
	if stored == nil || stored.loading == nil || stored.loading.number != t.Copy {
		return sinkError(connector.TableFault, "ready", t.Name, fmt.Errorf("copy %d is not under way", t.Copy))
	}
	key, err := keyColumns(t)
	if err != nil {
		return sinkError(connector.Internal, "ready", t.Name, err)
	}
	rows, deleted := make(map[string]Row), make(map[string]string)
	if t.SoftDelete {
		now := deletedText(time.Now())
		for k, row := range stored.rows {
			rows[k], deleted[k] = row, cmp.Or(stored.deleted[k], now)
		}
	}
	if !t.History {
		copied := make(map[string]bool)
		for _, row := range stored.loading.rows {
			k := storedKey(key, row)
			if copied[k] {
				return sinkError(connector.Constraint, "ready", t.Name, errors.New("two rows of the copy have one key"))
			}
			rows[k], copied[k] = row, true
			delete(deleted, k)
		}
	}
	if err := s.compareEntries("ready", m, entries); err != nil {
		return err
	}
	if t.History {
		stored.appendCopy()
	}
	stored.rows, stored.deleted, stored.key, stored.ready, stored.loading = rows, deleted, key, t.Copy, nil
	stored.columns, stored.numbers = slices.Clone(t.SinkNames), numbersOf(t)
	stored.changes++
	setEntries(m, entries)
	return nil
}

// appendCopy adds the rows of the copy to a history, behind a gap unless it is the first copy.
func (t *storedTable) appendCopy() {
	var at HistoryRow
	if n := len(t.history); n > 0 {
		at = HistoryRow{Position: t.history[n-1].Position, Seq: t.history[n-1].Seq}
	}
	if t.ready > 0 {
		at.Seq++
		t.history = append(t.history, HistoryRow{Op: "gap", Position: at.Position, Seq: at.Seq})
		at.Seq++
	}
	for _, row := range t.loading.rows {
		t.history = append(t.history, HistoryRow{Op: "copy", Position: at.Position, Seq: at.Seq, Row: row})
	}
}

// deletedText is the time of a deletion as Rows of a store show it.
func deletedText(at time.Time) string {
	const year2000 = 946_684_800_000_000 // in microseconds of Unix time
	return string(schema.AppendTimestampTZ(nil, at.UnixMicro()-year2000))
}

func numbersOf(t *connector.Target) []int32 {
	numbers := make([]int32, len(t.Columns))
	for i, c := range t.Columns {
		numbers[i] = t.Table.Columns[c].Number
	}
	return numbers
}

func storedKey(key []int, row Row) string {
	k := make(Row, len(key))
	for i, c := range key {
		k[i] = row[c]
	}
	return keyText(k)
}

// Change gives the stored rows the columns of the new version: those that are new hold their default, those that are gone
// go or stay behind the others.
func (s *MemorySink) Change(ctx context.Context, t *connector.Target, a connector.Alteration) (*connector.Target, error) {
	next, err := guard(ctx, s.faults, memorySink, CallChange, func() (*connector.Target, error) {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		return s.change(t, &a)
	})
	if err == nil && next != nil {
		s.learn(a.Entries)
	}
	return next, err
}

func (s *MemorySink) change(t *connector.Target, a *connector.Alteration) (*connector.Target, error) {
	m, err := s.claimed("change", s.currentEpoch())
	if err != nil {
		return nil, err
	}
	next := a.Want
	nameColumns(&next)
	next.Copy = t.Copy
	stored := s.store.tables[t.Name]
	if stored == nil || stored.ready != t.Copy || next.Name != t.Name {
		return nil, nil
	}
	key, err := keyColumns(&next)
	if err != nil {
		return nil, nil
	}
	numbers := numbersOf(&next)
	keyNumbers := func(numbers []int32, key []int) (of []int32) {
		for _, k := range key {
			of = append(of, numbers[k])
		}
		return of
	}
	if !slices.Equal(keyNumbers(stored.numbers, stored.key), keyNumbers(numbers, key)) {
		return nil, nil
	}
	for _, c := range next.Columns {
		if old := t.Table.Same(&next.Table.Columns[c]); old >= 0 && !schema.Widens(t.Table.Columns[old].Type, next.Table.Columns[c].Type) {
			return nil, nil
		}
	}
	if err := s.compareEntries("change", m, a.Entries); err != nil {
		return nil, err
	}
	fill := make(Row, len(next.Columns))
	for i, c := range next.Columns {
		if fill[i] = Null; a.Missing != nil {
			fill[i] = RowAt(a.Missing, 0)[c]
		}
	}
	stored.alter(numbers, next.SinkNames, fill, a.DropColumns && !t.History)
	stored.key = key
	stored.changes++
	setEntries(m, a.Entries)
	return &next, nil
}

// alter gives all rows the columns with these numbers and names; fill holds the values of new ones. The other columns stay
// behind them, without a number, unless drop.
func (t *storedTable) alter(numbers []int32, names []string, fill Row, drop bool) {
	var kept []int
	columns := slices.Clone(names)
	for c, n := range t.numbers {
		if drop || n != 0 && slices.Contains(numbers, n) {
			continue
		}
		name := t.columns[c]
		for i := 1; slices.Contains(columns, name); i++ {
			name = fmt.Sprintf("%s__dropped_%d", t.columns[c], i)
		}
		kept, columns = append(kept, c), append(columns, name)
	}
	convert := func(row Row) Row {
		if row == nil {
			return nil
		}
		next := slices.Clone(fill)
		for i, n := range numbers {
			if c := slices.Index(t.numbers, n); c >= 0 {
				next[i] = row[c]
			}
		}
		for _, c := range kept {
			next = append(next, row[c])
		}
		return next
	}
	for k, row := range t.rows {
		t.rows[k] = convert(row)
	}
	for i := range t.history {
		t.history[i].Row = convert(t.history[i].Row)
	}
	t.columns, t.numbers = columns, append(slices.Clone(numbers), make([]int32, len(kept))...)
}

// Begin starts a transaction under the claim of this moment.
func (s *MemorySink) Begin(ctx context.Context) (connector.Tx, error) {
	return guard(ctx, s.faults, memorySink, CallBegin, func() (connector.Tx, error) {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		if err := s.alive("begin"); err != nil {
			return nil, err
		}
		return &memoryTx{sink: s, epoch: s.currentEpoch(), live: make(map[schema.Name]*liveCopy)}, nil
	})
}

// Close ends the sink; its open transactions are lost.
func (s *MemorySink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	return nil
}

func (s *MemorySink) alive(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return sinkError(connector.Unavailable, op, schema.Name{}, errors.New("the sink is closed"))
	}
	return nil
}

func (s *MemorySink) currentEpoch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

func (s *MemorySink) mirrorName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mirror
}

// claimed returns the mirror if the claim of this epoch still holds. The caller holds store.mu.
func (s *MemorySink) claimed(op string, epoch int) (*storedMirror, error) {
	if err := s.alive(op); err != nil {
		return nil, err
	}
	if epoch == 0 {
		return nil, sinkError(connector.Internal, op, schema.Name{}, errors.New("no mirror is claimed"))
	}
	m := s.store.mirrors[s.mirrorName()]
	if m == nil || m.epoch != epoch {
		return nil, sinkError(connector.Fenced, op, schema.Name{}, errors.New("another process has claimed the mirror"))
	}
	return m, nil
}

// compareEntries refuses to overwrite entries that are not as this sink knows them: the answer of an earlier Commit was
// lost and nobody looked.
func (s *MemorySink) compareEntries(op string, m *storedMirror, entries map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range entries {
		if m.entries[k] != s.known[k] {
			return sinkError(connector.Fenced, op, schema.Name{}, fmt.Errorf("entry %s is not what this process wrote last", k))
		}
	}
	return nil
}

func setEntries(m *storedMirror, entries map[string]string) {
	for k, v := range entries {
		m.entries[k] = v
		if v == "" {
			delete(m.entries, k)
		}
	}
}

// learn takes note of entries whose commit was answered.
func (s *MemorySink) learn(entries map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range entries {
		s.known[k] = v
		if v == "" {
			delete(s.known, k)
		}
	}
}

func sinkError(kind connector.Kind, op string, table schema.Name, err error) *connector.Error {
	return &connector.Error{Kind: kind, System: memorySink, Op: op, Table: table, Err: err}
}
