package connectortest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// brokenSink is a sink with one thing wrong: what is set is called around or in place of the call of that name.
type brokenSink struct {
	*MemorySink
	first     *schema.Table                                                                          // that was planned
	plan      func(want connector.Target, t *connector.Target, err error) (*connector.Target, error) // after Plan
	claim     func(ctx context.Context, mirror, id string) (*connector.Claim, error)
	create    func(t *connector.Target)                                              // before Create
	ready     func(t *connector.Target, entries map[string]string) map[string]string // before Ready; returns its entries
	readyDone func(t *connector.Target)
	change    func(a *connector.Alteration) error          // before Change
	changed   func(t, next *connector.Target)              // after Change
	begin     func() error                                 // before Begin
	ended     func()                                       // after Commit or Rollback
	op        func(op connector.Op, row Row) (opRow, bool) // of rows passed; false: leave it out
	sort      func(ops []opRow) []opRow                    // of rows written
	write     func(r *connector.Rows)                      // before Write
	wrote     func(err error) error                        // after Write
	commit    func(ctx context.Context, tx connector.Tx, entries map[string]string) error
	rollback  func(tx connector.Tx) error
}

// stored returns what the store has of a destination.
func (s *brokenSink) stored(t *connector.Target) *storedTable { return s.store.tables[t.Name] }

func (s *brokenSink) Plan(ctx context.Context, want connector.Target) (*connector.Target, error) {
	if s.first == nil {
		s.first = want.Table
	}
	t, err := s.MemorySink.Plan(ctx, want)
	if s.plan != nil {
		return s.plan(want, t, err)
	}
	return t, err
}

func (s *brokenSink) Claim(ctx context.Context, mirror, id string) (*connector.Claim, error) {
	if s.claim != nil {
		return s.claim(ctx, mirror, id)
	}
	return s.MemorySink.Claim(ctx, mirror, id)
}

func (s *brokenSink) Create(ctx context.Context, t *connector.Target) error {
	if s.create != nil {
		s.create(t)
	}
	return s.MemorySink.Create(ctx, t)
}

func (s *brokenSink) Ready(ctx context.Context, t *connector.Target, entries map[string]string) error {
	if s.ready != nil {
		entries = s.ready(t, entries)
	}
	err := s.MemorySink.Ready(ctx, t, entries)
	if s.readyDone != nil {
		s.readyDone(t)
	}
	return err
}

func (s *brokenSink) Change(ctx context.Context, t *connector.Target, a connector.Alteration) (*connector.Target, error) {
	if s.change != nil {
		if err := s.change(&a); err != nil {
			return nil, err
		}
	}
	next, err := s.MemorySink.Change(ctx, t, a)
	if s.changed != nil {
		s.changed(t, next)
	}
	return next, err
}

func (s *brokenSink) Begin(ctx context.Context) (connector.Tx, error) {
	if s.begin != nil {
		if err := s.begin(); err != nil {
			return nil, err
		}
	}
	tx, err := s.MemorySink.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &brokenTx{Tx: tx, sink: s}, nil
}

type brokenTx struct {
	connector.Tx
	sink *brokenSink
}

func (tx *brokenTx) Load(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	r = tx.sink.edit(r, nil)
	defer r.Release()
	return tx.Tx.Load(ctx, t, r)
}

func (tx *brokenTx) Write(ctx context.Context, t *connector.Target, r *connector.Rows) error {
	r = tx.sink.edit(r, tx.sink.sort)
	defer r.Release()
	if tx.sink.write != nil {
		tx.sink.write(r)
	}
	err := tx.Tx.Write(ctx, t, r)
	if tx.sink.wrote != nil {
		err = tx.sink.wrote(err)
	}
	return err
}

func (tx *brokenTx) Commit(ctx context.Context, entries map[string]string) error {
	if tx.sink.ended != nil {
		defer tx.sink.ended()
	}
	if tx.sink.commit != nil {
		return tx.sink.commit(ctx, tx.Tx, entries)
	}
	return tx.Tx.Commit(ctx, entries)
}

func (tx *brokenTx) Rollback() error {
	if tx.sink.ended != nil {
		defer tx.sink.ended()
	}
	if tx.sink.rollback != nil {
		return tx.sink.rollback(tx.Tx)
	}
	return tx.Tx.Rollback()
}

