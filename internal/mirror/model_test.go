package mirror

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

var (
	modelSchedules = flag.Int("model.schedules", 300, "random schedules that the model test runs")
	modelSeed      = flag.Uint64("model.seed", 0, "seed of the first schedule; 0: from the clock")
)

// TestNothingIsLostOrDoubledUnderRandomFaults runs mirrors of a source that is written while they run, crashes them, and
// compares the sink with the source in the end. Each schedule has its own seed, which is in its name.
func TestNothingIsLostOrDoubledUnderRandomFaults(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	seen := map[string]int{}
	for i := range *modelSchedules {
		seed := seed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel(t, seed)
				for range 1 + m.rng.IntN(4) {
					m.runAndCrash(1 + m.rng.IntN([]int{150, 600}[m.rng.IntN(2)]))
				}
				m.finish()
				for _, e := range m.state.events {
					seen[e.Kind]++
				}
				seen["row read again"] += int(m.reread)
				for _, name := range m.append {
					if slices.ContainsFunc(m.sink.History(name), func(h connectortest.HistoryRow) bool { return h.Op == "gap" }) {
						seen["history with a gap"]++
					}
				}
			})
		})
	}
	t.Logf("%v", seen)
	for _, must := range []string{"copy_resumed", "row read again", "history with a gap", "quarantined", "quarantine_empty"} {
		if seen[must] == 0 && *modelSchedules >= 100 {
			t.Errorf("no schedule came to %q", must)
		}
	}
}

// TestNothingIsLostOrDoubledByACrashAtAnyStep crashes the same schedule at each of its steps in turn.
func TestNothingIsLostOrDoubledByACrashAtAnyStep(t *testing.T) {
	const seed = 7
	var steps int
	spilling := func(t *testing.T) *model {
		m := newModel(t, seed)
		m.calm, m.quarantine = true, true
		m.limits.LaneMemory, m.limits.LaneBytes, m.limits.DurableBytes = 300, 1000, 0
		return m
	}
	synctest.Test(t, func(t *testing.T) {
		m := spilling(t)
		m.runAndCrash(0)
		steps = m.faults.Steps()
		m.finish()
	})
	t.Logf("%d steps", steps)
	for step := 1; step <= steps; step++ {
		t.Run(fmt.Sprintf("step=%d", step), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := spilling(t)
				m.runAndCrash(step)
				m.finish()
			})
		})
	}
}

// model is a source, a sink and a state that outlive the processes between them, and the transactions that write the
// source. The source is written at the steps of the mirror, so that it can change between any two of its calls.
type model struct {
	t      *testing.T
	db     *connectortest.Database
	sink   *connectortest.Store
	state  *modelState
	faults *connectortest.Faults // of the process that runs
	calm   bool                  // no faults but the crash
	moving bool                  // many rows move to other keys, and no table is emptied, so that a copy can go on
	spool  string                // its folder
	limits Limits                // of all its processes
	reread int                   // times that rows were read by their key
	single bool                  // the sink has one writer
	keyed  []schema.Name
	append []schema.Name // history tables

	mu     sync.Mutex // guards what the steps of several goroutines change
	rng    *rand.Rand
	open   []*connectortest.Txn
	budget int           // actions of the writers that are left in this run
	spent  chan struct{} // closed when there are none left
	writes int
	broken schema.Name // the table whose rows the sink refuses now; zero: none

	quarantine bool         // of keyed tables
	refuses    atomic.Int32 // of eight rows of keyed tables, those that the sink refuses now
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, db: connectortest.NewDatabase(), sink: connectortest.NewStore(), state: &modelState{tables: map[schema.ID]state.Table{}},
		rng: rand.New(rand.NewPCG(seed, 1)), spool: t.TempDir(),
	}
	m.setLimits()
	m.moving = m.rng.IntN(2) == 0
	m.db.PieceRows, m.db.RunCommits, m.db.BatchRows = 1+m.rng.IntN(4), 1+m.rng.IntN(4), 1+m.rng.IntN(3)
	m.db.FromAck = m.rng.IntN(2) == 0
	m.db.OnWait = func(_ schema.Name, holders []*connectortest.Txn) { m.endOneOf(holders) }
	columns := []schema.Column{connectortest.Int64("id"), connectortest.Text("v"), connectortest.Text("big")}
	for i, spec := range []connectortest.TableSpec{
		{Name: schema.Name{Schema: "public", Table: "a"}, Key: []string{"id"}, Toasted: []string{"big"}},
		{Name: schema.Name{Schema: "public", Table: "full"}, Key: []string{"id"}, Toasted: []string{"big"}, FullIdentity: true},
		{Name: schema.Name{Schema: "history", Table: "b"}, Key: []string{"id"}, Toasted: []string{"big"}},
		{Name: schema.Name{Schema: "history", Table: "keyless"}},
	} {
		spec.Columns = columns
		m.db.CreateTable(spec)
		if i < 2 {
			m.keyed = append(m.keyed, spec.Name)
		} else {
			m.append = append(m.append, spec.Name)
		}
	}
	for range 40 {
		m.act()
	}
	m.quarantine = m.rng.IntN(2) == 0
	return m
}

