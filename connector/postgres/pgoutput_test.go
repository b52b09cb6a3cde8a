package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// The messages of a transaction, as a server sends them.

func encodeBegin(final LSN, xid uint32) []byte {
	m := binary.BigEndian.AppendUint64([]byte{messageBegin}, uint64(final))
	m = binary.BigEndian.AppendUint64(m, 1_000_000)
	return binary.BigEndian.AppendUint32(m, xid)
}

func encodeCommit(final, end LSN) []byte {
	m := binary.BigEndian.AppendUint64([]byte{messageCommit, 0}, uint64(final))
	m = binary.BigEndian.AppendUint64(m, uint64(end))
	return binary.BigEndian.AppendUint64(m, 1_000_000)
}

func encodeRelation(oid uint32, name schema.Name, columns ...relationColumn) []byte {
	m := binary.BigEndian.AppendUint32([]byte{messageRelation}, oid)
	m = append(m, name.Schema+"\x00"+name.Table+"\x00d"...)
	m = binary.BigEndian.AppendUint16(m, uint16(len(columns)))
	for _, c := range columns {
		flags := byte(0)
		if c.key {
			flags = 1
		}
		m = append(append(m, flags), c.name+"\x00"...)
		m = binary.BigEndian.AppendUint32(m, c.typ.oid)
		m = binary.BigEndian.AppendUint32(m, uint32(c.typ.modifier))
	}
	return m
}

func encodeInsert(oid uint32, values ...string) []byte {
	m := binary.BigEndian.AppendUint32([]byte{messageInsert}, oid)
	m = append(m, 'N')
	m = binary.BigEndian.AppendUint16(m, uint16(len(values)))
	for _, v := range values {
		m = append(m, 't')
		m = binary.BigEndian.AppendUint32(m, uint32(len(v)))
		m = append(m, v...)
	}
	return m
}

func encodeTruncate(oids ...uint32) []byte {
	m := binary.BigEndian.AppendUint32([]byte{messageTruncate}, uint32(len(oids)))
	m = append(m, 0)
	for _, oid := range oids {
		m = binary.BigEndian.AppendUint32(m, oid)
	}
	return m
}

// parseAny calls what the reader calls for a message.
func parseAny(m []byte) (err error) {
	switch m[0] {
	case messageInsert, messageUpdate, messageDelete:
		_, err = parseRow(m)
	case messageBegin:
		_, err = parseBegin(m)
	case messageCommit:
		_, err = parseCommit(m)
	case messageRelation:
		_, err = parseRelation(m)
	case messageTruncate:
		_, err = parseTruncate(m, nil)
	}
	return err
}

func sampleMessages() [][]byte {
	return [][]byte{
		encodeBegin(100, 7),
		encodeRelation(5, schema.Name{Schema: "public", Table: "t"}, relationColumn{"id", columnType{23, -1}, true}),
		encodeInsert(5, "1"),
		{messageUpdate, 0, 0, 0, 5, 'N', 0, 1, 't', 0, 0, 0, 1, '1'},
		{messageDelete, 0, 0, 0, 5, 'K', 0, 1, 't', 0, 0, 0, 1, '1'},
		encodeTruncate(5, 6),
		encodeCommit(100, 150),
	}
}

func FuzzParseMessage(f *testing.F) {
	for _, m := range sampleMessages() {
		f.Add(m)
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) > 0 {
			_ = parseAny(m) // any error, but no panic
		}
	})
}

