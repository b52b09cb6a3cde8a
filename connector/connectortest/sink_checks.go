package connectortest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var sinkChecks = slices.Concat(rowChecks, softChecks)

var rowChecks = []check[*sinkCheck]{
	{"copy_is_loaded_whole", checkLoad},
	{"readers_see_nothing_before_ready", checkUnseen},
	{"new_copy_takes_the_place_of_the_old_rows", checkNewCopy},
	{"create_goes_on_with_a_copy", checkCreateAgain},
	{"new_copy_begins_without_rows", checkCreateNew},
	{"plan_tells_the_copy_last_ready", checkPlan},
	{"destination_of_somebody_else_is_refused", checkForeign},
	{"set_inserts_updates_and_deletes", checkSet},
	{"set_swaps_two_keys", checkSwap},
	{"set_deletes_before_it_puts", checkDeleteFirst},
	{"unsent_values_stay", checkSinkUnsent},
	{"update_of_a_missing_row_is_a_bad_row", checkMissing},
	{"rows_one_by_one_keep_their_order", checkOrder},
	{"truncate_empties_the_table", checkSinkTruncate},
	{"nulls_and_long_text_are_kept", checkSinkNulls},
	{"rows_and_entries_are_one", checkEntries},
	{"rollback_undoes_all", checkRollback},
	{"entries_survive_a_copy", checkReadyEntries},
	{"restart_finds_what_was_committed", checkRestart},
	{"lost_answer_is_found_by_claim", checkLostAnswer},
	{"entries_are_compared", checkCompare},
	{"earlier_claimant_is_fenced", checkFence},
	{"claim_and_commit_agree", checkClaimRace},
	{"claim_refuses_another_id", checkClaimID},
	{"writers_load_side_by_side", checkWriters},
	{"calls_end_with_their_context", checkSinkCancel},
	{"change_adds_a_column", checkChange},
	{"change_and_entries_are_one", checkChangeEntries},
	{"change_drops_a_column", checkChangeDropped},
	{"change_keeps_a_dropped_column", checkChangeKept},
	{"change_renames_columns", checkChangeRenamed},
	{"change_that_is_not_possible_asks_for_a_copy", checkChangeImpossible},
	{"change_of_a_history_loses_nothing", checkChangeHistory},
	{"history_appends_every_change", checkHistory},
	{"history_fills_unsent_values_from_the_key_s_last_row", checkHistoryUnsent},
	{"history_survives_a_new_copy", checkHistoryCopy},
	{"history_has_a_gap_before_a_new_copy_and_with_it", checkHistoryGap},
}

const suiteMirror = "suite"

// sinkCheck is what the check of a sink stands on.
type sinkCheck struct {
	*bench
	sys  SinkSystem
	sink connector.Sink
	open []connector.Sink // all of them, to be closed
}

