package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

func TestStateLostIsAdoptedFromTheSink(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	w.insert(a, 2)
	lost, err := state.Open(t.Context(), t.TempDir()+"/state.db")
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Close()
	w.store = lost
	s := w.once()
	if err := w.equal(a); err != nil {
		t.Fatal(err)
	}
	if s.Tables[0].RowsCopied != 0 || s.Tables[0].ChangesApplied != 1 {
		t.Errorf("the table did not go on where the sink stood: %+v", s.Tables[0])
	}
}

func TestSinkRecreatedIsCopiedAndNotStreamedInto(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	w.insert(a, 2)
	w.sink.Remove(a)
	s := w.once()
	if err := w.equal(a); err != nil {
		t.Fatal(err)
	}
	if s.Tables[0].RowsCopied != 2 {
		t.Errorf("copied %d rows, want 2", s.Tables[0].RowsCopied)
	}
}

func TestChangedSettingsPauseTheTableAndKeepItsLog(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	elsewhere := schema.Name{Schema: "public", Table: "elsewhere"}
	w.change = func(o *Options) {
		o.Select = func(*schema.Table) (Settings, bool) { return Settings{Destination: elsewhere}, true }
	}
	w.insert(a, 2)
	s := w.once()
	if s.InOrder() || s.Tables[0].Phase != string(Paused) || s.Tables[0].RowsCopied != 0 {
		t.Fatalf("summary: %+v", s.Tables[0])
	}
	w.change = nil
	w.once()
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func TestTableLeftOutAndTakenInAgainIsCopied(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	w.change = func(o *Options) {
		o.Select = func(t *schema.Table) (Settings, bool) { return Settings{Destination: t.Name}, t.Name == b }
	}
	w.insert(a, 2)
	w.insert(b, 2)
	w.once() // acknowledges what a did meanwhile
	w.change = nil
	w.once()
	for _, n := range []schema.Name{a, b} {
		if err := w.equal(n); err != nil {
			t.Error(err)
		}
	}
}

// brokenStore is a state that cannot be written.
type brokenStore struct{ Store }

func (brokenStore) SaveFloor(context.Context, string, map[schema.ID]string) error {
	return errors.New("disk full")
}

func TestStateThatCannotBeWrittenStopsAcknowledgingOnly(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	acked := w.db.Acked()
	w.change = func(o *Options) { o.Store = brokenStore{w.store} }
	w.insert(a, 2)
	stop := w.follow()
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
	if now := w.db.Acked(); now != acked {
		t.Errorf("acknowledged %s without the state, was %s", now, acked)
	}
}

func TestOneTablesFaultPausesItAloneAndLosesNothing(t *testing.T) {
	w := newWorld(t)
	a, b := w.table("public", "a"), w.table("public", "b")
	w.insert(a, 1)
	w.insert(b, 1)
	w.once()
	refused := &refusingSink{table: a}
	w.change = func(o *Options) {
		sink := o.Sink
		o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
			s, err := sink(ctx, id)
			refused.Sink = s
			return refused, err
		}
	}
	w.insert(a, 2)
	w.insert(b, 2)
	stop := w.follow()
	w.eventually(func() error { return w.equal(b) })
	w.eventually(func() error {
		tables, err := w.store.Tables(t.Context())
		for _, r := range tables {
			if r.Name == a && r.Phase == string(Paused) && r.Reason != "" {
				return err
			}
		}
		return fmt.Errorf("a is not paused: %+v", tables)
	})
	w.insert(b, 3)
	w.eventually(func() error { return w.equal(b) })
	s, err := stop()
	if err != nil || s.InOrder() {
		t.Errorf("run: %v, in order %v", err, s.InOrder())
	}
	w.change = nil
	w.once()
	if err := w.equal(a); err != nil {
		t.Errorf("after the fault: %v", err)
	}
}

// refusingSink refuses every row of one table.
type refusingSink struct {
	connector.Sink
	table schema.Name
}

type refusingTx struct {
	connector.Tx
	table schema.Name
}

func (s *refusingSink) Begin(ctx context.Context) (connector.Tx, error) {
	tx, err := s.Sink.Begin(ctx)
	return refusingTx{tx, s.table}, err
}

func (tx refusingTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	if t.Table.Name != tx.table {
		return tx.Tx.Write(ctx, t, r)
	}
	kind := connector.Constraint
	if !r.Distinct {
		kind = connector.BadRow
	}
	return &connector.Error{Kind: kind, System: "sink", Op: "write rows", Table: tx.table, Err: errors.New("refused")}
}

func TestNetworkFaultsAreWaitedForAndCountAgainstNoTable(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	stop := w.follow()
	w.eventually(func() error { return w.equal(a) })
	for i, call := range []connectortest.Call{
		connectortest.CallNext, connectortest.CallBegin, connectortest.CallWrite, connectortest.CallCommit, connectortest.CallClaim,
	} {
		fault := w.faults.Refuse(call, 1, connector.Unavailable)
		if call == connectortest.CallClaim { // which the next session makes
			w.faults.Refuse(connectortest.CallNext, 1, connector.Unavailable)
		}
		w.insert(a, 10+i)
		w.eventually(func() error { return errors.Join(happened(fault), w.equal(a)) })
	}
	for i := range 5 {
		fault := w.faults.LoseAnswer(connectortest.CallCommit, 1+i, connector.Unavailable)
		w.insert(a, 20+i)
		w.eventually(func() error {
			w.db.Begin().Commit() // moves the floor, which is one commit more
			return errors.Join(happened(fault), w.equal(a))
		})
	}
	s, err := stop()
	if err != nil || !s.InOrder() {
		t.Errorf("run: %v, %+v", err, s)
	}
}

