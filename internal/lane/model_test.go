package lane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// TestSpooledLaneGivesEveryChangeOnceThroughCrashes compares a lane with the log that it was fed with: whatever is
// appended, taken, forced to disk, listed, lost in crashes and delivered again, the sink gets each row once, in order.
func TestSpooledLaneGivesEveryChangeOnceThroughCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newLaneModel(t)
		defer m.close()
		t.Repeat(map[string]func(*rapid.T){
			"":        func(*rapid.T) {},
			"write":   m.write,
			"read":    m.read,
			"apply":   m.apply,
			"back":    m.back,
			"sync":    m.sync,
			"floor":   m.saveFloor,
			"relieve": func(*rapid.T) { m.spool.relieve() },
			"crash":   m.crash,
		})
		m.drain(t)
	})
}

// TestDamagedSpoolIsNeverMisread changes bytes of files that the state lists: the lane gives the right rows or says that
// it is damaged.
func TestDamagedSpoolIsNeverMisread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newLaneModel(t)
		defer m.close()
		for range rapid.IntRange(3, 12).Draw(t, "rounds") {
			m.write(t)
			m.read(t)
		}
		m.saveFloor(t)
		if len(m.listed) == 0 {
			t.Skip("nothing in the spool")
		}
		m.spool.Close()
		seg := rapid.SampledFrom(m.listed).Draw(t, "segment")
		path := m.spool.path(seg.Table, seg.Number)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		switch i := rapid.Int64Range(0, seg.Size-1).Draw(t, "byte"); rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			err = os.Remove(path)
		case 1:
			err = os.Truncate(path, i)
		default:
			text[i] ^= byte(rapid.IntRange(1, 255).Draw(t, "flip"))
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = m.open()
		for err == nil && !m.lane.Empty() {
			err = m.applyOnce(1<<20, 1<<30)
		}
		if err == nil {
			t.Fatal("the damage was not noticed")
		}
		_, isDamaged := errors.AsType[*DamagedError](err)
		if _, isFormat := errors.AsType[*FormatError](err); !isDamaged && !isFormat {
			t.Fatalf("damage is reported as %v", err)
		}
	})
}

// laneModel is a log, the spool of its reader, and a sink, for one table.
type laneModel struct {
	t       *rapid.T
	dir     string
	limits  Limits
	segment int64
	budget  *Budget

	log      []modelTxn
	version  int
	seen     place1 // the last row that came out of the lane since it was opened
	read1    place1 // of the reader
	sink     []string
	at       place1 // the sink's checkpoint
	floor    int    // the source forgets transactions before it
	listed   []Segment
	last     connector.Positions
	spool    *Spool
	lane     *Lane
	versions map[int]*schema.Table
}

// place1 is behind the first rows of a transaction and all before it.
type place1 struct{ txn, rows int }

type modelTxn struct{ version, rows int }

func newLaneModel(t *rapid.T) *laneModel {
	dir, err := os.MkdirTemp("", "spool")
	if err != nil {
		t.Fatal(err)
	}
	m := &laneModel{t: t, dir: dir, version: 1, versions: map[int]*schema.Table{}, last: position(0)}
	m.limits = Limits{
		Lane: rapid.SampledFrom([]int64{0, 60, 300, 2000}).Draw(t, "lane bytes"),
		Max:  rapid.SampledFrom([]int64{3000, 20_000}).Draw(t, "max"),
	}
	m.segment = rapid.SampledFrom([]int64{300, 600, 3000}).Draw(t, "segment bytes")
	m.budget = NewBudget(rapid.SampledFrom([]int64{100, 1000, 5000}).Draw(t, "budget"))
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *laneModel) close() {
	m.spool.Close()
	os.RemoveAll(m.dir)
}

func position(txn int) connector.Positions {
	return connector.Positions{"": connector.Position(fmt.Sprintf("server/%06d", txn))}
}

func txnOf(p connector.Position) int {
	n, err := strconv.Atoi(strings.TrimPrefix(string(p), "server/"))
	if err != nil {
		panic(err)
	}
	return n
}