func runSinkCheck(t testing.TB, h SinkHarness, ch check[*sinkCheck]) {
	sys := h.New(t)
	b, end := newBench(t, h.Schema, h.Timeout)
	c := &sinkCheck{bench: b, sys: sys}
	defer func() {
		for _, s := range slices.Backward(c.open) {
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		end()
	}()
	c.sink = c.openSink()
	c.claim(c.sink, "")
	ch.run(c)
}

// openSink opens the sink as another process does.
func (c *sinkCheck) openSink() connector.Sink {
	c.Helper()
	s, err := c.sys.Open(c.ctx, c.alloc)
	c.ok(err, "open the sink")
	c.open = append(c.open, s)
	return s
}

// restart closes the sink and opens it again, as the next process does.
func (c *sinkCheck) restart() *connector.Claim {
	c.Helper()
	for _, s := range c.open {
		c.ok(s.Close(), "close")
	}
	c.open = nil
	c.sink = c.openSink()
	return c.claim(c.sink, "")
}

func (c *sinkCheck) claim(s connector.Sink, id string) *connector.Claim {
	c.Helper()
	claim, err := s.Claim(c.ctx, suiteMirror, id)
	c.ok(err, "claim the mirror")
	return claim
}

// source returns a table as a source would describe it.
func (c *sinkCheck) source(name string) *schema.Table {
	t := &schema.Table{ID: schema.ID("id of " + name), Version: 1, Log: "log", Name: c.name(name), Columns: slices.Clone(itemColumns), Key: []int{0}, Rows: -1, RowBytes: -1}
	for i := range t.Columns {
		t.Columns[i].Number = int32(i + 1)
	}
	t.Columns[0].NotNull = true
	return t
}

// plan returns where a table goes, with the number of its next copy.
func (c *sinkCheck) plan(name string, history bool) *connector.Target {
	c.Helper()
	t := c.source(name)
	target, err := c.sink.Plan(c.ctx, connector.Target{Table: t, Name: t.Name, History: history})
	c.ok(err, "plan")
	target.Copy++
	return target
}

// stored returns a destination that holds rows.
func (c *sinkCheck) stored(name string, rows ...Row) *connector.Target {
	c.Helper()
	t := c.plan(name, false)
	c.copy(t, nil, rows...)
	return t
}

// copy makes copy t.Copy of rows, in two transactions.
func (c *sinkCheck) copy(t *connector.Target, entries map[string]string, rows ...Row) {
	c.Helper()
	c.ok(c.sink.Create(c.ctx, t), "create")
	half := len(rows) / 2
	c.load(t, rows[:half]...)
	c.load(t, rows[half:]...)
	c.ok(c.sink.Ready(c.ctx, t, entries), "ready")
}

func (c *sinkCheck) load(t *connector.Target, rows ...Row) {
	c.Helper()
	tx := c.begin(c.sink)
	c.ok(c.loadIn(tx, t, rows...), "load")
	c.ok(tx.Commit(c.ctx, nil), "commit")
}

func (c *sinkCheck) loadIn(tx connector.Tx, t *connector.Target, rows ...Row) error {
	c.Helper()
	var ops []opRow
	for _, row := range rows {
		ops = append(ops, opRow{connector.Insert, row})
	}
	r := c.build(t, ops)
	defer r.Release()
	r.Ops = nil
	return tx.Load(c.ctx, t, r)
}

func (c *sinkCheck) begin(s connector.Sink) connector.Tx {
	c.Helper()
	tx, err := s.Begin(c.ctx)
	c.ok(err, "begin")
	return tx
}

// opRow is a row and what it does.
type opRow struct {
	op  connector.Op
	row Row
}

// put, change, gone and was make rows of changes; gone and was carry the key alone.
func put(values ...string) opRow   { return opRow{connector.Insert, values} }
func alter(values ...string) opRow { return opRow{connector.Update, values} }
func gone(key string) opRow        { return opRow{connector.Delete, Row{key, Unsent, Unsent, Unsent}} }
func was(key string) opRow         { return opRow{connector.Before, Row{key, Unsent, Unsent, Unsent}} }

func (c *sinkCheck) build(t *connector.Target, ops []opRow) *connector.Rows {
	c.Helper()
	b := NewRowsBuilder(c.alloc, t.Table)
	for _, o := range ops {
		c.ok(b.Append(o.op, o.row), "build rows")
	}
	return b.Rows()
}

// write writes changes in one transaction with entries and returns the first error; nothing is left open.
func (c *sinkCheck) write(s connector.Sink, t *connector.Target, distinct bool, entries map[string]string, ops ...opRow) error {
	c.Helper()
	tx, err := s.Begin(c.ctx)
	if err != nil {
		return err
	}
	r := c.build(t, ops)
	defer r.Release()
	r.Distinct = distinct
	if !distinct {
		r.Commits = []connector.Commit{{Rows: r.Len(), Position: "1"}}
	}
	if err := tx.Write(c.ctx, t, r); err != nil {
		c.ok(tx.Rollback(), "roll back")
		return err
	}
	return tx.Commit(c.ctx, entries)
}

// set writes distinct rows.
func (c *sinkCheck) set(t *connector.Target, ops ...opRow) {
	c.Helper()
	c.ok(c.write(c.sink, t, true, nil, ops...), "write a set of changes")
}

// oneByOne writes rows that are not distinct.
func (c *sinkCheck) oneByOne(t *connector.Target, ops ...opRow) {
	c.Helper()
	c.ok(c.write(c.sink, t, false, nil, ops...), "write changes one by one")
}

// holds compares what readers see.
func (c *sinkCheck) holds(t *connector.Target, want ...Row) {
	c.Helper()
	rows, err := c.sys.Rows(t.Name, t.SinkNames)
	c.ok(err, "read the destination")
	c.sameRows(rows, want, "rows of "+t.Name.String())
}

// numbered returns n rows with keys from first on.
func numbered(first, n int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		id := strconv.Itoa(first + i)
		rows[i] = Row{id, "name " + id, Null, "big " + id}
	}
	return rows
}

func checkLoad(c *sinkCheck) {
	t := c.stored("items", numbered(-5, 300)...)
	c.holds(t, numbered(-5, 300)...)
	empty := c.stored("empty")
	c.holds(empty)
	rows, err := c.sys.Rows(empty.Name, empty.SinkNames)
	if err != nil || rows == nil {
		c.Errorf("the destination of an empty table cannot be read: %v", err)
	}
}

func checkUnseen(c *sinkCheck) {
	t := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, t), "create")
	c.load(t, numbered(1, 5)...)
	c.holds(t)
	c.ok(c.sink.Ready(c.ctx, t, nil), "ready")
	c.holds(t, numbered(1, 5)...)
}

func checkNewCopy(c *sinkCheck) {
	t := c.stored("items", numbered(1, 5)...)
	next := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, next), "create")
	c.load(next, numbered(4, 4)...)
	c.holds(t, numbered(1, 5)...)
	c.set(t, gone("1")) // the old rows are kept up until the new ones are ready
	c.holds(t, numbered(2, 4)...)
	c.ok(c.sink.Ready(c.ctx, next, nil), "ready")
	c.holds(t, numbered(4, 4)...)
	c.set(next, gone("4"), put("1", "a", Null, "b"))
	c.holds(t, append(numbered(5, 3), Row{"1", "a", Null, "b"})...)
}

func checkCreateAgain(c *sinkCheck) {
	t := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, t), "create")
	c.load(t, numbered(1, 3)...)
	c.ok(c.sink.Create(c.ctx, t), "create again")
	c.load(t, numbered(4, 3)...)
	c.restart()
	c.ok(c.sink.Create(c.ctx, t), "create after a restart")
	c.ok(c.sink.Ready(c.ctx, t, nil), "ready")
	c.holds(t, numbered(1, 6)...)
}