// runAndCrash runs a mirror until it crashes at a step, or the writers of this run are done; step 0 never crashes.
func (m *model) runAndCrash(step int) {
	m.faults = new(connectortest.Faults)
	defer func(f *connectortest.Faults) { m.reread += f.Count(connectortest.CallFind) }(m.faults)
	m.faults.CrashAt(step)
	m.faults.OnStep = func(int) { m.step() }
	m.mu.Lock()
	m.budget, m.spent = 60+m.rng.IntN(240), make(chan struct{})
	spent := m.spent
	m.mu.Unlock()
	if !m.calm {
		m.addFaults()
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := Run(ctx, m.options(false))
		m.checkEnd(err)
	}()
	select {
	case <-done:
	case <-spent:
		cancel()
		<-done
	}
}

// checkEnd accepts the end of a run by its crash, and by what addFaults does before anything was reached.
func (m *model) checkEnd(err error) {
	switch {
	case err == nil, errors.Is(err, connectortest.ErrCrash), m.faults.Crashed():
	case connector.KindOf(err) == connector.Unavailable, connector.KindOf(err) == connector.Conflict:
	default:
		m.t.Errorf("the run ends with %v", err)
	}
}

// addFaults makes calls of the next run fail.
func (m *model) addFaults() {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := []connectortest.Call{
		connectortest.CallNext, connectortest.CallAdd, connectortest.CallSnapshot, connectortest.CallRead, connectortest.CallReadNext,
		connectortest.CallAck, connectortest.CallLoad, connectortest.CallWrite, connectortest.CallReady, connectortest.CallCreate,
		connectortest.CallBegin, connectortest.CallHead, connectortest.CallClaim, connectortest.CallFind,
	}
	for range m.rng.IntN(4) {
		m.faults.Refuse(calls[m.rng.IntN(len(calls))], 1+m.rng.IntN(12), connector.Unavailable)
	}
	for range m.rng.IntN(4) { // a view that is lost, of a table that may go on under another one or not
		lost := []connectortest.Call{connectortest.CallRead, connectortest.CallReadNext, connectortest.CallSnapshot}
		m.faults.Refuse(lost[m.rng.IntN(len(lost))], 1+m.rng.IntN(12), connector.ViewLost)
	}
	if m.rng.IntN(3) == 0 {
		m.faults.Refuse(connectortest.CallCommit, 1+m.rng.IntN(20), connector.Conflict)
	}
	for range m.rng.IntN(4) {
		lost := []connectortest.Call{connectortest.CallCommit, connectortest.CallCommit, connectortest.CallReady, connectortest.CallClaim, connectortest.CallAck}
		m.faults.LoseAnswer(lost[m.rng.IntN(len(lost))], 1+m.rng.IntN(20), connector.Unavailable)
	}
}

