package connectortest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// brokenSource is a source with one thing wrong: what is set stands in for the call of that name.
type brokenSource struct {
	*MemorySource
	tables   func([]*schema.Table) []*schema.Table
	stream   func(ctx context.Context, log string, from connector.Positions) (connector.Stream, error)
	snapshot func(t *schema.Table)
	contains func(token string, c connector.Commit) (bool, error)
	compare  func(a, b connector.Position) (int, error)
	decode   func(connector.Decoder, *connector.Frames) (*connector.Rows, error)
	row      func(op connector.Op, row Row) (Row, bool) // of a decoded batch; false: leave it out
	event    func(connector.Event) connector.Event      // nil: leave it out
	ack      func() bool                                // false: do nothing
	drop     func() bool
	next     func(ctx context.Context) context.Context
	read     func(inner connector.Snapshot, ctx context.Context, c connector.Chunk) (connector.RowReader, error)
	layout   func(layout string) string
	find     func(*connector.Rows) *connector.Rows
}

func (s *brokenSource) Find(ctx context.Context, t *schema.Table, keys arrow.RecordBatch) (*connector.Rows, error) {
	rows, err := s.MemorySource.Find(ctx, t, keys)
	if err == nil && s.find != nil {
		rows = s.find(rows)
	}
	return rows, err
}

func (s *brokenSource) Tables(ctx context.Context) ([]*schema.Table, error) {
	ts, err := s.MemorySource.Tables(ctx)
	if s.tables != nil {
		ts = s.tables(ts)
	}
	return ts, err
}

func (s *brokenSource) Stream(ctx context.Context, log string, from connector.Positions) (connector.Stream, error) {
	open := s.MemorySource.Stream
	if s.stream != nil {
		open = s.stream
	}
	st, err := open(ctx, log, from)
	if err != nil {
		return nil, err
	}
	return &brokenStream{Stream: st, source: s}, nil
}

func (s *brokenSource) Snapshot(ctx context.Context, t *schema.Table) (connector.Snapshot, error) {
	if s.snapshot != nil {
		s.snapshot(t)
	}
	snap, err := s.MemorySource.Snapshot(ctx, t)
	if err != nil {
		return nil, err
	}
	return &brokenSnapshot{Snapshot: snap, source: s}, nil
}

func (s *brokenSource) Contains(token string, c connector.Commit) (bool, error) {
	if s.contains != nil {
		return s.contains(token, c)
	}
	return s.MemorySource.Contains(token, c)
}

func (s *brokenSource) Compare(a, b connector.Position) (int, error) {
	if s.compare != nil {
		return s.compare(a, b)
	}
	return s.MemorySource.Compare(a, b)
}

func (s *brokenSource) Decoder(t *schema.Table) (connector.Decoder, error) {
	d, err := s.MemorySource.Decoder(t)
	return &brokenDecoder{Decoder: d, source: s}, err
}

type brokenStream struct {
	connector.Stream
	source *brokenSource
}

func (st *brokenStream) Next(ctx context.Context) (connector.Event, error) {
	if st.source.next != nil {
		ctx = st.source.next(ctx)
	}
	for {
		e, err := st.Stream.Next(ctx)
		if err == nil && st.source.event != nil {
			e = st.source.event(e)
		}
		if e != nil || err != nil {
			return e, err
		}
	}
}

func (st *brokenStream) Ack(ctx context.Context, upTo connector.Positions) error {
	if st.source.ack != nil && !st.source.ack() {
		return nil
	}
	return st.Stream.Ack(ctx, upTo)
}

func (st *brokenStream) Drop(ctx context.Context, id schema.ID) error {
	if st.source.drop != nil && !st.source.drop() {
		return nil
	}
	return st.Stream.Drop(ctx, id)
}

type brokenSnapshot struct {
	connector.Snapshot
	source *brokenSource
}

func (sn *brokenSnapshot) Layout() string {
	if sn.source.layout != nil {
		return sn.source.layout(sn.Snapshot.Layout())
	}
	return sn.Snapshot.Layout()
}

func (sn *brokenSnapshot) Read(ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
	if sn.source.read != nil {
		return sn.source.read(sn.Snapshot, ctx, c)
	}
	return sn.Snapshot.Read(ctx, c)
}

type brokenDecoder struct {
	connector.Decoder
	source *brokenSource
}