func checkCreateNew(c *sinkCheck) {
	t := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, t), "create")
	c.load(t, numbered(100, 1)...)
	t.Copy++
	c.ok(c.sink.Create(c.ctx, t), "create a second copy")
	c.load(t, numbered(1, 2)...)
	c.ok(c.sink.Ready(c.ctx, t, nil), "ready")
	c.holds(t, numbered(1, 2)...)
}

func checkPlan(c *sinkCheck) {
	t := c.plan("items", false)
	if t.Copy != 1 {
		c.Fatalf("a destination that does not exist has copy %d", t.Copy-1)
	}
	if len(t.Columns) != 4 || len(t.SinkNames) != 4 || len(t.SinkTypes) != 4 || len(t.Misfits) != 4 {
		c.Errorf("the plan has %d columns, %d names, %d types, %d misfits, want 4", len(t.Columns), len(t.SinkNames), len(t.SinkTypes), len(t.Misfits))
	}
	c.ok(c.sink.Create(c.ctx, t), "create")
	if again := c.plan("items", false); again.Copy != 1 {
		c.Errorf("a copy that is not ready is told as copy %d", again.Copy-1)
	}
	t.Copy = 7
	c.copy(t, nil, numbered(1, 1)...)
	c.restart()
	if again := c.plan("items", false); again.Copy != 8 {
		c.Errorf("copy 7 is ready and told as %d", again.Copy-1)
	}
}

func checkForeign(c *sinkCheck) {
	maker, ok := c.sys.(ForeignMaker)
	if !ok {
		c.Skip("nobody else makes tables")
	}
	c.ok(maker.CreateForeign(c.name("theirs"), "id", "name"), "make a table")
	t := c.source("theirs")
	_, err := c.sink.Plan(c.ctx, connector.Target{Table: t, Name: t.Name})
	c.kind(err, connector.TableFault, "plan to write a table of somebody else")
}

func checkSet(c *sinkCheck) {
	t := c.stored("items", numbered(1, 4)...)
	c.set(t,
		put("9", "nine", "n", "b"), put("1", "over", Null, "b"), alter("2", "two", "n", "b"),
		alter("8", "no row yet", Null, "b"), gone("3"), gone("77"))
	c.holds(t, Row{"9", "nine", "n", "b"}, Row{"1", "over", Null, "b"}, Row{"2", "two", "n", "b"},
		Row{"8", "no row yet", Null, "b"}, Row{"4", "name 4", Null, "big 4"})
	var many []opRow // above the size at which a sink may change its method
	for _, row := range numbered(1000, 3000) {
		many = append(many, opRow{connector.Insert, row})
	}
	c.set(t, many...)
	for i := range many {
		many[i] = gone(many[i].row[0])
	}
	c.set(t, many...)
	c.set(t, gone("9"), gone("1"), gone("2"), gone("8"))
	c.holds(t, numbered(4, 1)...)
}

func checkSwap(c *sinkCheck) {
	t := c.stored("items", numbered(1, 3)...)
	c.set(t, was("1"), alter("2", "was 1", Null, Unsent), was("2"), alter("1", "was 2", "n", Unsent))
	c.holds(t, Row{"2", "was 1", Null, "big 1"}, Row{"1", "was 2", "n", "big 2"}, Row{"3", "name 3", Null, "big 3"})
}

func checkDeleteFirst(c *sinkCheck) {
	t := c.stored("items", numbered(1, 3)...)
	c.set(t, put("1", "new", Null, "b"), was("1"), alter("10", "moved", Null, Unsent))
	c.set(t, was("3"), alter("3", "three", Null, Unsent))
	c.holds(t, Row{"1", "new", Null, "b"}, Row{"10", "moved", Null, "big 1"}, Row{"2", "name 2", Null, "big 2"}, Row{"3", "three", Null, "big 3"})
}

func checkSinkUnsent(c *sinkCheck) {
	for _, distinct := range []bool{true, false} {
		t := c.stored(fmt.Sprintf("items_%t", distinct), Row{"1", "one", "n", large("1")}, Row{"2", "two", "n", Null}, Row{"3", "three", "n", "b"})
		c.ok(c.write(c.sink, t, distinct, nil,
			alter("1", "a", Null, Unsent), alter("2", Unsent, "x", Unsent), was("3"), alter("4", Unsent, Null, Unsent)), "write")
		c.holds(t, Row{"1", "a", Null, large("1")}, Row{"2", "two", "x", Null}, Row{"4", "three", Null, "b"})
	}
}

func checkMissing(c *sinkCheck) {
	for _, distinct := range []bool{true, false} {
		t := c.stored(fmt.Sprintf("items_%t", distinct), numbered(1, 2)...)
		err := c.write(c.sink, t, distinct, map[string]string{"at": "5"}, put("5", "a", Null, "b"), alter("7", "x", Null, Unsent), gone("1"))
		c.kind(err, connector.BadRow, "update a row that is not stored")
		if e, ok := err.(*connector.Error); !ok || e.Row != 1 {
			c.Errorf("%v does not name row 1", err)
		}
		c.holds(t, numbered(1, 2)...)
		c.ok(c.write(c.sink, t, distinct, nil, gone("1")), "write after a refused row")
		c.holds(t, numbered(2, 1)...)
	}
}