// edit builds rows again as op and sort want them.
func (s *brokenSink) edit(r *connector.Rows, sort func([]opRow) []opRow) *connector.Rows {
	if s.op == nil && sort == nil {
		r.Values.Retain()
		same := *r
		return &same
	}
	var ops []opRow
	for i := range r.Len() {
		o := opRow{r.Op(i), RowAt(r, i)}
		keep := true
		if s.op != nil {
			o, keep = s.op(o.op, o.row)
		}
		if keep {
			ops = append(ops, o)
		}
	}
	if sort != nil {
		ops = sort(ops)
	}
	b := NewRowsBuilder(memory.DefaultAllocator, r.Table)
	for _, o := range ops {
		if o.op == connector.Truncate {
			o.row = nil
		}
		if err := b.Append(o.op, o.row); err != nil {
			panic(err)
		}
	}
	next := b.Rows()
	next.Distinct, next.Commits, next.Deleted = r.Distinct, slices.Clone(r.Commits), slices.Clone(r.Deleted)
	return next
}

// deletesFirst moves the deletes of rows written to the front.
func deletesFirst(ops []opRow) []opRow {
	slices.SortStableFunc(ops, func(a, b opRow) int { return rank(b) - rank(a) })
	return ops
}

func rank(o opRow) int {
	if o.op == connector.Delete {
		return 1
	}
	return 0
}