func (d *brokenDecoder) Decode(f *connector.Frames) (*connector.Rows, error) {
	if d.source.decode != nil {
		return d.source.decode(d.Decoder, f)
	}
	rows, err := d.Decoder.Decode(f)
	if err == nil && d.source.row != nil {
		rows = d.source.edit(rows)
	}
	return rows, err
}

// edit builds the rows again as row wants them.
func (s *brokenSource) edit(r *connector.Rows) *connector.Rows {
	defer r.Release()
	b := NewRowsBuilder(s.Alloc, r.Table)
	var commits []connector.Commit
	i := 0
	for _, run := range r.Commits {
		kept := 0
		for range run.Rows {
			row, ok := s.row(r.Op(i), RowAt(r, i))
			if r.Op(i) == connector.Truncate {
				row = nil
			}
			i++
			if ok && b.Append(r.Op(i-1), row) == nil {
				kept++
			}
		}
		run.Rows = kept
		commits = append(commits, run)
	}
	next := b.Rows()
	next.Commits = commits
	return next
}

// emptyReader returns no rows and claims that they were all.
type emptyReader struct{}

func (emptyReader) Next(context.Context) (*connector.Rows, error) { return nil, io.EOF }
func (emptyReader) Cursor() string                                { return "" }
func (emptyReader) Close() error                                  { return nil }

// skippingReader leaves out the first batch.
type skippingReader struct {
	connector.RowReader
	skipped bool
}

func (r *skippingReader) Next(ctx context.Context) (*connector.Rows, error) {
	if !r.skipped {
		r.skipped = true
		rows, err := r.RowReader.Next(ctx)
		if err != nil {
			return nil, err
		}
		rows.Release()
	}
	return r.RowReader.Next(ctx)
}