func checkOrder(c *sinkCheck) {
	t := c.stored("items", numbered(1, 3)...)
	c.oneByOne(t,
		put("5", "a", Null, "b5"), gone("5"), put("5", "c", Null, "b5"), alter("5", "d", Null, Unsent),
		gone("1"), put("1", "again", Null, "b1"), alter("1", "last", Null, Unsent),
		was("2"), alter("20", "x", Null, Unsent), was("20"), alter("21", "y", Null, Unsent), put("2", "new", Null, "b2"),
		gone("3"), gone("3"), put("8", "a", Null, "b8"), gone("8"))
	c.holds(t, Row{"5", "d", Null, "b5"}, Row{"1", "last", Null, "b1"}, Row{"21", "y", Null, "big 2"}, Row{"2", "new", Null, "b2"})
	c.oneByOne(t, was("5"), alter("6", "d", Null, Unsent), was("6"), alter("5", "e", Null, Unsent))
	c.holds(t, Row{"5", "e", Null, "b5"}, Row{"1", "last", Null, "b1"}, Row{"21", "y", Null, "big 2"}, Row{"2", "new", Null, "b2"})
}

func checkSinkTruncate(c *sinkCheck) {
	t := c.stored("items", numbered(1, 3)...)
	c.oneByOne(t, put("4", "a", Null, "b"), opRow{op: connector.Truncate}, put("1", "new", Null, "b"))
	c.holds(t, Row{"1", "new", Null, "b"})
	c.oneByOne(t, opRow{op: connector.Truncate})
	c.holds(t)
}

func checkSinkNulls(c *sinkCheck) {
	rows := []Row{{"1", "", Null, large("é\t\n\\N\"'")}, {"-9223372036854775808", Null, "", `\.`}, {"9223372036854775807", "NULL", `\N`, ""}}
	t := c.stored("loaded", rows...)
	c.holds(t, rows...)
	for _, distinct := range []bool{true, false} {
		t := c.stored(fmt.Sprintf("written_%t", distinct))
		var ops []opRow
		for _, row := range rows {
			ops = append(ops, opRow{connector.Insert, row})
		}
		c.ok(c.write(c.sink, t, distinct, nil, ops...), "write")
		c.holds(t, rows...)
		for i := range ops {
			ops[i] = opRow{connector.Update, Row{rows[i][0], Null, Null, Null}}
		}
		c.ok(c.write(c.sink, t, distinct, nil, ops...), "write")
		c.holds(t, Row{rows[0][0], Null, Null, Null}, Row{rows[1][0], Null, Null, Null}, Row{rows[2][0], Null, Null, Null})
	}
}

// entries compares what the next process finds, and becomes it.
func (c *sinkCheck) entries(want map[string]string) {
	c.Helper()
	got := c.restart().Entries
	if fmt.Sprint(got) != fmt.Sprint(want) && len(got)+len(want) > 0 {
		c.Fatalf("the entries are %v, want %v", got, want)
	}
}

func checkEntries(c *sinkCheck) {
	if !c.sink.Traits().Keeps {
		c.Skip("the sink keeps no entries")
	}
	t := c.stored("items", numbered(1, 1)...)
	c.ok(c.write(c.sink, t, true, map[string]string{"a": "1", "b": "x"}, put("2", "a", Null, "b")), "write")
	c.ok(c.write(c.sink, t, true, map[string]string{"a": "2"}, gone("1")), "write")
	c.entries(map[string]string{"a": "2", "b": "x"})
	tx := c.begin(c.sink)
	c.ok(tx.Commit(c.ctx, map[string]string{"a": "3", "b": "", "c": "it's \"x\" \\ é"}), "commit entries alone")
	c.entries(map[string]string{"a": "3", "c": "it's \"x\" \\ é"})
	c.holds(t, Row{"2", "a", Null, "b"})
	tx = c.begin(c.sink)
	c.ok(tx.Commit(c.ctx, map[string]string{"a": ""}), "delete an entry")
	c.entries(map[string]string{"c": "it's \"x\" \\ é"})
}

func checkRollback(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	tx := c.begin(c.sink)
	r := c.build(t, []opRow{gone("1")})
	defer r.Release()
	r.Distinct = true
	c.ok(tx.Write(c.ctx, t, r), "write")
	c.holds(t, numbered(1, 2)...)
	c.ok(tx.Rollback(), "roll back")
	c.holds(t, numbered(1, 2)...)
	tx = c.begin(c.sink)
	c.ok(tx.Write(c.ctx, t, r), "write")
	c.ok(tx.Commit(c.ctx, nil), "commit")
	c.ok(tx.Rollback(), "roll back after the commit")
	c.holds(t, numbered(2, 1)...)
}

func checkReadyEntries(c *sinkCheck) {
	if !c.sink.Traits().Keeps {
		c.Skip("the sink keeps no entries")
	}
	t := c.plan("items", false)
	tx := c.begin(c.sink)
	c.ok(tx.Commit(c.ctx, map[string]string{"a": "1", "b": "1"}), "commit entries")
	c.copy(t, map[string]string{"b": "2", "c": "3"}, numbered(1, 3)...)
	c.entries(map[string]string{"a": "1", "b": "2", "c": "3"})
	c.holds(t, numbered(1, 3)...)
}