func FuzzWalsender(f *testing.F) {
	var data []byte
	for i, m := range sampleMessages() {
		data = appendXLogData(data, LSN(i+1), m)
	}
	f.Add(data, 10)
	f.Add([]byte{'d', 0, 0, 0, 22, 'k', 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9, 1}, 1)
	f.Add([]byte{'E', 0, 0, 0, 9, 'C', '5', '7', 'P', 0}, 100)
	f.Fuzz(func(t *testing.T, data []byte, piece int) {
		w := &scriptWire{data: data, piece: max(1, piece), woken: make(chan struct{})}
		st := newScriptStream(nil, 1)
		st.sender.wire = w
		for len(w.data) > 0 {
			if _, err := st.sender.fill(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			if st.consume(t.Context()) != nil {
				return
			}
			for st.dequeue() != nil {
			}
		}
	})
}

func TestShortenedMessageIsAnError(t *testing.T) {
	for _, m := range sampleMessages() {
		if err := parseAny(m); err != nil {
			t.Errorf("%q: %v", m[0], err)
		}
		end := len(m)
		if m[0] == messageInsert || m[0] == messageUpdate || m[0] == messageDelete {
			end = rowEnvelope // the values are the decoder's
		}
		for n := 1; n < end; n++ {
			if parseAny(m[:n]) == nil {
				t.Errorf("%q cut to %d of %d bytes is no error", m[0], n, len(m))
			}
		}
	}
}

func TestRelationMessageIsRead(t *testing.T) {
	m, err := parseRelation(encodeRelation(5, schema.Name{Schema: "", Table: "t"},
		relationColumn{"id", columnType{23, -1}, true}, relationColumn{"v", columnType{1043, 14}, false}))
	if err != nil {
		t.Fatal(err)
	}
	if m.oid != 5 || m.name != (schema.Name{Schema: "pg_catalog", Table: "t"}) || m.identity != 'd' || len(m.columns) != 2 ||
		m.columns[0] != (relationColumn{"id", columnType{23, -1}, true}) || m.columns[1] != (relationColumn{"v", columnType{1043, 14}, false}) {
		t.Errorf("%+v", m)
	}
}

func TestServerClockIsMicrosecondsSince2000(t *testing.T) {
	at := time.Date(2024, 2, 29, 12, 0, 0, 123456000, time.UTC)
	if got := serverTime(serverMicros(at)); !got.Equal(at) {
		t.Errorf("%v became %v", at, got)
	}
	if got := serverTime(0); !got.Equal(serverEpoch) {
		t.Errorf("0 is %v", got)
	}
	if before := serverEpoch.Add(-time.Microsecond); !serverTime(-1).Equal(before) {
		t.Errorf("-1 is %v", serverTime(-1))
	}
}

// scriptWire plays bytes of a server in pieces and then waits for the end of ctx.
type scriptWire struct {
	data  []byte
	piece int
	woken chan struct{}
}

func (w *scriptWire) read(p []byte, wait time.Duration, _ bool) (int, error) {
	if len(w.data) == 0 {
		if wait < 0 {
			<-w.woken
		}
		return 0, nil
	}
	n := copy(p, w.data[:min(len(w.data), w.piece)])
	w.data = w.data[n:]
	return n, nil
}

func (w *scriptWire) write([]byte) error { return nil }
func (w *scriptWire) wake()              { close(w.woken) }
func (w *scriptWire) close() error       { return nil }

func appendXLogData(b []byte, lsn LSN, m []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, 'd'), uint32(4+xlogHeader+len(m)))
	b = binary.BigEndian.AppendUint64(append(b, 'w'), uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	b = binary.BigEndian.AppendUint64(b, 0)
	return append(b, m...)
}

// newScriptStream returns a stream over bytes, with the tables selected. It has no source: no catalog is read.
func newScriptStream(data []byte, piece int, tables ...*schema.Table) *stream {
	st := &stream{prefix: position{system: 1, timeline: 1}.prefix()}
	st.sender = &walsender{wire: &scriptWire{data: data, piece: piece, woken: make(chan struct{})}, buf: make([]byte, receiveBuffer)}
	st.answer = make(chan struct{}, 1)
	st.reader = newReader(0, statusPeriod)
	st.typeNames[columnType{23, -1}] = "integer"
	st.selected.Store(&map[uint32]*selection{})
	for _, t := range tables {
		oid, _ := tableOID(t.ID)
		st.choose(oid, t)
	}
	return st
}

func idTable(oid string) *schema.Table {
	return &schema.Table{
		ID: schema.ID(oid), Version: 1, Name: schema.Name{Schema: "public", Table: "t" + oid},
		Columns: []schema.Column{{Number: 1, Name: "id", Type: schema.Type{Kind: schema.Int32, Native: "integer"}}}, Key: []int{0},
	}
}

func relationOf(t *schema.Table) []byte {
	oid, _ := tableOID(t.ID)
	return encodeRelation(oid, t.Name, relationColumn{"id", columnType{23, -1}, true})
}

func TestMessagesAreFramedWhateverTheReadsBring(t *testing.T) {
	table := idTable("5")
	var data []byte
	for i := range LSN(50) {
		at := 1000 * (i + 1)
		data = appendXLogData(data, at, encodeBegin(at, uint32(i)))
		if i == 0 {
			data = appendXLogData(data, at, relationOf(table))
		}
		data = appendXLogData(data, at, encodeInsert(5, fmt.Sprint(i)))
		data = appendXLogData(data, at, encodeCommit(at, at+40))
	}
	for _, piece := range []int{1, 7, 100, len(data)} {
		st := newScriptStream(data, piece, table)
		rows := 0
		for {
			e, err := st.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if f, ok := e.(*connector.Frames); ok {
				rows += len(framesOf(t, f))
			}
			if p, ok := e.(*connector.Progress); ok && p.UpTo[""] == st.position(50_040) {
				break
			}
		}
		if rows != 50 {
			t.Errorf("in pieces of %d bytes: %d rows", piece, rows)
		}
	}
}

