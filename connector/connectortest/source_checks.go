package connectortest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var sourceChecks = []check[*sourceCheck]{
	{"tables_keep_their_version", checkTables},
	{"positions_of_another_system_have_no_order", checkForeignPositions},
	{"snapshot_covers_all_rows_once", checkSnapshot},
	{"chunk_goes_on_after_its_cursor", checkCursor},
	{"chunks_keep_their_meaning_under_a_later_snapshot", checkLaterSnapshot},
	{"view_of_a_truncated_table_is_lost", checkViewLost},
	{"stream_delivers_what_is_written_after_add", checkStream},
	{"nulls_are_told_from_empty_text", checkNulls},
	{"key_change_sends_the_old_key_first", checkKeyChange},
	{"unchanged_toasted_values_are_unsent", checkUnsent},
	{"truncate_comes_in_order", checkTruncate},
	{"large_transaction_is_numbered_through", checkLargeTransaction},
	{"stream_resumes_after_a_position", checkResume},
	{"repeats_are_equal", checkRepeats},
	{"ack_lets_the_log_go", checkAck},
	{"stream_of_a_killed_process_is_taken_over", checkTakeOver},
	{"progress_reaches_the_head_of_an_idle_log", checkIdleProgress},
	{"dropped_table_is_silent", checkDrop},
	{"next_ends_with_its_context", checkCancel},
	{"damaged_frames_are_a_table_fault", checkDamaged},
	{"rows_are_found_by_their_key_as_they_are_now", checkFind},
	{"snapshot_waits_for_writers", checkWait},
	{"join_loses_and_doubles_nothing", checkJoin},
	{"schema_change_stands_between_the_versions", checkSchemaChange},
	{"changes_of_a_table_not_added_are_told", checkUnselected},
}

// sourceCheck is what the check of a source stands on.
type sourceCheck struct {
	*bench
	sys    SourceSystem
	src    connector.Source
	closes []io.Closer // in the order they were opened
}