func checkRestart(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	c.ok(c.write(c.sink, t, true, map[string]string{"a": "1"}, put("3", "a", Null, "b")), "write")
	next := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, next), "create")
	c.load(next, numbered(7, 2)...)
	c.entries(map[string]string{"a": "1"})
	c.holds(t, append(numbered(1, 2), Row{"3", "a", Null, "b"})...)
	c.load(next, numbered(9, 1)...)
	c.ok(c.sink.Ready(c.ctx, next, nil), "ready")
	c.holds(t, numbered(7, 3)...)
}

// losing writes a row and an entry with a Commit whose answer is lost.
func (c *sinkCheck) losing() *connector.Target {
	c.Helper()
	loser, ok := c.sys.(AnswerLoser)
	if !ok {
		c.Skip("connections cannot be cut")
	}
	t := c.stored("items", numbered(1, 1)...)
	c.ok(c.write(c.sink, t, true, map[string]string{"at": "1"}, put("2", "a", Null, "b")), "write")
	loser.LoseAnswer()
	err := c.write(c.sink, t, true, map[string]string{"at": "2"}, put("3", "a", Null, "b"))
	c.kind(err, connector.Unavailable, "commit with the answer lost")
	return t
}

func checkLostAnswer(c *sinkCheck) {
	t := c.losing()
	if got := c.claim(c.sink, "").Entries["at"]; got != "2" {
		c.Fatalf("after the lost answer the entry is %q, want 2", got)
	}
	c.holds(t, Row{"1", "name 1", Null, "big 1"}, Row{"2", "a", Null, "b"}, Row{"3", "a", Null, "b"})
	c.ok(c.write(c.sink, t, true, map[string]string{"at": "3"}, gone("1")), "write after the claim")
	c.holds(t, Row{"2", "a", Null, "b"}, Row{"3", "a", Null, "b"})
}

func checkCompare(c *sinkCheck) {
	t := c.losing()
	if err := c.write(c.sink, t, true, map[string]string{"at": "2"}, gone("1")); err == nil {
		c.Error("a commit over an entry that was written unnoticed succeeds")
	}
	c.holds(t, Row{"1", "name 1", Null, "big 1"}, Row{"2", "a", Null, "b"}, Row{"3", "a", Null, "b"})
}

func checkFence(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	next := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, next), "create")
	c.load(next, numbered(5, 1)...)
	other := c.openSink()
	c.claim(other, "")
	c.kind(c.write(c.sink, t, true, map[string]string{"at": "old"}, gone("1")), connector.Fenced, "write after another claim")
	c.kind(c.sink.Ready(c.ctx, next, nil), connector.Fenced, "end a copy after another claim")
	c.holds(t, numbered(1, 2)...)
	c.ok(c.write(other, t, true, map[string]string{"at": "new"}, gone("2")), "write by the new claimant")
	c.holds(t, numbered(1, 1)...)
	c.entries(map[string]string{"at": "new"})
}

// checkClaimRace claims the mirror while a transaction is open: either the claim waits for it and sees what it wrote, or
// it fails.
func checkClaimRace(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	tx := c.begin(c.sink)
	r := c.build(t, []opRow{gone("1")})
	defer r.Release()
	r.Distinct = true
	c.ok(tx.Write(c.ctx, t, r), "write")
	other := c.openSink()
	var claim *connector.Claim
	b := runBeside(c.ctx, func(ctx context.Context) (err error) {
		claim, err = other.Claim(ctx, suiteMirror, "")
		return err
	})
	committed := tx.Commit(c.ctx, map[string]string{"at": "1"})
	<-b.done
	c.ok(b.err, "claim")
	if seen := claim.Entries["at"] == "1"; seen != (committed == nil) {
		c.Errorf("the claim sees the entry: %t; the commit before it: %v", seen, committed)
	}
	if committed == nil {
		c.holds(t, numbered(2, 1)...)
	} else {
		c.holds(t, numbered(1, 2)...)
	}
}

func checkClaimID(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	claim := c.restart()
	if claim.New || claim.ID == "" {
		c.Errorf("a mirror claimed before is new %t with id %q", claim.New, claim.ID)
	}
	other := c.openSink()
	_, err := other.Claim(c.ctx, suiteMirror, "another id")
	c.kind(err, connector.Setup, "claim with another id")
	c.ok(c.write(c.sink, t, true, nil, gone("1")), "write after a claim that was refused")
	if again := c.claim(other, claim.ID); again.ID != claim.ID || again.New {
		c.Errorf("the claim with the stored id returns %q, new %t", again.ID, again.New)
	}
	made, err := other.Claim(c.ctx, "second", "")
	c.ok(err, "claim another mirror")
	if !made.New || made.ID == "" || made.ID == claim.ID || len(made.Entries) > 0 {
		c.Errorf("a second mirror has id %q, new %t, and %d entries", made.ID, made.New, len(made.Entries))
	}
	c.holds(t, numbered(2, 1)...)
}

