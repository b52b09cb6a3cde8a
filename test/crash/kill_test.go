package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	killsPerLife = 10                      // kills between a mirror's first start and the comparison of the two sides
	earlyKills   = 4                       // of them, those that come soon after a start, to hit the copy
	earlyAge     = 1200 * time.Millisecond // the age that a process reaches at most before an early kill
	lateAge      = 3 * time.Second         // likewise, before the others
	slowEvery    = 3                       // of so many late kills one finds a table that is slow in the sink
	slowAge      = 6 * time.Second         // the least age at such a kill: the log was acknowledged while the table had changes waiting
	catchUpLimit = 2 * time.Minute         // from the end of the writer until both sides are equal
	stopLimit    = 30 * time.Second        // from SIGTERM to the end of the process
)

// TestKillLosesAndDoublesNothing kills the process again and again, while many connections change the source, and holds
// both sides against each other at the end of each of the mirror's lives.
func TestKillLosesAndDoublesNothing(t *testing.T) {
	t.Run("postgres", func(t *testing.T) { killAgainAndAgain(t, *killsFlag, newMirror) })
	t.Run("sqlite", func(t *testing.T) { killAgainAndAgain(t, *sqliteKillsFlag, newFileMirror) })
}

func killAgainAndAgain(t *testing.T, kills int, start func(t *testing.T, seed uint64) *mirror) {
	testServer.Database(t) // skips without a server
	if kills == 0 {
		t.Skip("not asked for")
	}
	t.Logf("to repeat: go test ./test/crash -run '^%s$' -kills %d -sqlite-kills %[2]d -seed %d", t.Name(), kills, *seedFlag)
	begin := time.Now()
	for life := 0; kills > 0 || time.Since(begin) < *durationFlag; life++ {
		n := killsPerLife
		if kills > 0 {
			n = min(n, kills)
		}
		kills -= n
		seed := *seedFlag + uint64(life)
		ok := t.Run(fmt.Sprintf("life%d", life), func(t *testing.T) { live(t, start(t, seed), seed, n) })
		if !ok {
			return
		}
	}
	if *killsFlag >= killsPerLife && copiesResumed == 0 {
		t.Error("no kill fell on a copy that went on after it: the test does not see that path")
	}
}

// copiesResumed counts over all lives how often a copy went on with the chunks that it lacked.
var copiesResumed int

// events returns how many events of a kind the mirror has recorded.
func (m *mirror) events(t *testing.T, kind string) (n int) {
	t.Helper()
	store, err := state.OpenRead(t.Context(), filepath.Join(filepath.Dir(m.sluice.Config), ".sluice", "crash", "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	events, err := store.Events(t.Context(), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// live is one mirror from its first start to its end, with n kills.
func live(t *testing.T, m *mirror, seed uint64, n int) {
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	hits := map[string]int{}
	for i := range n {
		p := m.sluice.Run(t)
		release := func() {}
		switch {
		case i < earlyKills:
			awaitMoment(p, rng, earlyAge)
		case i%slowEvery == 0:
			release = m.slowDown(t, tables[rng.IntN(len(tables))].name)
			awaitAge(p, slowAge+random(rng, lateAge))
		default:
			p.Log.Await("table is streaming", catchUpLimit) // on a busy machine no copy would ever end
			awaitMoment(p, rng, lateAge)
		}
		select {
		case <-p.Exited():
			t.Fatalf("start %d: the process ended by itself, exit code %d\n%s", i, p.ExitCode(), p.Log.Tail(40))
		default:
		}
		p.Kill()
		release()
		hits[m.phases(t)]++
	}
	p := m.sluice.Run(t)
	p.Log.Await("streaming", lateAge) // some changes meet the last process at work
	m.finish(t, p)
	resumed := m.events(t, "copy_resumed")
	copiesResumed += resumed
	t.Logf("copies that went on with the chunks that they lacked: %d", resumed)
	t.Logf("%d kills, tables in the sink at each: %v; writer: %d transactions committed, %d ended by its own conflicts",
		n, hits, m.writer.transactions.Load(), m.writer.own.Load())
}

func random(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(most)))
}

// awaitMoment waits for a random age of the process, or for the very moment after one of its next log lines.
func awaitMoment(p *process.Process, rng *rand.Rand, most time.Duration) {
	if age := random(rng, most); rng.IntN(3) > 0 {
		awaitAge(p, age)
	} else {
		p.Log.AwaitCount(1+rng.IntN(20), age)
	}
}

func awaitAge(p *process.Process, age time.Duration) {
	select {
	case <-p.Exited():
	case <-time.After(age):
	}
}

// slowDown holds back what is written to a table of the sink, if it is there, until release is called.
func (m *mirror) slowDown(t *testing.T, name string) (release func()) {
	t.Helper()
	if m.file != "" {
		return m.lockFile(t)
	}
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, m.sink)
	if err != nil {
		t.Fatal(err)
	}
	const lock = "DO $$ BEGIN LOCK TABLE %s IN EXCLUSIVE MODE; EXCEPTION WHEN undefined_table THEN END $$"
	if _, err := conn.PgConn().Exec(ctx, "BEGIN; "+fmt.Sprintf(lock, name)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close(ctx) }
}