func runSourceCheck(t testing.TB, h SourceHarness, ch check[*sourceCheck]) {
	sys := h.New(t)
	b, end := newBench(t, h.Schema, h.Timeout)
	c := &sourceCheck{bench: b, sys: sys}
	defer func() {
		for _, cl := range slices.Backward(c.closes) {
			if err := cl.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		end()
	}()
	c.open()
	ch.run(c)
}

// open opens the source as a new process does.
func (c *sourceCheck) open() {
	c.Helper()
	src, err := c.sys.Open(c.ctx, c.alloc)
	c.ok(err, "open the source")
	c.src = src
	c.closes = append(c.closes, src)
}

// restart closes everything and opens the source again, as the next process does.
func (c *sourceCheck) restart() {
	c.Helper()
	for _, cl := range slices.Backward(c.closes) {
		c.ok(cl.Close(), "close")
	}
	c.closes = nil
	c.open()
}

// create makes a table with the columns of all checks and returns it as the source sees it.
func (c *sourceCheck) create(table string) *schema.Table {
	c.Helper()
	c.ok(c.sys.Create(TableSpec{Name: c.name(table), Columns: itemColumns, Key: []string{"id"}, Toasted: []string{"big"}}), "create a table")
	return c.table(c.name(table))
}

// table returns a table as it is now.
func (c *sourceCheck) table(name schema.Name) *schema.Table {
	c.Helper()
	ts, err := c.src.Tables(c.ctx)
	c.ok(err, "list the tables")
	for _, t := range ts {
		if t.Name == name {
			if t.Refused != "" {
				c.Fatalf("table %s is refused: %s", name, t.Refused)
			}
			return t
		}
	}
	c.Fatalf("table %s is not listed", name)
	return nil
}

func (c *sourceCheck) exec(changes ...Change) {
	c.Helper()
	c.ok(c.sys.Exec(changes...), "write to the source")
}

func (c *sourceCheck) rows(t *schema.Table) []Row {
	c.Helper()
	rows, err := c.sys.Rows(t.Name)
	c.ok(err, "read the table")
	return rows
}

// stream opens the log of tables after from and adds them.
func (c *sourceCheck) stream(from connector.Positions, ts ...*schema.Table) *following {
	c.Helper()
	f := c.openLog(ts[0].Log, from)
	for _, t := range ts {
		f.add(t)
	}
	return f
}

// openLog opens a log after from.
func (c *sourceCheck) openLog(log string, from connector.Positions) *following {
	c.Helper()
	st, err := c.src.Stream(c.ctx, log, from)
	c.ok(err, "open the stream")
	c.closes = append(c.closes, st)
	return &following{c: c, st: st, log: log, last: make(map[string]connector.Position), progress: connector.Positions{}}
}

// snapshot takes a snapshot of t; the check's end closes it.
func (c *sourceCheck) snapshot(t *schema.Table) connector.Snapshot {
	c.Helper()
	snap, err := c.src.Snapshot(c.ctx, t)
	c.ok(err, "take a snapshot")
	c.closes = append(c.closes, snap)
	return snap
}

// read returns the rows of chunks.
func (c *sourceCheck) read(snap connector.Snapshot, chunks []connector.Chunk) []Row {
	c.Helper()
	var rows []Row
	for _, ch := range chunks {
		got, err := c.readChunk(snap, ch, -1)
		c.ok(err, "read a chunk")
		rows = append(rows, got.rows...)
	}
	return rows
}

// chunkRows is what was read of a chunk, and where to go on.
type chunkRows struct {
	rows   []Row
	cursor string
}

// readChunk reads batches of a chunk, all if batches is negative.
func (c *sourceCheck) readChunk(snap connector.Snapshot, ch connector.Chunk, batches int) (chunkRows, error) {
	r, err := snap.Read(c.ctx, ch)
	if err != nil {
		return chunkRows{}, err
	}
	defer r.Close()
	var got chunkRows
	for ; batches != 0; batches-- {
		rows, err := r.Next(c.ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return got, err
		}
		for i := range rows.Len() {
			if rows.Op(i) != connector.Insert {
				c.Errorf("a row of a copy has op %d, want insert", rows.Op(i))
			}
			got.rows = append(got.rows, RowAt(rows, i))
		}
		rows.Release()
		got.cursor = r.Cursor()
	}
	return got, nil
}

func (c *sourceCheck) chunks(snap connector.Snapshot, rows int64) []connector.Chunk {
	c.Helper()
	chunks, err := snap.Chunks(c.ctx, rows)
	c.ok(err, "cut the table into chunks")
	return chunks
}

// fill inserts n rows, ids from first on, in one transaction.
func (c *sourceCheck) fill(t *schema.Table, first, n int) {
	c.Helper()
	changes := make([]Change, n)
	for i := range changes {
		id := strconv.Itoa(first + i)
		changes[i] = InsertRow(t.Name, id, "name "+id, Null, "big "+id)
	}
	c.exec(changes...)
}

// following reads a stream and checks what holds for every stream.
type following struct {
	c        *sourceCheck
	st       connector.Stream
	log      string
	last     map[string]connector.Position // of the changes, by table and part
	progress connector.Positions           // the last one
	seen     []delivered
	frames   []*connector.Frames
	changes  []*connector.SchemaChange

	unselected []connector.Unselected
}

// delivered is one row that the stream delivered.
type delivered struct {
	table    *schema.Table
	op       connector.Op
	row      Row // nil for Truncate
	before   Row // the Before row in front of it, if any
	commit   connector.Commit
	sequence int64 // number of the row message in its transaction
}

// String renders what must be equal when the row is delivered again.
func (d delivered) String() string {
	return fmt.Sprintf("%s v%d op %d row %s before %s at %s#%d tag %d time %s", d.table.Name, d.table.Version, d.op, rowLine(d.row),
		rowLine(d.before), d.commit.Position, d.sequence, d.commit.Tag, d.commit.Time.UTC().Format(time.RFC3339Nano))
}

// brief renders op and key.
func (d delivered) brief() string {
	switch d.op {
	case connector.Truncate:
		return "truncate"
	default:
		text := fmt.Sprintf("%s %s", historyOps[d.op], keyText(keyOf(d.table, d.row)))
		if d.before != nil {
			text += " from " + keyText(keyOf(d.table, d.before))
		}
		return text
	}
}

func (f *following) add(t *schema.Table) connector.Positions {
	f.c.Helper()
	p, err := f.st.Add(f.c.ctx, t)
	f.c.ok(err, "add a table to the stream")
	return p
}

// toHead reads until a Progress has reached the log's end of this moment.
func (f *following) toHead() {
	f.c.Helper()
	head, err := f.c.src.Head(f.c.ctx, f.log)
	f.c.ok(err, "read the log's end")
	f.to(head)
}

// to reads until a Progress has reached a position.
func (f *following) to(target connector.Positions) {
	f.c.Helper()
	for !f.reached(target) {
		e, err := f.st.Next(f.c.ctx)
		f.c.ok(err, fmt.Sprintf("read the stream (progress %v, to reach %v)", f.progress, target))
		f.take(e)
	}
}

func (f *following) reached(target connector.Positions) bool { return f.covers(f.progress, target) }

// covers reports whether positions have reached target in each part. Positions without an order have not.
func (f *following) covers(at, target connector.Positions) bool {
	for part, want := range target {
		p, ok := at[part]
		if !ok {
			return false
		}
		if order, err := f.c.src.Compare(p, want); err != nil || order < 0 {
			return false
		}
	}
	return true
}

func (c *sourceCheck) compare(a, b connector.Position) int {
	c.Helper()
	order, err := c.src.Compare(a, b)
	c.ok(err, "compare positions")
	return order
}

// take notes one event.
func (f *following) take(e connector.Event) {
	f.c.Helper()
	switch e := e.(type) {
	case *connector.Progress:
		for part, p := range e.UpTo {
			if old, ok := f.progress[part]; ok && f.c.compare(p, old) < 0 {
				f.c.Fatalf("progress goes back from %s to %s", old, p)
			}
			f.progress[part] = p
		}
	case *connector.SchemaChange:
		f.changes = append(f.changes, e)
	case *connector.Unselected:
		f.unselected = append(f.unselected, *e)
	case *connector.Frames:
		f.frames = append(f.frames, &connector.Frames{Table: e.Table, Data: bytes.Clone(e.Data), Commits: slices.Clone(e.Commits)})
		f.decode(e)
	}
}

// decode notes the rows of frames.
func (f *following) decode(fr *connector.Frames) {
	f.c.Helper()
	d, err := f.c.src.Decoder(fr.Table)
	f.c.ok(err, "make a decoder")
	rows, err := d.Decode(fr)
	f.c.ok(err, "decode frames")
	defer rows.Release()
	i := 0
	for n, run := range rows.Commits {
		f.place(fr.Table, run)
		sequence, end := run.First, i+run.Rows
		var before Row
		for ; i < end && i < rows.Len(); i++ {
			row := delivered{table: fr.Table, op: rows.Op(i), before: before, commit: run, sequence: sequence}
			if row.op != connector.Truncate {
				row.row = RowAt(rows, i)
			}
			if row.op == connector.Before {
				before = row.row
				continue
			}
			f.seen, before = append(f.seen, row), nil
			sequence++
		}
		if got, want := sequence-run.First, int64(fr.Commits[n].Rows); got != want {
			f.c.Fatalf("a run of %d row messages was decoded to %d changes", want, got)
		}
	}
	if i != rows.Len() {
		f.c.Fatalf("the commits cover %d of %d decoded rows", i, rows.Len())
	}
}

// place checks that a run comes in commit order and not behind a Progress that covers it.
func (f *following) place(t *schema.Table, run connector.Commit) {
	f.c.Helper()
	k := string(t.ID) + " " + run.Part
	if last, ok := f.last[k]; ok && f.c.compare(run.Position, last) < 0 {
		f.c.Fatalf("a change at %s follows one at %s", run.Position, last)
	}
	f.last[k] = run.Position
	if done, ok := f.progress[run.Part]; ok && f.c.compare(run.Position, done) <= 0 {
		f.c.Fatalf("a change at %s comes after a progress up to %s", run.Position, done)
	}
}

// briefs renders what was delivered of a table.
func (f *following) briefs(t *schema.Table) []string {
	var lines []string
	for _, d := range f.seen {
		if d.table.ID == t.ID {
			lines = append(lines, d.brief())
		}
	}
	return lines
}

// wants compares what was delivered of a table.
func (f *following) wants(t *schema.Table, want ...string) {
	f.c.Helper()
	if got := f.briefs(t); !slices.Equal(got, want) {
		f.c.Fatalf("the stream delivers\n  %q\nwant\n  %q", got, want)
	}
}

// forget leaves out what was delivered of before a position: a stream may begin earlier than asked, where its server keeps
// the log from an older position on.
func (f *following) forget(upTo connector.Positions) {
	f.c.Helper()
	f.seen = slices.DeleteFunc(f.seen, func(d delivered) bool {
		return f.c.compare(d.commit.Position, upTo[d.commit.Part]) <= 0
	})
}

// replay applies what was delivered of a table to rows, those that a view with this token holds, and leaves out what the
// view contains. Each change must fit: a row inserted is not there yet, a row changed is.
func (f *following) replay(t *schema.Table, rows []Row, token string) []Row {
	f.c.Helper()
	r := f.replica(t, rows)
	for _, d := range f.beyond(t, token) {
		f.c.ok(r.fits(t, d.op, d.row, d.before), "apply a change")
		f.c.ok(r.apply(t, d.op, d.row, d.before), "apply a change")
	}
	return r.rows()
}

// converge does what replay does with rows of two views; token is that of the first.
func (f *following) converge(t *schema.Table, rows []Row, token string) []Row {
	f.c.Helper()
	r := f.replica(t, rows)
	for _, d := range f.beyond(t, token) {
		f.c.ok(r.apply(t, d.op, d.row, d.before), "apply a change")
	}
	return r.rows()
}

func (f *following) replica(t *schema.Table, rows []Row) replica {
	f.c.Helper()
	r := replica{}
	for _, row := range rows {
		k := keyText(keyOf(t, row))
		if r[k] != nil {
			f.c.Fatalf("the snapshot of %s holds key %s twice", t.Name, k)
		}
		r[k] = row
	}
	return r
}

// beyond returns what was delivered of a table and is not in a view.
func (f *following) beyond(t *schema.Table, token string) []delivered {
	f.c.Helper()
	var rest []delivered
	for _, d := range f.seen {
		if d.table.ID != t.ID {
			continue
		}
		if token != "" {
			in, err := f.c.src.Contains(token, d.commit)
			f.c.ok(err, "ask whether the snapshot contains a commit")
			if in {
				continue
			}
		}
		rest = append(rest, d)
	}
	return rest
}

func checkTables(c *sourceCheck) {
	t := c.create("items")
	if len(t.Key) != 1 || t.Columns[t.Key[0]].Name != "id" {
		c.Fatalf("the key is %v of %v, want id", t.Key, t.Columns)
	}
	for i, want := range []schema.Kind{schema.Int64, schema.Text, schema.Text, schema.Text} {
		if got := t.Columns[i].Type.Kind; got != want {
			c.Errorf("column %s has kind %d, want %d", t.Columns[i].Name, got, want)
		}
	}
	if again := c.table(t.Name); again.Version != t.Version || again.ID != t.ID {
		c.Errorf("an unchanged table went from %s version %d to %s version %d", t.ID, t.Version, again.ID, again.Version)
	}
}

func checkForeignPositions(c *sourceCheck) {
	stranger, ok := c.sys.(Stranger)
	if !ok {
		c.Skip("positions have no identity")
	}
	t := c.create("items")
	f := c.stream(nil, t)
	f.toHead()
	for _, p := range f.progress {
		if order, err := c.src.Compare(p, p); order != 0 || err != nil {
			c.Errorf("a position compared with itself: %d, %v", order, err)
		}
		_, err := c.src.Compare(p, stranger.StrangePosition())
		c.kind(err, connector.Gap, "compare with a position of another system")
	}
}

func checkSnapshot(c *sourceCheck) {
	t := c.create("items")
	c.fill(t, -3, 40)
	c.stream(nil, t)
	snap := c.snapshot(t)
	c.fill(t, 100, 3)
	chunks := c.chunks(snap, 10)
	if len(chunks) < 2 {
		c.Errorf("40 rows make %d chunk of about 10 rows", len(chunks))
	}
	got := c.read(snap, chunks)
	var want []Row
	for _, row := range c.rows(t) {
		if len(row[0]) < 3 {
			want = append(want, row)
		}
	}
	c.sameRows(got, want, "rows of the snapshot")
}

func checkCursor(c *sourceCheck) {
	t := c.create("items")
	c.fill(t, 1, 30)
	c.stream(nil, t)
	snap := c.snapshot(t)
	var got []Row
	for _, ch := range c.chunks(snap, 10) {
		first, err := c.readChunk(snap, ch, 1)
		c.ok(err, "read the first rows of a chunk")
		if first.cursor == "" {
			first.rows = nil
		}
		ch.After = first.cursor
		rest, err := c.readChunk(snap, ch, -1)
		c.ok(err, "go on after a cursor")
		got = append(append(got, first.rows...), rest.rows...)
	}
	c.sameRows(got, c.rows(t), "rows before and after the cursors")
}

func checkLaterSnapshot(c *sourceCheck) {
	t := c.create("items")
	c.fill(t, 1, 30)
	f := c.stream(nil, t)
	early := c.snapshot(t)
	chunks := c.chunks(early, 10)
	half := len(chunks) / 2
	got := c.read(early, chunks[:half])
	for id := 1; id <= 6; id++ {
		c.exec(DeleteRow(t.Name, strconv.Itoa(id)), InsertRow(t.Name, strconv.Itoa(30+id), "late", Null, "x"))
	}
	later := c.snapshot(t)
	if early.Layout() == "" || later.Layout() != early.Layout() {
		c.Errorf("the layout went from %q to %q without a change of the table", early.Layout(), later.Layout())
	}
	got = append(got, c.read(later, chunks[half:])...)
	f.toHead()
	c.sameRows(f.converge(t, got, early.Token()), c.rows(t), "chunks of two snapshots and the stream")
}

func checkViewLost(c *sourceCheck) {
	t := c.create("items")
	c.fill(t, 1, 30)
	c.stream(nil, t)
	snap := c.snapshot(t)
	chunks := c.chunks(snap, 10)
	c.exec(TruncateTable(t.Name))
	for _, ch := range chunks {
		_, err := c.readChunk(snap, ch, -1)
		c.kind(err, connector.ViewLost, "read a chunk of a table that was truncated since")
	}
	if now := c.snapshot(c.table(t.Name)); now.Layout() == snap.Layout() {
		c.Errorf("the layout is %q before and after the table was truncated", now.Layout())
	}
}

func checkStream(c *sourceCheck) {
	t, other := c.create("items"), c.create("other")
	c.fill(t, 1, 3)
	f := c.stream(nil, t)
	base := c.rows(t)
	c.exec(InsertRow(t.Name, "4", "four", Null, "b"), UpdateRow(t.Name, "1", "1", "one", "note", "b1"))
	c.exec(InsertRow(other.Name, "9", "not selected", Null, "b"))
	c.exec(DeleteRow(t.Name, "2"))
	c.exec(InsertRow(t.Name, "2", "again", Null, "b"))
	f.toHead()
	f.wants(t, "insert 4", "update 1", "delete 2", "insert 2")
	f.wants(other)
	c.sameRows(f.replay(t, base, ""), c.rows(t), "rows by the stream")
}

func checkNulls(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	c.exec(InsertRow(t.Name, "1", "", Null, ""), InsertRow(t.Name, "2", Null, "", Null))
	c.exec(UpdateRow(t.Name, "1", "1", Null, "", "x"))
	f.toHead()
	c.sameRows(f.replay(t, nil, ""), c.rows(t), "rows by the stream")
	snap := c.snapshot(t)
	c.sameRows(c.read(snap, c.chunks(snap, 10)), c.rows(t), "rows of the snapshot")
}

func checkKeyChange(c *sourceCheck) {
	t := c.create("items")
	c.exec(InsertRow(t.Name, "1", "one", Null, large("one")), InsertRow(t.Name, "2", "two", Null, large("two")))
	base := c.rows(t)
	f := c.stream(nil, t)
	c.exec(UpdateRow(t.Name, "1", "10", "one", "x", Unsent))
	c.exec(UpdateRow(t.Name, "2", "1", "two", "x", Unsent))
	f.toHead()
	f.wants(t, "update 10 from 1", "update 1 from 2")
	c.sameRows(f.replay(t, base, ""), c.rows(t), "rows by the stream")
}

func checkUnsent(c *sourceCheck) {
	t := c.create("items")
	c.exec(InsertRow(t.Name, "1", "one", Null, large("one")), InsertRow(t.Name, "2", "two", Null, Null))
	base := c.rows(t)
	f := c.stream(nil, t)
	c.exec(UpdateRow(t.Name, "1", "1", "a", Null, Unsent), UpdateRow(t.Name, "2", "2", "b", Null, Unsent))
	c.exec(UpdateRow(t.Name, "1", "1", "a", "y", large("new")))
	c.exec(UpdateRow(t.Name, "1", "1", "c", Null, Unsent))
	f.toHead()
	big := t.Column("big")
	for i, want := range []string{Unsent, Null, large("new"), Unsent} {
		if got := f.seen[i].row[big]; got != want {
			c.Errorf("update %d sends %s, want %s", i, rowLine(Row{got}), rowLine(Row{want}))
		}
	}
	c.sameRows(f.replay(t, base, ""), c.rows(t), "rows by the stream")
}

func checkTruncate(c *sourceCheck) {
	t := c.create("items")
	c.fill(t, 1, 2)
	base := c.rows(t)
	f := c.stream(nil, t)
	c.exec(InsertRow(t.Name, "3", "a", Null, "b"))
	c.exec(InsertRow(t.Name, "4", "a", Null, "b"), TruncateTable(t.Name), InsertRow(t.Name, "1", "a", Null, "b"))
	c.exec(InsertRow(t.Name, "2", "a", Null, "b"))
	f.toHead()
	f.wants(t, "insert 3", "insert 4", "truncate", "insert 1", "insert 2")
	c.sameRows(f.replay(t, base, ""), c.rows(t), "rows by the stream")
}

func checkLargeTransaction(c *sourceCheck) {
	const n = 3000
	t, other := c.create("items"), c.create("other")
	f := c.stream(nil, t, other)
	changes := make([]Change, 0, n+n/10)
	for i := range n {
		changes = append(changes, InsertRow(t.Name, strconv.Itoa(i), "x", Null, "y"))
		if i%10 == 0 {
			changes = append(changes, InsertRow(other.Name, strconv.Itoa(i), "x", Null, "y"))
		}
	}
	c.exec(changes...)
	f.toHead()
	next := make(map[schema.ID]int64)
	for _, d := range f.seen {
		if d.sequence != next[d.table.ID] {
			c.Fatalf("row message %d of %s has number %d", next[d.table.ID], d.table.Name, d.sequence)
		}
		next[d.table.ID]++
		first := f.seen[0].commit
		if d.commit.Position != first.Position || d.commit.Tag != first.Tag || !d.commit.Time.Equal(first.Time) {
			c.Fatalf("rows of one transaction come at %s and %s", first.Position, d.commit.Position)
		}
	}
	if next[t.ID] != n || next[other.ID] != n/10 {
		c.Fatalf("%d and %d rows were delivered, want %d and %d", next[t.ID], next[other.ID], n, n/10)
	}
}

// checkResume kills the process in the middle and goes on from the last Progress.
func checkResume(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	c.fill(t, 1, 3)
	f.toHead()
	from := f.progress
	c.fill(t, 4, 20)
	c.exec(UpdateRow(t.Name, "1", "1", "new", Null, "b"))
	for len(f.frames) < 2 { // some of what is after from was read before the end
		e, err := f.st.Next(c.ctx)
		c.ok(err, "read the stream")
		f.take(e)
	}
	c.restart()
	c.exec(DeleteRow(t.Name, "2"))
	again := c.stream(from, t)
	again.toHead()
	again.forget(from)
	var want []string
	for id := 4; id < 24; id++ {
		want = append(want, fmt.Sprintf("insert %d", id))
	}
	again.wants(t, append(want, "update 1", "delete 2")...)
}

func checkRepeats(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	f.toHead()
	from := f.progress
	before := len(f.seen)
	c.fill(t, 1, 12)
	c.exec(UpdateRow(t.Name, "1", "100", "moved", Null, "b"), DeleteRow(t.Name, "2"))
	c.exec(TruncateTable(t.Name), InsertRow(t.Name, "5", "a", Null, "b"))
	from = clonePositions(from)
	f.toHead()
	first := fmt.Sprint(f.seen[before:])
	for range 2 {
		c.restart()
		again := c.stream(from, t)
		again.toHead()
		again.forget(from)
		if got := fmt.Sprint(again.seen); got != first {
			c.Fatalf("the stream repeats\n  %s\nas\n  %s", first, got)
		}
	}
}

func clonePositions(p connector.Positions) connector.Positions {
	next := make(connector.Positions, len(p))
	for k, v := range p {
		next[k] = v
	}
	return next
}

// checkAck reads on between the acknowledgement and the attempt to go back: a server may take note of it late.
func checkAck(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	c.fill(t, 1, 2)
	f.toHead()
	from := clonePositions(f.progress)
	c.fill(t, 3, 2)
	f.toHead()
	acked := clonePositions(f.progress)
	c.ok(f.st.Ack(c.ctx, acked), "acknowledge")
	c.fill(t, 5, 2)
	c.restart()
	again := c.stream(acked, t)
	again.toHead()
	again.forget(acked)
	again.wants(t, "insert 5", "insert 6")
	c.restart()
	st, err := c.src.Stream(c.ctx, t.Log, from)
	if err == nil {
		c.closes = append(c.closes, st)
	}
	c.kind(err, connector.Gap, "open the stream before the acknowledged position")
}

func checkTakeOver(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	c.fill(t, 1, 2)
	f.toHead()
	from := clonePositions(f.progress)
	c.fill(t, 3, 2)
	c.open() // the old process is not closed: it was killed and the server has not noticed
	again := c.stream(from, t)
	again.toHead()
	again.forget(from)
	again.wants(t, "insert 3", "insert 4")
}

func checkIdleProgress(c *sourceCheck) {
	t, other := c.create("items"), c.create("other")
	f := c.stream(nil, t)
	f.toHead()
	c.fill(other, 1, 3)
	f.toHead()
	f.toHead()
	f.wants(t)
}

func checkDrop(c *sourceCheck) {
	t, other := c.create("items"), c.create("other")
	f := c.stream(nil, t, other)
	c.fill(t, 1, 2)
	f.toHead()
	c.ok(f.st.Drop(c.ctx, t.ID), "drop a table from the stream")
	c.fill(t, 3, 2)
	c.fill(other, 1, 1)
	f.toHead()
	f.wants(t, "insert 1", "insert 2")
	f.wants(other, "insert 1")
}

func checkCancel(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	f.toHead()
	ctx, cancel := context.WithTimeout(c.ctx, 50*time.Millisecond)
	defer cancel()
	b := runBeside(ctx, func(ctx context.Context) error {
		for {
			if _, err := f.st.Next(ctx); err != nil {
				return err
			}
		}
	})
	select {
	case <-b.done:
	case <-time.After(c.patience()):
		c.Fatal("Next goes on after the end of its context")
	}
	if ctx.Err() == nil {
		c.Fatalf("Next on an idle log: %v", b.err)
	}
	if _, err := c.src.Tables(ctx); err == nil {
		c.Error("Tables succeeds after the end of its context")
	}
}

// checkDamaged cuts off and flips bytes of good frames.
func checkDamaged(c *sourceCheck) {
	t := c.create("items")
	f := c.stream(nil, t)
	c.exec(InsertRow(t.Name, "1", "one", Null, large("x")), UpdateRow(t.Name, "1", "2", "a", "b", Unsent), DeleteRow(t.Name, "2"))
	c.exec(TruncateTable(t.Name), InsertRow(t.Name, "5", "one", Null, "x"))
	f.toHead()
	if len(f.frames) == 0 {
		c.Fatal("no frames to damage")
	}
	for _, good := range f.frames {
		d, err := c.src.Decoder(good.Table)
		c.ok(err, "make a decoder")
		step := max(1, len(good.Data)/200)
		for n := 0; n < len(good.Data); n += step {
			cut := &connector.Frames{Table: good.Table, Data: good.Data[:n], Commits: good.Commits}
			if !c.decodeDamaged(d, cut) {
				c.Fatalf("frames cut to %d of %d bytes were decoded", n, len(good.Data))
			}
		}
		for n := 0; n < len(good.Data); n += step {
			for _, mask := range []byte{0x01, 0x80, 0xff} {
				flipped := bytes.Clone(good.Data)
				flipped[n] ^= mask
				c.decodeDamaged(d, &connector.Frames{Table: good.Table, Data: flipped, Commits: good.Commits})
			}
		}
	}
}

// decodeDamaged reports whether frames were refused, as they must be if at all.
func (c *sourceCheck) decodeDamaged(d connector.Decoder, f *connector.Frames) (refused bool) {
	c.Helper()
	defer func() {
		if p := recover(); p != nil {
			c.Fatalf("damaged frames make the decoder panic: %v", p)
		}
	}()
	rows, err := d.Decode(f)
	if err == nil {
		rows.Release()
		return false
	}
	c.kind(err, connector.TableFault, "decode damaged frames")
	return true
}

// checkWait has a transaction that wrote the table before it was added, and goes on afterwards.
func checkFind(c *sourceCheck) {
	finder, ok := c.src.(connector.Finder)
	if !ok {
		c.Skip("rows cannot be read by their key")
	}
	t := c.create("items")
	c.fill(t, 1, 5)
	c.exec(UpdateRow(t.Name, "2", "20", "moved", Null, strings.Repeat("x", 3000)), DeleteRow(t.Name, "3"))
	c.stream(nil, t)
	c.snapshot(t) // waits until all of it is visible
	find := func(t *schema.Table, ids ...string) (*connector.Rows, error) {
		keys := *t
		keys.Columns = []schema.Column{t.Columns[t.Key[0]]}
		b := NewRowsBuilder(c.alloc, &keys)
		for _, id := range ids {
			c.ok(b.Append(connector.Insert, Row{id}), "make a key")
		}
		rows := b.Rows()
		defer rows.Release()
		return finder.Find(c.ctx, t, rows.Values)
	}
	found, err := find(t, "1", "2", "3", "20", "99")
	c.ok(err, "find rows")
	var got []Row
	for i := range found.Len() {
		got = append(got, RowAt(found, i))
	}
	found.Release()
	want := slices.DeleteFunc(c.rows(t), func(row Row) bool { return row[0] != "1" && row[0] != "20" })
	c.sameRows(got, want, "rows found by their key")
	found, err = find(t)
	c.ok(err, "find rows by no key")
	if found.Len() != 0 {
		c.Errorf("no key finds %d rows", found.Len())
	}
	found.Release()
	if alterer, ok := c.sys.(Alterer); ok {
		c.ok(alterer.AddColumn(t.Name, Text("added")), "add a column")
		_, err = find(t, "1")
		c.kind(err, connector.ViewLost, "find rows of an older version")
	}
}

func checkWait(c *sourceCheck) {
	holder, ok := c.sys.(Holder)
	if !ok {
		c.Skip("the system has no transactions")
	}
	t := c.create("items")
	c.fill(t, 1, 2)
	f := c.openLog(t.Log, nil)
	end, err := holder.Hold(InsertRow(t.Name, "3", "before", Null, "b"), UpdateRow(t.Name, "1", "1", "before", Null, "b"))
	c.ok(err, "hold a transaction")
	f.add(t)
	ctx, cancel := context.WithTimeout(c.ctx, 300*time.Millisecond)
	defer cancel()
	snap, err := c.src.Snapshot(ctx, t)
	if err == nil {
		c.closes = append(c.closes, snap)
	}
	c.ok(end(InsertRow(t.Name, "4", "after", Null, "b")), "end the transaction")
	c.kind(err, connector.Conflict, "take a snapshot while a transaction has written the table")
	snap = c.snapshot(t)
	got := c.read(snap, c.chunks(snap, 10))
	f.toHead()
	c.sameRows(f.replay(t, got, snap.Token()), c.rows(t), "snapshot and stream together")
}

// checkJoin adds tables to a running stream while all of them are written.
func checkJoin(c *sourceCheck) {
	const tables = 6
	var ts []*schema.Table
	for i := range tables {
		ts = append(ts, c.create(fmt.Sprintf("items%d", i)))
		c.fill(ts[i], 1, 10)
	}
	f := c.openLog(ts[0].Log, nil)
	w := startWriter(c, ts)
	defer func() { _ = w.stop() }() // its error is looked at below
	r := startReader(f)
	defer func() { _ = r.stop() }() // after toHead there is nothing left to stop
	copies := make(map[schema.ID][]Row)
	tokens := make(map[schema.ID]string)
	for i, t := range ts {
		w.waitMore(5)
		f.add(t)
		if i%2 == 1 { // the stream has, and the view holds, what was written in between
			w.waitMore(5)
		}
		snap, err := c.src.Snapshot(c.ctx, t)
		c.ok(err, "take a snapshot")
		tokens[t.ID] = snap.Token()
		copies[t.ID] = c.read(snap, c.chunks(snap, 5))
		c.ok(snap.Close(), "close the snapshot") // a source may hold a connection for each
	}
	w.waitMore(10)
	c.ok(w.stop(), "write to the source")
	r.toHead()
	for _, t := range ts {
		c.sameRows(f.replay(t, copies[t.ID], tokens[t.ID]), c.rows(t), "snapshot and stream of "+t.Name.String()+" together")
	}
}

// background is work beside a check.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // once done is closed
}