func checkWriters(c *sinkCheck) {
	n := c.sink.Traits().Writers
	if n < 2 {
		c.Skip("the sink has one writer")
	}
	t := c.plan("items", false)
	c.ok(c.sink.Create(c.ctx, t), "create")
	var txs []connector.Tx
	for i := range min(n, 4) {
		tx := c.begin(c.sink)
		c.ok(c.loadIn(tx, t, numbered(i*100, 50)...), "load beside other loads")
		txs = append(txs, tx)
	}
	var want []Row
	for i, tx := range txs {
		c.ok(tx.Commit(c.ctx, map[string]string{fmt.Sprintf("chunk %d", i): "done"}), "commit")
		want = append(want, numbered(i*100, 50)...)
	}
	c.ok(c.sink.Ready(c.ctx, t, nil), "ready")
	c.holds(t, want...)
}

func checkSinkCancel(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	ctx, cancel := context.WithCancel(c.ctx)
	tx := c.begin(c.sink)
	r := c.build(t, []opRow{gone("1")})
	defer r.Release()
	r.Distinct = true
	c.ok(tx.Write(ctx, t, r), "write")
	cancel()
	begun := time.Now()
	if err := tx.Commit(ctx, nil); err == nil {
		c.Error("Commit succeeds after the end of its context")
	}
	c.ok(tx.Rollback(), "roll back")
	if _, err := c.sink.Begin(ctx); err == nil {
		c.Error("Begin succeeds after the end of its context")
	}
	if took := time.Since(begun); took > c.patience() {
		c.Errorf("the calls ended %s after the end of their context", took)
	}
	c.ok(c.write(c.sink, t, true, nil, gone("2")), "write after a cancelled call")
	c.holds(t, numbered(1, 1)...)
}

// version returns a later version of a target's table, as edit makes it of a copy.
func version(t *connector.Target, edit func(to *schema.Table)) *schema.Table {
	to := *t.Table
	to.Version++
	to.Columns = slices.Clone(to.Columns)
	edit(&to)
	return &to
}

// change takes a target to a version, with missing values as the decoder of a source would have them.
func (c *sinkCheck) change(t *connector.Target, to *schema.Table, drop bool, entries map[string]string) *connector.Target {
	c.Helper()
	b := NewRowsBuilder(c.alloc, to)
	c.ok(b.Append(connector.Insert, missingOf(to)), "build the row of defaults")
	missing := b.Rows()
	defer missing.Release()
	next, err := c.sink.Change(c.ctx, t, connector.Alteration{
		Want:    connector.Target{Table: to, Name: t.Name, Key: t.Key, History: t.History},
		Missing: missing, DropColumns: drop, Entries: entries,
	})
	c.ok(err, "change the table")
	return next
}

// changed is change for versions to which a destination can be altered.
func (c *sinkCheck) changed(t *connector.Target, to *schema.Table, drop bool, entries map[string]string) *connector.Target {
	c.Helper()
	next := c.change(t, to, drop, entries)
	if next == nil {
		c.Fatal("the sink wants a new copy")
	}
	if next.Table != to || next.Copy != t.Copy {
		c.Errorf("the new target is of version %d and copy %d", next.Table.Version, next.Copy)
	}
	return next
}

// addedColumn is a column that items did not have, with a default unless value is [Null].
func addedColumn(number int32, name, value string) schema.Column {
	column := schema.Column{Number: number, Name: name, Type: schema.Type{Kind: schema.Text, Native: "text"}}
	if value != Null {
		column.Missing = &value
	}
	return column
}

func checkChange(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	to := version(t, func(to *schema.Table) {
		to.Columns = append(to.Columns, addedColumn(5, "added", Null), addedColumn(6, "filled", "it's"), addedColumn(7, "empty", ""))
	})
	next := c.changed(t, to, false, nil)
	c.holds(next, Row{"1", "name 1", Null, "big 1", Null, "it's", ""}, Row{"2", "name 2", Null, "big 2", Null, "it's", ""})
	c.set(next, alter("1", "a", Null, Unsent, "new", Null, "x"))
	c.holds(next, Row{"1", "a", Null, "big 1", "new", Null, "x"}, Row{"2", "name 2", Null, "big 2", Null, "it's", ""})
}

func checkChangeEntries(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	to := version(t, func(to *schema.Table) { to.Columns = append(to.Columns, addedColumn(5, "added", "x")) })
	entries := map[string]string{"table": "version 2"}
	next := c.changed(t, to, false, entries)
	c.set(next, alter("1", "a", Null, Unsent, "new"))
	c.changed(t, to, false, entries) // as one whose answer was lost is repeated
	c.holds(next, Row{"1", "a", Null, "big 1", "new"}, Row{"2", "name 2", Null, "big 2", "x"})
	c.entries(entries)
	c.ok(c.write(c.sink, next, true, map[string]string{"table": "later"}, opRow{connector.Insert, Row{"3", "c", Null, "b", Null}}), "write behind the change")
}