// finish ends all transactions, runs the mirror once without faults and compares.
func (m *model) finish() {
	m.t.Helper()
	if m.t.Failed() {
		return
	}
	m.mu.Lock()
	m.budget, m.calm, m.broken = 0, true, schema.Name{}
	m.refuses.Store(0)
	for _, tx := range m.open {
		end(tx)
	}
	m.open = nil
	m.mu.Unlock()
	m.faults = new(connectortest.Faults)
	m.limits.ViewAge = 0 // what has one view alone for its copy may have it
	for _, name := range slices.Concat(m.keyed, m.append) {
		m.state.give(state.Resume, name)
	}
	for _, name := range m.keyed {
		m.state.give(state.Retry, name)
	}
	summary, err := Run(m.t.Context(), m.options(true))
	if err != nil || !summary.InOrder() {
		m.t.Fatalf("the last run: %v, %+v", err, summary)
	}
	for _, c := range m.state.commands {
		if c.DoneAt.IsZero() {
			m.t.Errorf("a command that nobody carried out: %+v", c)
		}
	}
	for _, e := range m.state.events {
		if strings.Contains(e.Text, "spool") {
			m.t.Errorf("the spool is in order, and yet: %s %s: %s", e.Table, e.Kind, e.Text)
		}
	}
	for _, name := range m.keyed {
		if err := m.equal(name); err != nil {
			m.t.Error(err)
		}
	}
	for key := range m.sink.Entries("model") {
		if _, _, ok := apply.ParseQuarantineKey(key); ok {
			m.t.Errorf("still in quarantine: %s", key)
		}
	}
	for _, name := range m.append {
		if err := m.complete(name); err != nil {
			m.t.Error(err)
		}
	}
}

// setLimits chooses how much stays in memory, and whether the spool counts as durable.
func (m *model) setLimits() {
	m.limits = DefaultLimits()
	m.limits.FloorEvery, m.limits.DiscoverEvery, m.limits.SpoolSync = 10*time.Millisecond, 7*time.Millisecond, 13*time.Millisecond
	m.limits.BackoffMin, m.limits.RetryPaused = time.Millisecond, 50*time.Millisecond
	if m.rng.IntN(2) == 0 {
		m.limits.LaneMemory, m.limits.LaneBytes = int64(m.rng.IntN(3)*300), 1000
	}
	if m.rng.IntN(2) == 0 {
		m.limits.DurableBytes = 0
	}
	if m.rng.IntN(2) == 0 {
		m.limits.ViewAge = time.Duration(1+m.rng.IntN(30)) * time.Millisecond
	}
	m.single = m.rng.IntN(2) == 0
}