func TestGapIsAnsweredByNewCopiesWhereThatIsConfigured(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.loseLog(a)
	w.change = func(o *Options) { o.ResyncOnGap = true }
	w.once()
	if err := w.equal(a); err != nil {
		t.Error(err)
	}
}

func happened(fault *connectortest.Fault) error {
	if fault.Happened() == 0 {
		return errors.New("the fault has not happened")
	}
	return nil
}

func TestHistoryThatIsCopiedAgainHasAGapInFrontOfTheNewCopy(t *testing.T) {
	for name, again := range map[string]func(w *world, table schema.Name){
		"a person asks": func(w *world, table schema.Name) {
			stop := w.follow()
			defer stop()
			w.awaitPhase(table, Streaming)
			w.do(state.Resync, table)
		},
		"the log has a gap": func(w *world, _ schema.Name) {
			w.db.DropSlot()
			w.change = func(o *Options) { o.ResyncOnGap = true }
		},
		"the destination cannot be altered": func(w *world, table schema.Name) {
			w.change = func(o *Options) {
				sink := o.Sink
				o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
					s, err := sink(ctx, id)
					return unalterable{s}, err
				}
			}
			if _, err := w.db.AddColumn(table, connectortest.Text("more")); err != nil {
				w.t.Fatal(err)
			}
			w.commit(func(tx *connectortest.Txn) error {
				return tx.Update(table, connectortest.Row{"1"}, connectortest.Row{"1", "v", "big", connectortest.Null})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			table := w.table("history", "a")
			w.insert(table, 1)
			w.once()
			w.insert(table, 2)
			w.once()
			before := w.sink.History(table)
			if ops := opsOf(before); ops != "copy insert" {
				t.Fatalf("the history is %q", ops)
			}
			again(w, table)
			w.once()
			after := w.sink.History(table)
			if ops := opsOf(after); ops != "copy insert gap copy copy" {
				t.Fatalf("the history is %q", ops)
			}
			if gap, last := after[2], before[1]; gap.Position != last.Position || gap.Seq <= last.Seq || gap.Seq >= after[3].Seq || gap.Row != nil {
				t.Errorf("the gap is %+v, between %+v and %+v", gap, last, after[3])
			}
		})
	}
}

// unalterable is a sink that needs a new copy for each change of a table's columns.
type unalterable struct{ connector.Sink }

func (unalterable) Change(context.Context, *connector.Target, connector.Alteration) (*connector.Target, error) {
	return nil, nil
}

// opsOf returns the operations of a history.
func opsOf(history []connectortest.HistoryRow) string {
	var ops []string
	for _, h := range history {
		ops = append(ops, h.Op)
	}
	return strings.Join(ops, " ")
}

func TestSecondProcessFencesTheFirst(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first := make(chan error, 1)
	go func() {
		_, err := Run(ctx, w.options(false))
		first <- err
	}()
	w.eventually(func() error { return w.equal(a) })
	if _, err := connectortest.NewMemorySink(w.sink, &connectortest.Faults{}).Claim(t.Context(), "shop", ""); err != nil {
		t.Fatal(err)
	}
	w.insert(a, 2)
	if err := <-first; connector.KindOf(err) != connector.Fenced {
		t.Errorf("the first process ended with %v, want it fenced", err)
	}
}

func TestColumnAddedIsFollowedByANewCopy(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	stop := w.follow()
	w.eventually(func() error { return w.equal(a) })
	if _, err := w.db.AddColumn(a, connectortest.Text("more")); err != nil {
		t.Fatal(err)
	}
	w.commit(func(tx *connectortest.Txn) error { return tx.Insert(a, connectortest.Row{"2", "v", "big", "x"}) })
	w.eventually(func() error { return w.equal(a) })
	if _, err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestNewTablesThatAreNotWantedStayOutThroughARestart(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.change = func(o *Options) { o.FollowNew = false }
	stop := w.follow()
	w.eventually(func() error { return w.equal(a) })
	b := w.table("public", "b")
	w.insert(b, 1)
	fault := w.faults.Refuse(connectortest.CallNext, 1, connector.Unavailable)
	w.insert(a, 2)
	w.eventually(func() error { return errors.Join(happened(fault), w.equal(a)) })
	w.insert(a, 3)
	w.eventually(func() error { return w.equal(a) }) // in the next session
	if s, err := stop(); err != nil || len(s.Tables) != 1 {
		t.Errorf("run: %v, %+v", err, s.Tables)
	}
	if rows := w.sink.Rows(b); rows != nil {
		t.Errorf("table b was mirrored: %v", rows)
	}
}

func TestFaultOfATableEndsTheRunIfAsked(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	w.change = func(o *Options) {
		o.FailOnTable = true
		sink := o.Sink
		o.Sink = func(ctx context.Context, id string) (connector.Sink, error) {
			s, err := sink(ctx, id)
			return &refusingSink{Sink: s, table: a}, err
		}
	}
	w.insert(a, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := Run(ctx, w.options(false)); connector.KindOf(err) != connector.TableFault {
		t.Errorf("the run ended with %v", err)
	}
}

func TestSetUpFaultOfTheWholeSinkPausesNoTable(t *testing.T) {
	w := newWorld(t)
	a := w.table("public", "a")
	w.insert(a, 1)
	w.once()
	w.insert(a, 2)
	w.faults.Refuse(connectortest.CallWrite, 1, connector.Setup)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := Run(ctx, w.options(false))
	if connector.KindOf(err) != connector.Setup || !s.InOrder() {
		t.Errorf("the run ended with %v, tables %+v", err, s.Tables)
	}
}