func checkChangeDropped(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	next := c.changed(t, version(t, func(to *schema.Table) { to.Columns = slices.Delete(to.Columns, 1, 2) }), true, nil)
	c.holds(next, Row{"1", Null, "big 1"}, Row{"2", Null, "big 2"})
	if _, err := c.sys.Rows(t.Name, []string{"name"}); err == nil {
		c.Error("the dropped column is still there")
	}
	c.set(next, opRow{connector.Insert, Row{"3", "n", "b"}})
	c.holds(next, Row{"1", Null, "big 1"}, Row{"2", Null, "big 2"}, Row{"3", "n", "b"})
}

func checkChangeKept(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	gone := version(t, func(to *schema.Table) { to.Columns = slices.Delete(to.Columns, 1, 2) })
	next := c.changed(t, gone, false, nil)
	c.set(next, opRow{connector.Insert, Row{"3", "n", "b"}}, opRow{connector.Update, Row{"1", "n", Unsent}})
	kept := *next
	kept.SinkNames = []string{"id", "name", "note", "big"}
	c.holds(&kept, Row{"1", "name 1", "n", "big 1"}, Row{"2", "name 2", Null, "big 2"}, Row{"3", Null, "n", "b"})

	again := c.changed(next, version(next, func(to *schema.Table) { to.Columns = append(to.Columns, addedColumn(5, "name", "new")) }), false, nil)
	kept.SinkNames = []string{"id", "name", "name__dropped_1"}
	c.holds(&kept, Row{"1", "new", "name 1"}, Row{"2", "new", "name 2"}, Row{"3", "new", Null})
	c.set(again, opRow{connector.Update, Row{"2", "n", Unsent, "x"}})
	c.holds(&kept, Row{"1", "new", "name 1"}, Row{"2", "x", "name 2"}, Row{"3", "new", Null})
}

func checkChangeRenamed(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	next := c.changed(t, version(t, func(to *schema.Table) {
		to.Columns[1].Name, to.Columns[3].Name = to.Columns[3].Name, to.Columns[1].Name // each other's
		to.Columns[2].Name = "remark"
	}), true, nil)
	named := *next
	named.SinkNames = []string{"id", "big", "remark", "name"}
	c.holds(&named, Row{"1", "name 1", Null, "big 1"}, Row{"2", "name 2", Null, "big 2"})
	c.set(next, alter("1", "a", "b", Unsent))
	c.holds(&named, Row{"1", "a", "b", "big 1"}, Row{"2", "name 2", Null, "big 2"})
}

func checkChangeImpossible(c *sinkCheck) {
	t := c.stored("items", numbered(1, 2)...)
	for what, edit := range map[string]func(to *schema.Table){
		"another type": func(to *schema.Table) { to.Columns[1].Type = schema.Type{Kind: schema.Int64, Native: "bigint"} },
		"another key":  func(to *schema.Table) { to.Key = []int{1} },
	} {
		if next := c.change(t, version(t, edit), true, map[string]string{"changed": what}); next != nil {
			c.Errorf("%s: the sink says that it altered the destination", what)
		}
	}
	c.holds(t, numbered(1, 2)...)
	c.entries(map[string]string{})
}

func checkChangeHistory(c *sinkCheck) {
	t, reader := c.history()
	c.copy(t, nil, numbered(1, 1)...)
	next := c.changed(t, version(t, func(to *schema.Table) {
		to.Columns = append(slices.Delete(to.Columns, 1, 2), addedColumn(5, "added", "x"))
	}), true, nil)
	c.appendHistory(next, []connector.Commit{{Rows: 1, Position: "0010"}}, opRow{connector.Insert, Row{"9", Null, "b", "new"}})
	both := *next
	both.SinkNames = []string{"id", "name", "note", "big", "added"}
	c.holdsHistory(reader, &both, "copy 1|name 1|"+Null+"|big 1|x", "insert 9|"+Null+"|"+Null+"|b|new at 0010#0")
}

// historyLines renders what must be equal of history rows.
func historyLines(rows []HistoryRow) []string {
	var lines []string
	for _, h := range rows {
		switch h.Op {
		case "copy":
			lines = append(lines, "copy "+rowLine(h.Row))
		case "delete":
			lines = append(lines, fmt.Sprintf("delete %s at %s#%d", h.Row[0], h.Position, h.Seq))
		case "truncate":
			lines = append(lines, fmt.Sprintf("truncate at %s#%d", h.Position, h.Seq))
		case "gap":
			lines = append(lines, fmt.Sprintf("gap at %s#%d", h.Position, h.Seq))
		default:
			lines = append(lines, fmt.Sprintf("%s %s at %s#%d", h.Op, rowLine(h.Row), h.Position, h.Seq))
		}
	}
	return lines
}

// history returns the target of a history table and a reader of it.
func (c *sinkCheck) history() (*connector.Target, HistoryReader) {
	c.Helper()
	reader, ok := c.sys.(HistoryReader)
	if !ok {
		c.Skip("the sink keeps no history")
	}
	return c.plan("items", true), reader
}

func (c *sinkCheck) holdsHistory(reader HistoryReader, t *connector.Target, want ...string) {
	c.Helper()
	rows, err := reader.History(t.Name, t.SinkNames)
	c.ok(err, "read the history")
	if got := historyLines(rows); !slices.Equal(got, want) {
		c.Fatalf("the history is\n  %q\nwant\n  %q", got, want)
	}
}