// runBeside runs work until stop.
func runBeside(ctx context.Context, work func(ctx context.Context) error) *background {
	ctx, cancel := context.WithCancel(ctx)
	b := &background{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.err = work(ctx)
	}()
	return b
}

func (b *background) stop() error {
	b.cancel()
	<-b.done
	return b.err
}

// sourceWriter writes to tables, one transaction after the other.
type sourceWriter struct {
	*background
	mu    sync.Mutex
	more  *sync.Cond
	n     int // transactions written
	ended bool
}

// startWriter starts a writer; each of its transactions changes every table.
func startWriter(c *sourceCheck, ts []*schema.Table) *sourceWriter {
	w := &sourceWriter{}
	w.more = sync.NewCond(&w.mu)
	w.background = runBeside(c.ctx, func(ctx context.Context) error {
		defer w.tell(func() { w.ended = true })
		for n := 0; ctx.Err() == nil; n++ {
			if err := c.sys.Exec(writerChanges(ts, n)...); err != nil {
				return err
			}
			w.tell(func() { w.n++ })
		}
		return nil
	})
	return w
}

// writerChanges are those of transaction n: an insert, an update, and a move or a delete of an earlier row.
func writerChanges(ts []*schema.Table, n int) []Change {
	var changes []Change
	for _, t := range ts {
		id := strconv.Itoa(1000 + n)
		changes = append(changes, InsertRow(t.Name, id, "w"+id, Null, large(id)))
		changes = append(changes, UpdateRow(t.Name, strconv.Itoa(1+n%10), strconv.Itoa(1+n%10), "w"+id, "x", Unsent))
		switch old := strconv.Itoa(1000 + n - 5); {
		case n < 5:
		case n%2 == 0:
			changes = append(changes, DeleteRow(t.Name, old))
		default:
			changes = append(changes, UpdateRow(t.Name, old, strconv.Itoa(-n), "moved", Null, Unsent))
		}
	}
	return changes
}