// sinkMutations are broken sinks, each with the check that must notice.
var sinkMutations = []struct {
	check, name string
	spoil       func(s *brokenSink)
}{
	{"copy_is_loaded_whole", "a row is left out", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) { return opRow{op, row}, row[0] != "77" }
	}},
	{"readers_see_nothing_before_ready", "rows are seen as they are loaded", func(s *brokenSink) {
		s.commit = func(ctx context.Context, tx connector.Tx, entries map[string]string) error {
			err := tx.Commit(ctx, entries)
			for _, t := range s.store.tables {
				t.ready = 1
				for _, row := range t.loading.rows {
					t.rows[row[0]] = row
				}
			}
			return err
		}
	}},
	{"new_copy_takes_the_place_of_the_old_rows", "old rows stay beside the new ones", func(s *brokenSink) {
		var old map[string]Row
		s.ready = func(t *connector.Target, entries map[string]string) map[string]string {
			old = s.stored(t).rows
			return entries
		}
		s.readyDone = func(t *connector.Target) { maps.Copy(s.stored(t).rows, old) }
	}},
	{"new_copy_takes_the_place_of_the_old_rows", "the old table is empty while the copy runs", func(s *brokenSink) {
		s.create = func(t *connector.Target) {
			if stored := s.stored(t); stored != nil {
				clear(stored.rows)
			}
		}
	}},
	{"create_goes_on_with_a_copy", "each Create begins anew", func(s *brokenSink) {
		s.create = func(t *connector.Target) {
			if stored := s.stored(t); stored != nil {
				stored.loading = nil
			}
		}
	}},
	{"new_copy_begins_without_rows", "a new number goes on with the old rows", func(s *brokenSink) {
		s.create = func(t *connector.Target) {
			if stored := s.stored(t); stored != nil && stored.loading != nil {
				stored.loading.number = t.Copy
			}
		}
	}},
	{"plan_tells_the_copy_last_ready", "every plan is the first", func(s *brokenSink) {
		s.plan = func(_ connector.Target, t *connector.Target, err error) (*connector.Target, error) {
			t.Copy = 0
			return t, err
		}
	}},
	{"destination_of_somebody_else_is_refused", "any table is taken", func(s *brokenSink) {
		s.plan = func(want connector.Target, _ *connector.Target, _ error) (*connector.Target, error) {
			return &want, nil
		}
	}},
	{"set_inserts_updates_and_deletes", "deletes are left out", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) { return opRow{op, row}, op != connector.Delete }
	}},
	{"set_inserts_updates_and_deletes", "an update of a missing row is left out", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) { return opRow{op, row}, row[1] != "no row yet" }
	}},
	{"set_swaps_two_keys", "rows of a set are written one by one", func(s *brokenSink) {
		s.write = func(r *connector.Rows) { r.Distinct = false }
	}},
	{"set_deletes_before_it_puts", "old keys are deleted at the end", func(s *brokenSink) {
		s.sort = func(ops []opRow) []opRow {
			for _, o := range ops {
				if o.op == connector.Before {
					ops = append(ops, opRow{connector.Delete, o.row})
				}
			}
			return ops
		}
		s.write = func(r *connector.Rows) { r.Distinct = false }
	}},
	{"unsent_values_stay", "unsent is NULL", func(s *brokenSink) { s.write = func(r *connector.Rows) { r.Unsent = nil } }},
	{"update_of_a_missing_row_is_a_bad_row", "the wrong row is named", func(s *brokenSink) {
		s.wrote = func(err error) error {
			if e, ok := errors.AsType[*connector.Error](err); ok {
				e.Row = 0
			}
			return err
		}
	}},
	{"update_of_a_missing_row_is_a_bad_row", "what is missing is NULL", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) {
			return opRow{op, Row{row[0], row[1], row[2], Null}}, true
		}
	}},
	{"rows_one_by_one_keep_their_order", "deletes go first", func(s *brokenSink) { s.sort = deletesFirst }},
	{"truncate_empties_the_table", "truncates are left out", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) { return opRow{op, row}, op != connector.Truncate }
	}},
	{"nulls_and_long_text_are_kept", "NULL is empty text", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) {
			for i, v := range row {
				if v == Null {
					row[i] = ""
				}
			}
			return opRow{op, row}, true
		}
	}},
	{"rows_and_entries_are_one", "entries are left out", func(s *brokenSink) {
		s.commit = func(ctx context.Context, tx connector.Tx, _ map[string]string) error { return tx.Commit(ctx, nil) }
	}},
	{"rows_and_entries_are_one", "an empty value is kept", func(s *brokenSink) {
		s.commit = func(ctx context.Context, tx connector.Tx, entries map[string]string) error {
			err := tx.Commit(ctx, entries)
			maps.Copy(s.store.mirrors[suiteMirror].entries, entries)
			return err
		}
	}},
	{"rollback_undoes_all", "Rollback commits", func(s *brokenSink) {
		s.rollback = func(tx connector.Tx) error { return tx.Commit(context.Background(), nil) }
	}},
	{"entries_survive_a_copy", "Ready leaves its entries out", func(s *brokenSink) {
		s.ready = func(*connector.Target, map[string]string) map[string]string { return nil }
	}},
	{"entries_survive_a_copy", "Ready deletes the other entries", func(s *brokenSink) {
		s.ready = func(_ *connector.Target, entries map[string]string) map[string]string {
			clear(s.store.mirrors[suiteMirror].entries)
			clear(s.known)
			return entries
		}
	}},
	{"restart_finds_what_was_committed", "a copy under way is lost by Claim", func(s *brokenSink) {
		s.claim = func(ctx context.Context, mirror, id string) (*connector.Claim, error) {
			for _, t := range s.store.tables {
				t.loading = nil
			}
			return s.MemorySink.Claim(ctx, mirror, id)
		}
	}},
	{"lost_answer_is_found_by_claim", "Claim answers from memory", func(s *brokenSink) {
		known := map[string]string{}
		s.claim = func(ctx context.Context, mirror, id string) (*connector.Claim, error) {
			c, err := s.MemorySink.Claim(ctx, mirror, id)
			if err == nil {
				c.Entries = known
			}
			return c, err
		}
		s.commit = func(ctx context.Context, tx connector.Tx, entries map[string]string) error {
			err := tx.Commit(ctx, entries)
			if err == nil {
				maps.Copy(known, entries)
			}
			return err
		}
	}},
	{"entries_are_compared", "entries are not compared", func(s *brokenSink) {
		s.begin = func() error {
			if m := s.store.mirrors[suiteMirror]; m != nil {
				s.known = maps.Clone(m.entries)
			}
			return nil
		}
	}},
	{"earlier_claimant_is_fenced", "the epoch is not compared", func(s *brokenSink) {
		s.begin = s.adopt
		s.ready = func(_ *connector.Target, entries map[string]string) map[string]string {
			_ = s.adopt()
			return entries
		}
	}},
	{"earlier_claimant_is_fenced", "Ready does not compare the epoch", func(s *brokenSink) {
		s.ready = func(_ *connector.Target, entries map[string]string) map[string]string {
			_ = s.adopt()
			return entries
		}
	}},
	{"claim_and_commit_agree", "an open transaction of the old claimant goes on unseen", func(s *brokenSink) {
		s.claim = func(ctx context.Context, mirror, id string) (*connector.Claim, error) {
			c, err := s.MemorySink.Claim(ctx, mirror, id)
			if err == nil {
				c.Entries = nil
			}
			return c, err
		}
		s.commit = func(ctx context.Context, tx connector.Tx, entries map[string]string) error {
			_ = s.adopt()
			tx.(*memoryTx).epoch = s.epoch
			return tx.Commit(ctx, entries)
		}
	}},
	{"claim_refuses_another_id", "every id is taken", func(s *brokenSink) {
		s.claim = func(ctx context.Context, mirror, _ string) (*connector.Claim, error) {
			return s.MemorySink.Claim(ctx, mirror, "")
		}
	}},
	{"writers_load_side_by_side", "a second writer is refused", func(s *brokenSink) {
		open := 0
		s.begin = func() error {
			if open > 0 {
				return sinkError(connector.Unavailable, "begin", schema.Name{}, errors.New("no connection is free"))
			}
			open++
			return nil
		}
		s.ended = func() { open-- }
	}},
	{"calls_end_with_their_context", "Commit does not look at its context", func(s *brokenSink) {
		s.commit = func(ctx context.Context, tx connector.Tx, entries map[string]string) error {
			return tx.Commit(context.WithoutCancel(ctx), entries)
		}
	}},
	{"change_adds_a_column", "defaults are left out", func(s *brokenSink) {
		s.change = func(a *connector.Alteration) error { a.Missing = nil; return nil }
	}},
	{"change_adds_a_column", "the target is the old one", func(s *brokenSink) {
		s.changed = func(t, next *connector.Target) { *next = *t }
	}},
	{"change_and_entries_are_one", "a change cannot be repeated", func(s *brokenSink) {
		done := false
		s.change = func(*connector.Alteration) error {
			if done {
				return sinkError(connector.TableFault, "change", schema.Name{}, errors.New("the column exists"))
			}
			done = true
			return nil
		}
	}},
	{"change_and_entries_are_one", "entries are left out", func(s *brokenSink) {
		s.change = func(a *connector.Alteration) error { a.Entries = nil; return nil }
	}},
	{"change_drops_a_column", "it is kept", func(s *brokenSink) {
		s.change = func(a *connector.Alteration) error { a.DropColumns = false; return nil }
	}},
	{"change_keeps_a_dropped_column", "it is dropped", func(s *brokenSink) {
		s.change = func(a *connector.Alteration) error { a.DropColumns = true; return nil }
	}},
	{"change_keeps_a_dropped_column", "its values are lost by updates", func(s *brokenSink) {
		s.changed = func(t, next *connector.Target) {
			stored := s.stored(t)
			for _, row := range stored.rows {
				for c := len(next.Columns); c < len(row); c++ {
					row[c] = Null
				}
			}
		}
	}},
	{"change_renames_columns", "renamed columns are new", func(s *brokenSink) {
		s.change = func(*connector.Alteration) error {
			for _, stored := range s.store.tables {
				stored.numbers = []int32{1, 102, 103, 104}
			}
			return nil
		}
	}},
	{"change_that_is_not_possible_asks_for_a_copy", "every change is possible", func(s *brokenSink) {
		s.change = func(a *connector.Alteration) error {
			to := *a.Want.Table
			to.Columns, to.Key = s.first.Columns, s.first.Key
			a.Want.Table, a.Missing = &to, nil
			return nil
		}
	}},
	{"change_of_a_history_loses_nothing", "a dropped column goes", func(s *brokenSink) {
		s.changed = func(t, next *connector.Target) {
			stored := s.stored(t)
			for _, h := range stored.history {
				for c := len(next.Columns); c < len(h.Row); c++ {
					h.Row[c] = Null
				}
			}
		}
	}},
	{"history_appends_every_change", "every run is numbered from 0", func(s *brokenSink) {
		s.write = func(r *connector.Rows) {
			for i := range r.Commits {
				r.Commits[i].First = 0
			}
		}
		s.sort = func(ops []opRow) []opRow { return ops } // so that the commits are a copy
	}},
	{"history_fills_unsent_values_from_the_key_s_last_row", "unsent is NULL", func(s *brokenSink) {
		s.write = func(r *connector.Rows) { r.Unsent = nil }
	}},
	{"history_survives_a_new_copy", "a copy begins the history anew", func(s *brokenSink) {
		s.ready = func(t *connector.Target, entries map[string]string) map[string]string {
			s.stored(t).history = nil
			return entries
		}
	}},
	{"history_has_a_gap_before_a_new_copy_and_with_it", "there is none", func(s *brokenSink) {
		s.readyDone = func(t *connector.Target) {
			stored := s.stored(t)
			stored.history = slices.DeleteFunc(stored.history, func(h HistoryRow) bool { return h.Op == "gap" })
		}
	}},
	{"history_has_a_gap_before_a_new_copy_and_with_it", "the first copy has one", func(s *brokenSink) {
		s.readyDone = func(t *connector.Target) {
			if stored := s.stored(t); t.History && len(stored.history) == 0 {
				stored.history = []HistoryRow{{Op: "gap"}}
			}
		}
	}},
	{"history_has_a_gap_before_a_new_copy_and_with_it", "it is seen before the copy", func(s *brokenSink) {
		s.create = func(t *connector.Target) {
			stored := s.stored(t)
			if stored != nil && slices.ContainsFunc(stored.history, func(h HistoryRow) bool { return h.Position == "20" }) {
				stored.history = append(stored.history, HistoryRow{Op: "gap", Position: "20", Seq: 1})
			}
		}
	}},
	{"soft_delete_keeps_the_row_with_its_time", "deletes are hard", (*brokenSink).deleteHard},
	{"soft_delete_keeps_the_row_with_its_time", "the last deletion counts", func(s *brokenSink) {
		s.write = func(r *connector.Rows) {
			for _, t := range s.store.tables {
				clear(t.deleted)
			}
		}
	}},
	{"soft_deleted_key_that_comes_back_is_replaced", "what was deleted stays so", func(s *brokenSink) {
		s.op = func(op connector.Op, row Row) (opRow, bool) { return opRow{op, row}, row[1] != "new" }
	}},
	{"soft_delete_keeps_the_old_row_of_a_changed_key", "the old row goes", (*brokenSink).deleteHard},
	{"soft_delete_keeps_a_row_that_came_and_went", "it lives", func(s *brokenSink) {
		s.write = func(r *connector.Rows) {
			for i := range r.Deleted {
				if op := r.Op(i); op == connector.Insert || op == connector.Update {
					r.Deleted[i] = time.Time{}
				}
			}
		}
		s.sort = func(ops []opRow) []opRow { return ops } // so that the times are a copy
	}},
	{"soft_delete_keeps_what_a_truncate_empties", "the table is emptied", (*brokenSink).deleteHard},
	{"soft_deleted_row_completes_no_update", "deleted rows are as good as others", func(s *brokenSink) {
		s.write = func(r *connector.Rows) {
			for _, t := range s.store.tables {
				clear(t.deleted)
			}
		}
	}},
	{"soft_deleted_rows_survive_a_new_copy", "the copy takes their place", (*brokenSink).deleteHard},
	{"soft_deleted_rows_survive_a_new_copy", "a row that the copy lacks lives on", func(s *brokenSink) {
		var before map[string]string
		s.ready = func(t *connector.Target, entries map[string]string) map[string]string {
			before = maps.Clone(s.stored(t).deleted)
			return entries
		}
		s.readyDone = func(t *connector.Target) {
			for k := range s.stored(t).deleted {
				if before[k] == "" {
					delete(s.stored(t).deleted, k)
				}
			}
		}
	}},
	{"soft_deletes_refuse_a_column_of_their_name", "it is taken", func(s *brokenSink) {
		s.plan = func(want connector.Target, t *connector.Target, err error) (*connector.Target, error) {
			if err != nil {
				return &want, nil
			}
			return t, nil
		}
	}},
}