// appendHistory writes changes of several transactions, five values a row message.
func (c *sinkCheck) appendHistory(t *connector.Target, commits []connector.Commit, ops ...opRow) {
	c.Helper()
	tx := c.begin(c.sink)
	r := c.build(t, ops)
	defer r.Release()
	r.Commits = commits
	c.ok(tx.Write(c.ctx, t, r), "append to the history")
	c.ok(tx.Commit(c.ctx, nil), "commit")
}

func checkHistory(c *sinkCheck) {
	t, reader := c.history()
	c.copy(t, nil, numbered(1, 1)...)
	at := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	c.appendHistory(t,
		[]connector.Commit{{Rows: 3, First: 4, Position: "10", Tag: 1, Time: at}, {Rows: 3, Position: "20", Tag: 2, Time: at}, {Rows: 1, Position: "30", Tag: 3, Time: at}},
		put("5", "a", Null, "b"), alter("5", "c", Null, "b"), gone("5"),
		put("5", "d", Null, "b"), was("5"), alter("6", "e", Null, "b"),
		opRow{op: connector.Truncate})
	c.appendHistory(t, []connector.Commit{{Rows: 1, First: 1, Position: "30", Tag: 3, Time: at}}, put("1", "f", Null, "b"))
	c.holdsHistory(reader, t,
		"copy 1|name 1|∅|big 1",
		"insert 5|a|∅|b at 10#4", "update 5|c|∅|b at 10#5", "delete 5 at 10#6",
		"insert 5|d|∅|b at 20#0", "update 6|e|∅|b at 20#1",
		"truncate at 30#0", "insert 1|f|∅|b at 30#1")
}

func checkHistoryUnsent(c *sinkCheck) {
	t, reader := c.history()
	c.copy(t, nil, numbered(1, 2)...)
	at := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	c.appendHistory(t, []connector.Commit{{Rows: 2, Position: "10", Tag: 1, Time: at}},
		alter("1", "a", Null, Unsent), put("5", "b", Null, "b5"))
	c.appendHistory(t, []connector.Commit{{Rows: 4, Position: "20", Tag: 2, Time: at}},
		alter("5", "c", Null, Unsent), was("1"), alter("9", "d", Null, Unsent), alter("9", "e", Null, Unsent))
	c.holdsHistory(reader, t,
		"copy 1|name 1|∅|big 1", "copy 2|name 2|∅|big 2",
		"update 1|a|∅|big 1 at 10#0", "insert 5|b|∅|b5 at 10#1",
		"update 5|c|∅|b5 at 20#0", "update 9|d|∅|big 1 at 20#1", "update 9|e|∅|big 1 at 20#2")
}

func checkHistoryCopy(c *sinkCheck) {
	t, reader := c.history()
	c.copy(t, nil, numbered(1, 1)...)
	c.appendHistory(t, []connector.Commit{{Rows: 1, Position: "10", Tag: 1}}, put("5", "a", Null, "b"))
	next := c.plan("items", true)
	c.copy(next, nil, numbered(2, 1)...)
	rows, err := reader.History(t.Name, t.SinkNames)
	c.ok(err, "read the history")
	got := historyLines(slices.DeleteFunc(rows, func(h HistoryRow) bool { return h.Op == "gap" }))
	slices.Sort(got)
	if want := []string{"copy 1|name 1|∅|big 1", "copy 2|name 2|∅|big 2", "insert 5|a|∅|b at 10#0"}; !slices.Equal(got, want) {
		c.Fatalf("after a second copy the history is\n  %q\nwant\n  %q", got, want)
	}
}

// checkHistoryGap copies a table again and again. What happened before a copy that is not the first is not known, and the
// history says so from the moment on at which the copy is seen.
func checkHistoryGap(c *sinkCheck) {
	unfinished, reader := c.history()
	c.ok(c.sink.Create(c.ctx, unfinished), "create")
	c.load(unfinished, numbered(7, 1)...)
	t := c.plan("items", true)
	t.Copy = unfinished.Copy + 1
	c.copy(t, nil) // of no rows
	c.holdsHistory(reader, t)
	again := func(key int) {
		c.Helper()
		t = c.plan("items", true)
		c.copy(t, nil, numbered(key, 1)...)
	}
	again(1)
	c.appendHistory(t, []connector.Commit{{Rows: 2, Position: "10", Tag: 1}}, put("5", "a", Null, "b"), gone("5"))
	again(2)
	again(3)
	c.appendHistory(t, []connector.Commit{{Rows: 1, Position: "20", Tag: 2}}, put("6", "a", Null, "b"))
	want := []string{
		"gap at #1", "copy 1|name 1|∅|big 1", "insert 5|a|∅|b at 10#0", "delete 5 at 10#1",
		"gap at 10#2", "copy 2|name 2|∅|big 2", "gap at 10#4", "copy 3|name 3|∅|big 3", "insert 6|a|∅|b at 20#0",
	}
	c.holdsHistory(reader, t, want...)

	last := c.plan("items", true)
	c.ok(c.sink.Create(c.ctx, last), "create")
	c.load(last, numbered(4, 1)...)
	c.holdsHistory(reader, t, want...)
	c.claim(c.openSink(), "")
	c.kind(c.sink.Ready(c.ctx, last, nil), connector.Fenced, "end a copy after another claim")
	c.holdsHistory(reader, t, want...)
}