// tell changes what waitMore waits for.
func (w *sourceWriter) tell(what func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	what()
	w.more.Broadcast()
}

// waitMore waits until n more transactions were written, or the writer has ended.
func (w *sourceWriter) waitMore(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n += w.n; w.n < n && !w.ended; {
		w.more.Wait()
	}
}

// sourceReader reads a stream while the check does other things.
type sourceReader struct {
	*background
	f      *following
	events []connector.Event // the reader's own until it has ended
	target chan connector.Positions
}

func startReader(f *following) *sourceReader {
	r := &sourceReader{f: f, target: make(chan connector.Positions, 1)}
	r.background = runBeside(f.c.ctx, r.read)
	return r
}

// read reads until a Progress has reached the target, once there is one.
func (r *sourceReader) read(ctx context.Context) error {
	var target connector.Positions
	for {
		e, err := r.f.st.Next(ctx)
		if err != nil {
			return err
		}
		r.events = append(r.events, e)
		select {
		case target = <-r.target:
		default:
		}
		if p, ok := e.(*connector.Progress); ok && target != nil && r.f.covers(p.UpTo, target) {
			return nil
		}
	}
}

// toHead ends the reading at the log's end of this moment and notes what was read.
func (r *sourceReader) toHead() {
	r.f.c.Helper()
	for range 2 { // the reader looks for the target once it has an event, which a second Head makes sure of
		head, err := r.f.c.src.Head(r.f.c.ctx, r.f.log)
		r.f.c.ok(err, "read the log's end")
		select {
		case r.target <- head:
		default:
		}
	}
	<-r.done
	r.f.c.ok(r.err, "read the stream")
	for _, e := range r.events {
		r.f.take(e)
	}
}