func comparePositions(a, b connector.Position) (int, error) { return txnOf(a) - txnOf(b), nil }

func (m *laneModel) open() (err error) {
	if m.spool, err = OpenSpool(m.dir, "mirror-1", m.listed, m.budget, m.limits, comparePositions); err != nil {
		return err
	}
	m.spool.segment = m.segment
	start := position(m.floor)
	m.lane, err = m.spool.Open("16385", start)
	m.read1, m.seen, m.last = place1{txn: m.floor}, place1{}, start
	return err
}

// write commits transactions at the source, now and then under a new version of the table.
func (m *laneModel) write(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "alter") == 0 {
		m.version++
	}
	for range rapid.IntRange(1, 5).Draw(t, "transactions") {
		m.log = append(m.log, modelTxn{m.version, rapid.SampledFrom([]int{0, 1, 1, 2, 12}).Draw(t, "rows")})
	}
}

func (m *laneModel) table(version int) *schema.Table {
	if m.versions[version] == nil {
		m.versions[version] = &schema.Table{ID: "16385", Version: version, Name: schema.Name{Schema: "public", Table: "a"}}
	}
	return m.versions[version]
}

// read has the reader append one piece of the log, and perhaps the Progress behind it.
func (m *laneModel) read(t *rapid.T) {
	f := &connector.Frames{}
	at := m.read1
	for limit := rapid.IntRange(1, 8).Draw(t, "piece"); limit > 0 && at.txn < len(m.log); {
		txn := m.log[at.txn]
		if f.Table != nil && f.Table.Version != txn.version {
			break
		}
		if n := min(limit, txn.rows-at.rows); n > 0 {
			f.Table = m.table(txn.version)
			f.Commits = append(f.Commits, connector.Commit{
				Rows: n, First: int64(at.rows), Position: position(at.txn + 1)[""], Tag: uint64(at.txn), Time: time.Unix(int64(at.txn), 5),
			})
			for i := range n {
				text := rowOf(at.txn, at.rows+i)
				f.Data = append(binary.BigEndian.AppendUint32(f.Data, uint32(len(text))), text...)
			}
			at.rows += n
			limit -= n
		}
		if at.rows == txn.rows {
			at = place1{txn: at.txn + 1}
		}
	}
	if f.Table != nil {
		err := m.lane.Append(Item{Frames: f, Before: m.last})
		if _, full := errors.AsType[*FullError](err); full {
			return // the reader waits, and tries again
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	m.read1 = at
	if at.rows == 0 && rapid.Bool().Draw(t, "progress") {
		m.last = position(at.txn)
	}
}

func rowOf(txn, row int) string { return fmt.Sprintf("%d.%d", txn, row) }

func (m *laneModel) apply(t *rapid.T) {
	if err := m.applyOnce(rapid.IntRange(1, 20).Draw(t, "rows"), rapid.Int64Range(1, 600).Draw(t, "bytes")); err != nil {
		t.Fatal(err)
	}
}

// applyOnce takes a batch, leaves out what the sink has, and puts the rest there.
func (m *laneModel) applyOnce(rows int, bytes int64) error {
	items, err := m.lane.Take(rows, bytes, time.Minute)
	if err != nil {
		return err
	}
	for _, it := range items {
		if it.Frames.Table.Version != items[0].Frames.Table.Version {
			m.t.Fatal("a batch of two versions")
		}
		m.applyFrames(it.Frames)
	}
	m.lane.Done()
	return nil
}

func (m *laneModel) applyFrames(f *connector.Frames) {
	data := f.Data
	for _, c := range f.Commits {
		txn := txnOf(c.Position) - 1
		if f.Table.Version != m.log[txn].version || c.Tag != uint64(txn) || !c.Time.Equal(time.Unix(int64(txn), 5)) {
			m.t.Fatalf("transaction %d: %+v under version %d", txn, c, f.Table.Version)
		}
		for i := range c.Rows {
			n, err := messagesLen(data, 1)
			if err != nil {
				m.t.Fatal(err)
			}
			row := int(c.First) + i
			if got := string(data[4:n]); got != rowOf(txn, row) {
				m.t.Fatalf("row %s stands where %s belongs", got, rowOf(txn, row))
			}
			data = data[n:]
			if txn < m.seen.txn || txn == m.seen.txn && row < m.seen.rows {
				m.t.Fatalf("row %s comes twice, or behind its place", rowOf(txn, row))
			}
			m.seen = place1{txn, row + 1}
			if txn > m.at.txn || txn == m.at.txn && row >= m.at.rows {
				m.sink = append(m.sink, rowOf(txn, row))
				m.at = place1{txn, row + 1}
			}
		}
	}
	if want := m.rows(); len(m.sink) > len(want) || !slices.Equal(m.sink, want[:len(m.sink)]) {
		m.t.Fatalf("the sink holds %v, the log %v", m.sink, want)
	}
}

// rows are those of the whole log.
func (m *laneModel) rows() (all []string) {
	for t, txn := range m.log {
		for r := range txn.rows {
			all = append(all, rowOf(t, r))
		}
	}
	return all
}

func (m *laneModel) back(t *rapid.T) {
	if _, err := m.lane.Take(3, 100, time.Minute); err != nil {
		t.Fatal(err)
	}
	m.lane.Back()
}

func (m *laneModel) sync(t *rapid.T) {
	if err := m.spool.sync(rapid.Bool().Draw(t, "all")); err != nil {
		t.Fatal(err)
	}
}

// saveFloor does what the engine does: what is durable, then the list, then the floor.
func (m *laneModel) saveFloor(t *rapid.T) {
	if rapid.Bool().Draw(t, "sync") {
		m.sync(t)
	}
	last := m.last
	floor := max(txnOf(m.lane.Safe(last)[""]), txnOf(m.lane.Durable(last)[""]))
	list := m.spool.List()
	m.listed = list.Segments
	if rapid.IntRange(0, 3).Draw(t, "crash before files go") > 0 {
		if err := m.spool.Saved(list); err != nil {
			t.Fatal(err)
		}
	}
	m.floor = max(m.floor, floor)
}

// crash loses some of what was not forced to disk, and starts again.
func (m *laneModel) crash(t *rapid.T) {
	for _, seg := range m.lane.segments {
		keep := rapid.Int64Range(seg.synced, seg.size).Draw(t, "bytes kept")
		if seg.synced == 0 && rapid.Bool().Draw(t, "file lost") {
			os.Remove(seg.path)
			continue
		}
		junk := make([]byte, rapid.IntRange(0, 20).Draw(t, "torn"))
		for i := range junk {
			junk[i] = byte(rand.IntN(256))
		}
		if err := errors.Join(os.Truncate(seg.path, keep), appendFile(seg.path, junk)); err != nil {
			t.Fatal(err)
		}
	}
	m.spool.Close()
	if err := m.open(); err != nil {
		t.Fatal(err)
	}
	if m.budget.used != 0 {
		t.Fatalf("%d bytes of memory are taken by empty lanes", m.budget.used)
	}
}

func appendFile(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// drain has everything read and applied.
func (m *laneModel) drain(t *rapid.T) {
	for m.read1.txn < len(m.log) || !m.lane.Empty() {
		m.read(t)
		m.apply(t)
		if rapid.IntRange(0, 4).Draw(t, "save") == 0 {
			m.saveFloor(t)
		}
	}
	if want := m.rows(); !slices.Equal(m.sink, want) {
		t.Fatalf("the sink holds %v, the log %v", m.sink, want)
	}
	if len(m.lane.segments) > 0 || m.lane.Bytes() != 0 || m.budget.used != 0 {
		t.Fatalf("an empty lane takes %d segments and %d bytes (%d of the budget)", len(m.lane.segments), m.lane.Bytes(), m.budget.used)
	}
	for range 2 {
		list := m.spool.List()
		if err := m.spool.Saved(list); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(m.dir, "*", "*"))
	if err != nil || len(files) > 0 || m.spool.Bytes() != 0 {
		t.Fatalf("files %v stay, %d bytes: %v", files, m.spool.Bytes(), err)
	}
}