func TestTruncateIsOneRowOfEachSelectedTable(t *testing.T) {
	a, b, c := idTable("5"), idTable("6"), idTable("7")
	var data []byte
	data = appendXLogData(data, 100, encodeBegin(100, 1))
	for _, table := range []*schema.Table{a, b, c} {
		data = appendXLogData(data, 100, relationOf(table))
	}
	data = appendXLogData(data, 100, encodeTruncate(5, 6, 7))
	data = appendXLogData(data, 100, encodeCommit(100, 140))
	st := newScriptStream(data, len(data), a, c)
	if e, err := st.Next(t.Context()); err != nil || *e.(*connector.Unselected) != (connector.Unselected{ID: b.ID, Name: b.Name}) {
		t.Fatalf("%+v, %v; want to be told of the table that is not selected", e, err)
	}
	for _, want := range []*schema.Table{a, c} {
		e, err := st.Next(t.Context())
		f, ok := e.(*connector.Frames)
		if !ok || err != nil || f.Table != want || len(f.Commits) != 1 || f.Commits[0].Rows != 1 {
			t.Fatalf("%+v, %v", e, err)
		}
	}
}

func TestRoomForRowsIsLimitedForAllTablesTogether(t *testing.T) {
	const tables = 50
	st := newScriptStream(nil, 1)
	next := map[uint32]*selection{}
	for oid := uint32(1); oid <= tables; oid++ {
		next[oid] = &selection{table: idTable(fmt.Sprint(oid))}
	}
	st.selected.Store(&next)
	st.beginTransaction(beginMessage{final: 100, xid: 1})
	for oid := uint32(1); oid <= tables; oid++ {
		if err := st.message(t.Context(), relationOf(next[oid].table)); err != nil {
			t.Fatal(err)
		}
		st.relations[oid].lastBytes = flushBytes // it was busy before
		if err := st.message(t.Context(), encodeInsert(oid, "1")); err != nil {
			t.Fatal(err)
		}
	}
	room := 0
	for _, r := range st.touched {
		room += cap(r.frames.Data)
	}
	if len(st.touched) != tables || room > 3*flushBytes {
		t.Errorf("%d bytes for one row in each of %d tables", room, len(st.touched))
	}
}

func TestDamagedConnectionIsUnavailable(t *testing.T) {
	for name, data := range map[string][]byte{
		"length too small":     {'d', 0, 0, 0, 3},
		"length too large":     {'d', 0xff, 0xff, 0xff, 0xff},
		"unknown message":      {'?', 0, 0, 0, 4},
		"empty CopyData":       {'d', 0, 0, 0, 4},
		"short keepalive":      {'d', 0, 0, 0, 6, 'k', 0},
		"unknown pgoutput":     appendXLogData(nil, 1, []byte{'?'}),
		"short Begin":          appendXLogData(nil, 1, []byte{messageBegin, 0}),
		"row without relation": appendXLogData(nil, 1, encodeInsert(5, "1")),
		"truncate of too many": appendXLogData(nil, 1, []byte{messageTruncate, 0xff, 0xff, 0xff, 0xff, 0}),
		"end of the stream":    {'c', 0, 0, 0, 4},
	} {
		_, err := newScriptStream(data, len(data)).Next(t.Context())
		if connector.KindOf(err) != connector.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelledNextGoesOnLater(t *testing.T) {
	table := idTable("5")
	st := newScriptStream(nil, 100, table)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := st.Next(ctx); err != context.Canceled {
		t.Fatal(err)
	}
	data := appendXLogData(nil, 100, encodeBegin(100, 1))
	st.sender.wire.(*scriptWire).data = appendXLogData(data, 100, encodeCommit(100, 140))
	if e, err := st.Next(t.Context()); err != nil || e.(*connector.Progress).UpTo[""] != st.position(140) {
		t.Errorf("%v, %v", e, err)
	}
}

// BenchmarkReader is one change in a transaction of its own, from the bytes of the connection to frames.
func BenchmarkReader(b *testing.B) {
	for _, rows := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%d rows a transaction", rows), func(b *testing.B) {
			table := idTable("5")
			var data []byte
			for i := 0; i < b.N; i += rows {
				at := LSN(1000 * (i + 1))
				data = appendXLogData(data, at, encodeBegin(at, uint32(i)))
				if i == 0 {
					data = appendXLogData(data, at, relationOf(table))
				}
				for range rows {
					data = appendXLogData(data, at, encodeInsert(5, "12345678", "some text of usual length", "2024-01-01 00:00:00"))
				}
				data = appendXLogData(data, at, encodeCommit(at, at+40))
			}
			last := LSN(1000*((b.N-1)/rows*rows+1) + 40)
			st := newScriptStream(data, gatherBytes, table)
			b.SetBytes(int64(len(data) / b.N))
			b.ReportAllocs()
			b.ResetTimer()
			for {
				e, err := st.Next(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				if p, ok := e.(*connector.Progress); ok && p.UpTo[""] == st.position(last) {
					return
				}
			}
		})
	}
}