// mirror is a source under change and the mirror of it.
type mirror struct {
	source, sink string
	file         string // the sink if it is a SQLite file: then the database sink holds its rows to be compared
	// The source is acknowledged what is in the spool from the beginning, not only when much of its log is retained.
	reliesOnSpool bool
	writer        *writer
	watch         *watch
	sluice        *process.Sluice
	pair          *testdb.Pair
}

// newMirror starts the change of a source that is to be mirrored into a database.
func newMirror(t *testing.T, seed uint64) *mirror {
	t.Helper()
	return startMirror(t, seed, "")
}

// newFileMirror is newMirror with a SQLite file as sink.
func newFileMirror(t *testing.T, seed uint64) *mirror {
	t.Helper()
	return startMirror(t, seed, filepath.Join(t.TempDir(), "mirror.db"))
}

func startMirror(t *testing.T, seed uint64, file string) *mirror {
	t.Helper()
	m := &mirror{source: testServer.Database(t), sink: testServer.Database(t), file: file, reliesOnSpool: seed%2 == 1}
	createSource(t, m.source, seed)
	m.sluice = process.New(t, program, m.config())
	m.pair = testdb.OpenPair(t, m.source, m.sink)
	m.watch = startWatch(t, m.source)
	m.writer = startWriter(t, m.source, seed, 8, *rateFlag)
	return m
}

// config has small chunks and batches, so that a kill has many places to fall on.
func (m *mirror) config() process.Config {
	spool := ""
	if m.reliesOnSpool {
		spool = "spool: {durable_after: {bytes: 0}}"
	}
	return process.Config{Name: "crash", Source: m.source, Sink: m.sink, SinkFile: m.file, Mirror: `
tables: {exclude: [public.audit]}
snapshot: {concurrency: 2, chunk_rows: 200, max_age: 2s}
apply: {concurrency: 4, batch_rows: 500}
per_table:
  public.audited: {mode: history}
` + spool}
}

// phases says how far the mirror has come, for the report of where the kills fell.
func (m *mirror) phases(t *testing.T) string {
	return fmt.Sprintf("%s of %d", m.tablesInSink(t), len(tables))
}

// stopWriter ends the writer; none of its statements may have failed but by its own doing.
func (m *mirror) stopWriter(t *testing.T) {
	t.Helper()
	if err := m.writer.stop(); err != nil {
		t.Error(err)
	}
}

// finish ends the writer, waits until the mirror has caught up, stops it and compares.
func (m *mirror) finish(t *testing.T, p *process.Process) {
	t.Helper()
	m.stopWriter(t)
	if err := m.watch.stop(); err != nil {
		t.Error(err)
	}
	if err := m.awaitEqual(t, p); err != nil {
		t.Fatalf("not equal %v after the last change: %v", catchUpLimit, err)
	}
	if code, err := p.Stop(stopLimit); err != nil || code != 0 {
		t.Errorf("after SIGTERM: exit code %d, %v; want 0\n%s", code, err, p.Log.Tail(20))
	}
	if err := m.compare(t); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

func (m *mirror) awaitEqual(t *testing.T, p *process.Process) error {
	deadline := time.After(catchUpLimit)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := m.compare(t)
		if err == nil {
			return nil
		}
		select {
		case <-p.Exited():
			return errors.Join(err, fmt.Errorf("the process ended by itself, exit code %d", p.ExitCode()))
		case <-deadline:
			return err
		case <-tick.C:
		}
	}
}

// compare returns what differs between the two sides, table by table.
func (m *mirror) compare(t *testing.T) error {
	if m.file != "" {
		if err := m.unload(t.Context()); err != nil {
			return err
		}
	}
	var faults []error
	for _, tab := range tables {
		if tab.name == "audited" {
			continue
		}
		diff, err := m.pair.Compare(t.Context(), tab.name, tab.name)
		if diff != "" {
			err = errors.New(diff)
		}
		if err != nil {
			faults = append(faults, err)
		}
	}
	if faults == nil {
		return checkHistory(m.source, m.sink)
	}
	return errors.Join(faults...)
}