// deleteHard makes what is written, and copies, lose what was deleted.
func (s *brokenSink) deleteHard() {
	purge := func() {
		for _, t := range s.store.tables {
			for k := range t.deleted {
				delete(t.rows, k)
			}
			clear(t.deleted)
		}
	}
	s.ended = purge
	s.readyDone = func(*connector.Target) { purge() }
}

// adopt makes the sink's claim pass for the present one.
func (s *brokenSink) adopt() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if m := s.store.mirrors[suiteMirror]; m != nil {
		s.epoch = m.epoch
		s.known = maps.Clone(m.entries)
	}
	return nil
}

func TestEverySinkCheckCanFail(t *testing.T) {
	broken := make(map[string]int)
	for _, m := range sinkMutations {
		broken[m.check]++
		t.Run(m.check+"/"+m.name, func(t *testing.T) {
			h := SinkHarness{Timeout: brokenTimeout, New: func(testing.TB) SinkSystem {
				return newMemoryStore(func(sink *MemorySink) connector.Sink {
					s := &brokenSink{MemorySink: sink}
					m.spoil(s)
					return s
				})
			}}
			ch := findCheck(t, sinkChecks, m.check)
			expectFailure(t, record(t, func(tb testing.TB) { runSinkCheck(tb, h, ch) }))
		})
	}
	for _, ch := range sinkChecks {
		if broken[ch.name] == 0 {
			t.Errorf("no broken sink shows that check %s can fail", ch.name)
		}
	}
}