// options are those of one process.
func (m *model) options(once bool) Options {
	limits := m.limits
	limits.BatchRows, limits.ChunkRows = 1+m.rng.IntN(8), int64(1+m.rng.IntN(4))
	faults := m.faults
	return Options{
		Mirror: "model", Once: once, FollowNew: true, Alloc: memory.NewGoAllocator(), Limits: limits, Spool: m.spool,
		Store: &modelProcess{modelState: m.state, faults: faults},
		Log:   slog.New(slog.NewTextHandler(m.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
		Source: func(context.Context, string) (connector.Source, error) {
			return connectortest.NewMemorySource(m.db, faults), nil
		},
		Sink: func(context.Context, string) (connector.Sink, error) {
			s := connectortest.NewMemorySink(m.sink, faults)
			s.RefuseRow = m.refusesRow
			if m.single {
				s.Writers = 1
			}
			return &modelSink{s, m}, nil
		},
		Selector: Selector{Select: func(t *schema.Table) (Settings, bool) {
			return Settings{Destination: t.Name, History: t.Name.Schema == "history", Quarantine: m.quarantine}, true
		}},
	}
}

// refusesRow reports whether the sink refuses a row: one of a keyed table whose rows can be in quarantine.
func (m *model) refusesRow(name schema.Name, row connectortest.Row) bool {
	h := fnv.New32()
	h.Write([]byte(row[1]))
	return slices.Contains(m.keyed, name) && int32(h.Sum32()%8) < m.refuses.Load()
}

// step is called at each step of the mirror. It lets the writers act now and then, and has calls take time, so that they
// overtake each other and timers run out in between.
func (m *model) step() {
	time.Sleep(m.moveOn())
}

func (m *model) moveOn() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.budget > 0 && m.rng.IntN(3) == 0 {
		m.act()
		if !m.calm && m.rng.IntN(20) == 0 {
			m.broken = append(slices.Clone(m.keyed), m.append[0], schema.Name{}, schema.Name{})[m.rng.IntN(5)]
		}
		if !m.calm && m.rng.IntN(12) == 0 {
			m.command()
		}
		if m.quarantine && m.rng.IntN(8) == 0 {
			m.refuses.Store(int32([]int{0, 2, 5}[m.rng.IntN(3)]))
		}
		if m.budget--; m.budget == 0 {
			close(m.spent)
		}
	}
	if m.rng.IntN(2) == 0 {
		return 0
	}
	return time.Duration(m.rng.IntN(8)) * time.Millisecond
}

// command has a person ask something of a table.
func (m *model) command() {
	names := slices.Concat(m.keyed, m.append)
	name := names[m.rng.IntN(len(names))]
	if m.quarantine && m.rng.IntN(4) == 0 {
		m.state.give(state.Retry, m.keyed[m.rng.IntN(len(m.keyed))])
		return
	}
	m.state.give([]state.CommandKind{state.Pause, state.Resume, state.Resync}[m.rng.IntN(3)], name)
}

// endOneOf brings one of the transactions that a snapshot waits for nearer to its end.
func (m *model) endOneOf(holders []*connectortest.Txn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, tx := range m.open {
		if !slices.Contains(holders, tx) {
			continue
		}
		if m.rng.IntN(3) == 0 {
			m.write(tx) // it goes on after its table was added
		}
		if !tx.Logged() {
			tx.Log()
			return
		}
		tx.Show()
		m.open = slices.Delete(m.open, i, i+1)
		return
	}
}

// act does one thing to the source: most often a write. The caller holds mu, or is alone.
func (m *model) act() {
	const most = 4 // transactions open at once
	i := m.rng.IntN(most)
	if i >= len(m.open) {
		m.open = append(m.open, m.db.Begin())
		i = len(m.open) - 1
	}
	tx := m.open[i]
	switch n := m.rng.IntN(20); {
	case n < 12 && !tx.Logged():
		m.write(tx)
		return
	case n < 16 && !tx.Logged():
		tx.Log() // visible later, or at once
		if n < 14 {
			return
		}
		tx.Show()
	case tx.Logged() && n < 8:
		tx.Show()
	case tx.Logged():
		return
	case n == 16:
		tx.Rollback()
	default:
		return
	}
	m.open = slices.Delete(m.open, i, i+1)
}

// write changes one table in a transaction. A change that a lock or the rows stand against is left out.
func (m *model) write(tx *connectortest.Txn) {
	if tx.Logged() {
		return
	}
	names := slices.Concat(m.keyed, m.append)
	name := names[m.rng.IntN(len(names))]
	for range []int{1, 1, 1, 2, 12}[m.rng.IntN(5)] { // some transactions are split over several batches
		m.change(tx, name)
	}
}

func (m *model) change(tx *connectortest.Txn, name schema.Name) {
	m.writes++
	key := func() string { return fmt.Sprint(m.rng.IntN(12)) }
	value := fmt.Sprintf("v%d", m.writes)
	big := []string{fmt.Sprintf("b%d", m.writes), connectortest.Unsent, connectortest.Unsent, connectortest.Null}[m.rng.IntN(4)]
	var err error
	n := m.rng.IntN(40)
	if m.moving && (n < 26 && m.rng.IntN(2) == 0 || n == 39) {
		n, big = 26, connectortest.Unsent
	}
	switch {
	case name.Table == "keyless" && n > 0, n < 16:
		if big == connectortest.Unsent {
			big = "b" + value
		}
		err = tx.Insert(name, connectortest.Row{key(), value, big})
	case n < 26:
		old := key()
		err = tx.Update(name, connectortest.Row{old}, connectortest.Row{old, value, big})
	case n < 32:
		err = tx.Update(name, connectortest.Row{key()}, connectortest.Row{key(), value, big})
	case n < 39:
		err = tx.Delete(name, connectortest.Row{key()})
	default:
		err = tx.Truncate(name)
	}
	if err != nil && !errors.Is(err, connectortest.ErrLocked) && !errors.Is(err, connectortest.ErrDuplicate) && !errors.Is(err, connectortest.ErrNoRow) {
		m.t.Errorf("write: %v", err)
	}
}

// end commits what is logged and rolls the rest back.
func end(tx *connectortest.Txn) {
	if tx.Logged() {
		tx.Show()
	} else {
		tx.Rollback()
	}
}

// equal compares a destination with its table.
func (m *model) equal(name schema.Name) error {
	return sameRows(name.String()+": the sink", m.sink.Rows(name), m.db.Rows(name))
}

func sameRows(what string, got, want []connectortest.Row) error {
	g, w := lines(got), lines(want)
	if slices.Equal(g, w) {
		return nil
	}
	return fmt.Errorf("%s holds\n  %s\nwant\n  %s", what, strings.Join(g, "\n  "), strings.Join(w, "\n  "))
}

func lines(rows []connectortest.Row) []string {
	out := make([]string, len(rows))
	for i, row := range rows {
		out[i] = strings.Join(row, "|")
	}
	slices.Sort(out)
	return out
}

// complete checks that a history, behind its last gap, is a copy, and then each change that the copy does not hold: all of
// a transaction or nothing, once, in commit order.
func (m *model) complete(name schema.Name) error {
	history := m.sink.History(name)
	for i, h := range history {
		if h.Op == "copy" && i > 0 && history[i-1].Op != "copy" && history[i-1].Op != "gap" {
			return fmt.Errorf("history of %s: a copy without a gap before it, behind %s at %s", name, history[i-1].Op, history[i-1].Position)
		}
	}
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Op == "gap" {
			history = history[i+1:]
			break
		}
	}
	after := slices.IndexFunc(history, func(h connectortest.HistoryRow) bool { return h.Op != "copy" })
	if after < 0 {
		after = len(history)
	}
	appended := map[connector.Position]bool{}
	for _, h := range history[after:] {
		appended[h.Position] = true
	}
	var inCopy, beyond []connectortest.LoggedChange
	for _, c := range m.db.Changes(name) {
		if appended[c.Position] {
			beyond = append(beyond, c)
		} else {
			inCopy = append(inCopy, c)
		}
	}
	var got, want []string
	for _, h := range history[after:] {
		got = append(got, fmt.Sprintf("%s %s at %s#%d", h.Op, historyRow(h.Op, h.Row), h.Position, h.Seq))
	}
	for _, c := range beyond {
		op, row := loggedOp(c)
		want = append(want, fmt.Sprintf("%s %s at %s#%d", op, historyRow(op, row), c.Position, c.Seq))
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("history of %s behind its copy:\n  %s\nwant\n  %s", name, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	var copied []connectortest.Row
	for _, h := range history[:after] {
		copied = append(copied, h.Row)
	}
	return sameRows("the copy of "+name.String(), copied, m.replay(name, inCopy))
}

func loggedOp(c connectortest.LoggedChange) (string, connectortest.Row) {
	switch c.Op {
	case connector.Insert:
		return "insert", c.New
	case connector.Update:
		return "update", c.New
	case connector.Delete:
		return "delete", c.Old
	default:
		return "truncate", nil
	}
}

// historyRow renders a row of a history: of a delete its key alone.
func historyRow(op string, row connectortest.Row) string {
	if op == "delete" {
		row = row[:1]
	}
	return strings.Join(row, "|")
}

// replay returns the rows that changes make of an empty table.
func (m *model) replay(name schema.Name, changes []connectortest.LoggedChange) []connectortest.Row {
	rows := map[string]connectortest.Row{}
	for i, c := range changes {
		if c.Op == connector.Truncate {
			clear(rows)
			continue
		}
		if c.Old != nil {
			delete(rows, c.Old[0])
		}
		if c.New != nil {
			key := c.New[0]
			if name.Table == "keyless" {
				key = fmt.Sprint(i)
			}
			rows[key] = c.New
		}
	}
	return slices.Collect(maps.Values(rows))
}

// modelSink refuses the rows of one table at times, so that it pauses while the others go on.
type modelSink struct {
	connector.Sink
	model *model
}

func (s *modelSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	if err != nil {
		return nil, err
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	return refusingTx{tx, s.model.broken}, nil
}

// modelState is a Store in memory; it outlives the process.
type modelState struct {
	mu     sync.Mutex
	id     string
	floor  string
	tables map[schema.ID]state.Table

	segments []state.Segment
	events   []state.Event
	commands []state.Command
}

// modelProcess is the Store as one process sees it: its calls are steps, and fail after the crash.
type modelProcess struct {
	*modelState
	faults *connectortest.Faults
}

func (s *modelProcess) do(f func()) error {
	if err := s.faults.Step(); err != nil {
		return err
	}
	s.mu.Lock()
	f()
	s.mu.Unlock()
	return s.faults.Step()
}

func (s *modelProcess) MirrorID(context.Context) (id string, err error) {
	err = s.do(func() { id = s.id })
	return id, err
}

func (s *modelProcess) SetMirrorID(_ context.Context, id string) error {
	return s.do(func() { s.id = id })
}

func (s *modelProcess) Tables(context.Context) (ts []state.Table, err error) {
	err = s.do(func() { ts = slices.Collect(maps.Values(s.tables)) })
	return ts, err
}

func (s *modelProcess) SaveTables(_ context.Context, tables ...state.Table) error {
	return s.do(func() {
		for _, t := range tables {
			s.tables[t.ID] = t
		}
	})
}

func (s *modelProcess) Floor(context.Context) (floor string, err error) {
	err = s.do(func() { floor = s.floor })
	return floor, err
}

func (s *modelProcess) SaveFloor(_ context.Context, floor string, checkpoints map[schema.ID]string) error {
	return s.do(func() {
		s.floor = floor
		for id, text := range checkpoints {
			t := s.tables[id]
			t.Checkpoint = text
			s.tables[id] = t
		}
	})
}

func (s *modelProcess) SaveProgress(context.Context, state.Run, map[schema.ID]state.Progress) error {
	return nil
}

func (s *modelProcess) Segments(context.Context) (segs []state.Segment, err error) {
	err = s.do(func() { segs = slices.Clone(s.segments) })
	return segs, err
}

func (s *modelProcess) SaveSegments(_ context.Context, segs []state.Segment) error {
	return s.do(func() { s.segments = slices.Clone(segs) })
}

// give records a command as a person would, beside the process. It takes the place of earlier ones as in state.AddCommands.
func (s *modelState) give(kind state.CommandKind, name schema.Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.commands {
		c := &s.commands[i]
		toggles := func(k state.CommandKind) bool { return k == state.Pause || k == state.Resume }
		replaced := toggles(kind) && toggles(c.Kind) || kind == c.Kind && c.AcceptedAt.IsZero()
		if c.Name == name && c.DoneAt.IsZero() && replaced {
			c.DoneAt = time.Now()
		}
	}
	for id, t := range s.tables {
		if t.Name == name {
			s.commands = append(s.commands, state.Command{Number: int64(len(s.commands) + 1), Kind: kind, Table: id, Name: name, AskedBy: "the model"})
		}
	}
}

func (s *modelProcess) OpenCommands(context.Context) (open []state.Command, err error) {
	err = s.do(func() {
		for _, c := range s.commands {
			if c.DoneAt.IsZero() {
				open = append(open, c)
			}
		}
	})
	return open, err
}

func (s *modelProcess) SaveCommand(_ context.Context, c state.Command) error {
	return s.do(func() {
		if s.commands[c.Number-1].DoneAt.IsZero() {
			s.commands[c.Number-1] = c
		}
	})
}

func (s *modelProcess) AddEvent(_ context.Context, e state.Event) error {
	return s.do(func() { s.events = append(s.events, e) })
}