// sourceMutations are broken sources, each with the check that must notice.
var sourceMutations = []struct {
	check, name string
	spoil       func(s *brokenSource)
}{
	{"tables_keep_their_version", "a version more at each call", func(s *brokenSource) {
		calls := 0
		s.tables = func(ts []*schema.Table) []*schema.Table {
			calls++
			for i := range ts {
				next := *ts[i]
				next.Version += calls
				ts[i] = &next
			}
			return ts
		}
	}},
	{"positions_of_another_system_have_no_order", "every position has an order", func(s *brokenSource) {
		s.compare = func(a, b connector.Position) (int, error) {
			n, err := s.MemorySource.Compare(a, b)
			if err != nil {
				return 0, nil
			}
			return n, nil
		}
	}},
	{"snapshot_covers_all_rows_once", "the first rows of each chunk are skipped", func(s *brokenSource) {
		s.read = func(inner connector.Snapshot, ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
			r, err := inner.Read(ctx, c)
			return &skippingReader{RowReader: r}, err
		}
	}},
	{"snapshot_covers_all_rows_once", "chunks overlap", func(s *brokenSource) {
		s.read = func(inner connector.Snapshot, ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
			c.Spec = "{}"
			return inner.Read(ctx, c)
		}
	}},
	{"chunk_goes_on_after_its_cursor", "the cursor is ignored", func(s *brokenSource) {
		s.read = func(inner connector.Snapshot, ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
			c.After = ""
			return inner.Read(ctx, c)
		}
	}},
	{"chunks_keep_their_meaning_under_a_later_snapshot", "a chunk is the nth part of any view", func(s *brokenSource) {
		s.read = func(inner connector.Snapshot, ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
			chunks, err := inner.Chunks(ctx, 10)
			if err != nil {
				return nil, err
			}
			return inner.Read(ctx, chunks[c.ID])
		}
	}},
	{"view_of_a_truncated_table_is_lost", "a lost view reads as empty", func(s *brokenSource) {
		s.read = func(inner connector.Snapshot, ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
			r, err := inner.Read(ctx, c)
			if connector.KindOf(err) == connector.ViewLost {
				return emptyReader{}, nil
			}
			return r, err
		}
	}},
	{"stream_delivers_what_is_written_after_add", "deletes are left out", func(s *brokenSource) {
		s.row = func(op connector.Op, row Row) (Row, bool) { return row, op != connector.Delete }
	}},
	{"stream_delivers_what_is_written_after_add", "frames come twice", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			if f, ok := e.(*connector.Frames); ok {
				f.Data = append(f.Data, f.Data...)
				f.Commits = append(f.Commits, f.Commits...)
			}
			return e
		}
	}},
	{"stream_delivers_what_is_written_after_add", "decoded rows are kept", func(s *brokenSource) {
		s.decode = func(d connector.Decoder, f *connector.Frames) (*connector.Rows, error) {
			rows, err := d.Decode(f)
			if err == nil {
				rows.Values.Retain()
			}
			return rows, err
		}
	}},
	{"nulls_are_told_from_empty_text", "NULL is empty text", func(s *brokenSource) {
		s.row = func(_ connector.Op, row Row) (Row, bool) {
			for i, v := range row {
				if v == Null {
					row[i] = ""
				}
			}
			return row, true
		}
	}},
	{"key_change_sends_the_old_key_first", "the old key is left out", func(s *brokenSource) {
		s.row = func(op connector.Op, row Row) (Row, bool) { return row, op != connector.Before }
	}},
	{"unchanged_toasted_values_are_unsent", "unsent is NULL", func(s *brokenSource) {
		s.row = func(_ connector.Op, row Row) (Row, bool) {
			for i, v := range row {
				if v == Unsent {
					row[i] = Null
				}
			}
			return row, true
		}
	}},
	{"truncate_comes_in_order", "truncates are left out", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			f, ok := e.(*connector.Frames)
			if ok && len(f.Data) > 4 && bytes.Contains(f.Data, []byte{0, 0, 0, 1, byte(connector.Truncate)}) {
				return nil
			}
			return e
		}
	}},
	{"large_transaction_is_numbered_through", "each piece is numbered from 0", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			if f, ok := e.(*connector.Frames); ok {
				for i := range f.Commits {
					f.Commits[i].First = 0
				}
			}
			return e
		}
	}},
	{"large_transaction_is_numbered_through", "the last piece is lost", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			if f, ok := e.(*connector.Frames); ok && f.Commits[0].First > 2990 {
				return nil
			}
			return e
		}
	}},
	{"stream_resumes_after_a_position", "the stream begins at the log's end", func(s *brokenSource) {
		s.stream = func(ctx context.Context, log string, from connector.Positions) (connector.Stream, error) {
			if from != nil {
				from = connector.Positions{"": positionOf(s.db.lsn)}
			}
			return s.MemorySource.Stream(ctx, log, from)
		}
	}},
	{"repeats_are_equal", "the time is that of reading", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			if f, ok := e.(*connector.Frames); ok {
				for i := range f.Commits {
					f.Commits[i].Time = time.Now()
				}
			}
			return e
		}
	}},
	{"ack_lets_the_log_go", "acknowledgements are forgotten", func(s *brokenSource) { s.ack = func() bool { return false } }},
	{"stream_of_a_killed_process_is_taken_over", "the slot in use is refused", func(s *brokenSource) {
		s.stream = func(ctx context.Context, log string, from connector.Positions) (connector.Stream, error) {
			if s.db.slot != nil && s.db.slot.reader != nil {
				return nil, sourceError(connector.Unavailable, "stream", schema.Name{}, errors.New("the slot is in use"))
			}
			return s.MemorySource.Stream(ctx, log, from)
		}
	}},
	{"progress_reaches_the_head_of_an_idle_log", "progress comes behind changes only", func(s *brokenSource) {
		changes := true // the first Progress is that of the start
		s.event = func(e connector.Event) connector.Event {
			if _, ok := e.(*connector.Progress); ok && !changes {
				return nil
			}
			_, changes = e.(*connector.Frames)
			return e
		}
	}},
	{"dropped_table_is_silent", "drops are forgotten", func(s *brokenSource) { s.drop = func() bool { return false } }},
	{"next_ends_with_its_context", "Next waits without its context", func(s *brokenSource) {
		s.next = context.WithoutCancel
	}},
	{"damaged_frames_are_a_table_fault", "the decoder panics", func(s *brokenSource) {
		s.decode = func(d connector.Decoder, f *connector.Frames) (*connector.Rows, error) {
			rows, err := d.Decode(f)
			if err != nil {
				panic(err)
			}
			return rows, nil
		}
	}},
	{"damaged_frames_are_a_table_fault", "the fault has no kind", func(s *brokenSource) {
		s.decode = func(d connector.Decoder, f *connector.Frames) (*connector.Rows, error) {
			rows, err := d.Decode(f)
			if err != nil {
				err = errors.New("damaged")
			}
			return rows, err
		}
	}},
	{"damaged_frames_are_a_table_fault", "what is missing is read as nothing", func(s *brokenSource) {
		s.decode = func(d connector.Decoder, f *connector.Frames) (*connector.Rows, error) {
			rows, err := d.Decode(f)
			if err != nil {
				return NewRowsBuilder(s.Alloc, f.Table).Rows(), nil
			}
			return rows, nil
		}
	}},
	{"snapshot_waits_for_writers", "the snapshot waits for nobody", func(s *brokenSource) { s.snapshot = s.forgetHolders }},
	{"join_loses_and_doubles_nothing", "the snapshot waits for nobody", func(s *brokenSource) { s.snapshot = s.forgetHolders }},
	{"chunks_keep_their_meaning_under_a_later_snapshot", "the layout is another at each snapshot", func(s *brokenSource) {
		calls := 0
		s.layout = func(layout string) string {
			calls++
			return fmt.Sprint(layout, calls)
		}
	}},
	{"view_of_a_truncated_table_is_lost", "the layout never changes", func(s *brokenSource) {
		s.layout = func(string) string { return "always" }
	}},
	{"rows_are_found_by_their_key_as_they_are_now", "one row less is found", func(s *brokenSource) {
		s.find = func(rows *connector.Rows) *connector.Rows {
			defer rows.Release()
			return &connector.Rows{Table: rows.Table, Values: rows.Values.NewSlice(0, max(rows.Values.NumRows()-1, 0))}
		}
	}},
	{"join_loses_and_doubles_nothing", "the snapshot is said to hold everything", func(s *brokenSource) {
		s.contains = func(string, connector.Commit) (bool, error) { return true, nil }
	}},
	{"join_loses_and_doubles_nothing", "the snapshot is said to hold nothing", func(s *brokenSource) {
		s.contains = func(string, connector.Commit) (bool, error) { return false, nil }
	}},
	{"schema_change_stands_between_the_versions", "schema changes are left out", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			if _, ok := e.(*connector.SchemaChange); ok {
				return nil
			}
			return e
		}
	}},
	{"changes_of_a_table_not_added_are_told", "nothing is told", func(s *brokenSource) {
		s.event = func(e connector.Event) connector.Event {
			if _, ok := e.(*connector.Unselected); ok {
				return nil
			}
			return e
		}
	}},
}