func checkSchemaChange(c *sourceCheck) {
	alterer, ok := c.sys.(Alterer)
	if !ok {
		c.Skip("tables do not change")
	}
	t := c.create("items")
	f := c.stream(nil, t)
	c.fill(t, 1, 2)
	c.ok(alterer.AddColumn(t.Name, Text("added")), "add a column")
	c.exec(InsertRow(t.Name, "3", "a", Null, "b", "new"))
	f.toHead()
	now := c.table(t.Name)
	if now.Version <= t.Version || now.ID != t.ID {
		c.Errorf("the changed table went from %s version %d to %s version %d", t.ID, t.Version, now.ID, now.Version)
	}
	if len(f.changes) != 1 || f.changes[0].Table.Version != now.Version || f.changes[0].Table.Column("added") < 0 {
		c.Fatalf("the stream delivers %d schema changes, want one to version %d", len(f.changes), now.Version)
	}
	f.wants(t, "insert 1", "insert 2", "insert 3")
	for i, want := range []int{4, 4, 5} {
		if got := len(f.seen[i].row); got != want {
			c.Errorf("row %d has %d columns, want %d", i, got, want)
		}
	}
	if _, err := c.src.Snapshot(c.ctx, t); connector.KindOf(err) != connector.ViewLost {
		c.Errorf("a snapshot of the old version: %v, want the view lost", err)
	}
}

func checkUnselected(c *sourceCheck) {
	publisher, ok := c.sys.(Publisher)
	if !ok {
		c.Skip("the log has changes of added tables alone")
	}
	items := c.create("items")
	f := c.stream(nil, items)
	able, err := publisher.PublishAll()
	c.ok(err, "publish all tables")
	if !able {
		c.Skip("the server cannot publish tables that come later")
	}
	later := c.create("later")
	c.fill(later, 1, 2)
	c.fill(later, 3, 2)
	c.fill(items, 1, 1)
	f.toHead()
	want := []connector.Unselected{{ID: later.ID, Name: later.Name}}
	if !slices.Equal(f.unselected, want) {
		c.Fatalf("the stream tells of the tables not added %v, want %v", f.unselected, want)
	}
	f.wants(items, "insert 1")
	f.wants(later)
	f.add(later)
	c.fill(later, 5, 1)
	f.toHead()
	f.wants(later, "insert 5")
	if !slices.Equal(f.unselected, want) {
		c.Errorf("the stream goes on to tell of a table that was added: %v", f.unselected)
	}
}