// forgetHolders makes the next snapshot of a table wait for nobody.
func (s *brokenSource) forgetHolders(t *schema.Table) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	clear(s.db.byID(t.ID).awaited)
}

// brokenTimeout bounds a check of something broken that makes it wait.
const brokenTimeout = 2 * time.Second

func TestEverySourceCheckCanFail(t *testing.T) {
	broken := make(map[string]int)
	for _, m := range sourceMutations {
		broken[m.check]++
		t.Run(m.check+"/"+m.name, func(t *testing.T) {
			h := SourceHarness{Timeout: brokenTimeout, New: func(testing.TB) SourceSystem {
				return newMemorySystem(3, func(src *MemorySource) connector.Source {
					s := &brokenSource{MemorySource: src}
					m.spoil(s)
					return s
				})
			}}
			ch := findCheck(t, sourceChecks, m.check)
			expectFailure(t, record(t, func(tb testing.TB) { runSourceCheck(tb, h, ch) }))
		})
	}
	for _, ch := range sourceChecks {
		if broken[ch.name] == 0 {
			t.Errorf("no broken source shows that check %s can fail", ch.name)
		}
	}
}

func findCheck[C any](t *testing.T, checks []check[C], name string) check[C] {
	t.Helper()
	for _, ch := range checks {
		if ch.name == name {
			return ch
		}
	}
	t.Fatalf("there is no check %s", name)
	return check[C]{}
}

func expectFailure(t *testing.T, r *recorder) {
	t.Helper()
	if !r.Failed() {
		t.Errorf("the check passes (skipped: %t)", r.Skipped())
	}
	if len(r.messages) > 0 {
		t.Logf("%.300s", r.messages[0])
	}
}

func TestSuiteNoticesAGoroutineLeftBehind(t *testing.T) {
	release := make(chan struct{})
	done := make(chan struct{})
	h := SourceHarness{New: func(testing.TB) SourceSystem {
		return newMemorySystem(0, func(src *MemorySource) connector.Source {
			s := &brokenSource{MemorySource: src}
			s.tables = func(ts []*schema.Table) []*schema.Table {
				s.tables = nil
				go func() {
					defer close(done)
					<-release
				}()
				return ts
			}
			return s
		})
	}}
	ch := findCheck(t, sourceChecks, "tables_keep_their_version")
	expectFailure(t, record(t, func(tb testing.TB) { runSourceCheck(tb, h, ch) }))
	close(release)
	<-done
}
