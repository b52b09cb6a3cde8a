package lane

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// A segment is a file of the spool: magic, the version of the format (uint32), and records. A record is the length of its
// payload (uint32), a CRC-32C of the length and the payload (uint32), and the payload, whose first byte says what it is.
// All integers of fixed size are big endian. The first record is the header; a table stands in front of the first frames.
const (
	segmentMagic  = "SLUICESP"
	segmentFormat = 1
	recordHead    = 8
	// maxRecord bounds a record in bytes, far above the largest Frames a stream makes: a longer one is damage.
	maxRecord = 1 << 30

	recordHeader = 'H' // JSON of segmentHeader
	recordTable  = 'T' // JSON of the schema.Table of all frames of the segment
	recordFrames = 'F'
	recordChange = 'C'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentHeader says whose segment it is and what the table's segments before it ended with.
type segmentHeader struct {
	Table  schema.ID `json:"table"`
	Number int       `json:"number"`
	Ends   []Run     `json:"ends,omitempty"`
}

// Run is the end of a run of changes: the first Count row messages of the transaction at Position are in front of it.
type Run struct {
	Part     string             `json:"part,omitempty"`
	Position connector.Position `json:"position"`
	Count    int64              `json:"count"`
	Tag      uint64             `json:"tag,omitempty"`
	Time     time.Time          `json:"time,omitzero"`
}

func runOf(c connector.Commit) Run {
	return Run{Part: c.Part, Position: c.Position, Count: c.First + int64(c.Rows), Tag: c.Tag, Time: c.Time}
}

// appendHead writes what a segment begins with.
func appendHead(b []byte, h segmentHeader) ([]byte, error) {
	b = append(b, segmentMagic...)
	b = binary.BigEndian.AppendUint32(b, segmentFormat)
	return appendJSON(b, recordHeader, h)
}

func appendJSON(b []byte, kind byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return b, err
	}
	b, start := beginRecord(b, kind)
	b = append(b, text...)
	return endRecord(b, start)
}

func beginRecord(b []byte, kind byte) (grown []byte, start int) {
	start = len(b)
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0, kind), start
}

func endRecord(b []byte, start int) ([]byte, error) {
	payload := b[start+recordHead:]
	if len(payload) > maxRecord {
		return b[:start], fmt.Errorf("a record of %d bytes, at most %d can be written", len(payload), maxRecord)
	}
	binary.BigEndian.PutUint32(b[start:], uint32(len(payload)))
	binary.BigEndian.PutUint32(b[start+4:], checksum(b[start:start+4], payload))
	return b, nil
}

func checksum(length, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(length, castagnoli), castagnoli, payload)
}

// appendItem writes an item as one record.
func appendItem(b []byte, it *Item) ([]byte, error) {
	if it.Change != nil {
		b, start := beginRecord(b, recordChange)
		b = appendPositions(b, it.Before)
		b = appendCommits(b, []connector.Commit{it.Change.Commit})
		rewrote := byte(0)
		if it.Change.Rewrote {
			rewrote = 1
		}
		b = append(b, rewrote)
		text, err := json.Marshal(it.Change.Table)
		if err != nil {
			return b[:start], err
		}
		return endRecord(append(b, text...), start)
	}
	b, start := beginRecord(b, recordFrames)
	b = appendPositions(b, it.Before)
	b = appendCommits(b, it.Frames.Commits)
	return endRecord(append(b, it.Frames.Data...), start)
}

func appendPositions(b []byte, ps connector.Positions) []byte {
	b = binary.AppendUvarint(b, uint64(len(ps)))
	for _, part := range slices.Sorted(maps.Keys(ps)) {
		b = appendText(b, part)
		b = appendText(b, string(ps[part]))
	}
	return b
}

// appendCommits writes runs. A text is written as what it shares with the one before it and the rest, since positions of
// one log are long and begin alike.
func appendCommits(b []byte, cs []connector.Commit) []byte {
	b = binary.AppendUvarint(b, uint64(len(cs)))
	var part, position string
	for i := range cs {
		c := &cs[i]
		b = binary.AppendUvarint(b, uint64(c.Rows))
		b = binary.AppendUvarint(b, uint64(c.First))
		b = appendAfter(b, part, c.Part)
		b = appendAfter(b, position, string(c.Position))
		part, position = c.Part, string(c.Position)
		b = binary.AppendUvarint(b, c.Tag)
		b = binary.AppendVarint(b, c.Time.Unix())
		b = binary.AppendUvarint(b, uint64(c.Time.Nanosecond()))
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendAfter(b []byte, before, s string) []byte {
	shared := 0
	for shared < min(len(before), len(s)) && before[shared] == s[shared] {
		shared++
	}
	b = binary.AppendUvarint(b, uint64(shared))
	return appendText(b, s[shared:])
}

// errRecord says that a record's checksum is right and its contents are not: another program wrote it.
var errRecord = errors.New("a record whose contents do not follow the format")

// decodeItem reads the payload of a record of frames or a change, behind its first byte. The frames' Data is a part of
// payload; table is the version they were written under.
func decodeItem(kind byte, payload []byte, table *schema.Table) (Item, error) {
	d := decoder{rest: payload}
	var it Item
	it.Before = d.positions()
	commits := d.commits()
	switch {
	case d.failed:
		return Item{}, errRecord
	case kind == recordFrames && table != nil:
		it.Frames = &connector.Frames{Table: table, Data: d.rest, Commits: commits}
	case kind == recordChange && len(commits) == 1 && len(d.rest) > 0:
		it.Change = &connector.SchemaChange{Commit: commits[0], Rewrote: d.rest[0] != 0}
		if err := json.Unmarshal(d.rest[1:], &it.Change.Table); err != nil || it.Change.Table == nil {
			return Item{}, errRecord
		}
	default:
		return Item{}, errRecord
	}
	it.size = sizeOf(&it)
	return it, nil
}

// decoder reads a payload from its front. Once something was missing it returns zero values.
type decoder struct {
	rest   []byte
	failed bool
	joined []byte // room to put a text together
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	return take(d, v, n)
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	return take(d, v, n)
}

func take[T uint64 | int64](d *decoder, v T, n int) T {
	if d.failed || n <= 0 {
		d.failed = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// number reads a count that an int holds.
func (d *decoder) number() int {
	v := d.uvarint()
	if v > 1<<62 {
		d.failed = true
		return 0
	}
	return int(v)
}

func (d *decoder) bytes() []byte {
	n := d.number()
	if d.failed || n > len(d.rest) {
		d.failed = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) text() string { return string(d.bytes()) }

// after reads a text that was written behind another; equal ones share their memory.
func (d *decoder) after(before string) string {
	shared := d.number()
	end := d.bytes()
	if d.failed || shared > len(before) {
		d.failed = true
		return ""
	}
	if len(end) == 0 {
		return before[:shared]
	}
	d.joined = append(append(d.joined[:0], before[:shared]...), end...)
	return string(d.joined)
}

func (d *decoder) positions() connector.Positions {
	n := d.number()
	if d.failed || n > len(d.rest)/2 {
		d.failed = d.failed || n > 0
		return nil
	}
	ps := make(connector.Positions, n)
	for range n {
		part := d.text()
		ps[part] = connector.Position(d.text())
	}
	return ps
}

// commitMin is the fewest bytes that a run takes.
const commitMin = 9

func (d *decoder) commits() []connector.Commit {
	n := d.number()
	if d.failed || n > len(d.rest)/commitMin {
		d.failed = true
		return nil
	}
	cs := make([]connector.Commit, n)
	var part, position string
	for i := range cs {
		c := &cs[i]
		c.Rows, c.First = d.number(), int64(d.number())
		part = d.after(part)
		position = d.after(position)
		c.Part, c.Position = part, connector.Position(position)
		c.Tag = d.uvarint()
		seconds, nanos := d.varint(), d.number()
		if nanos >= int(time.Second) {
			d.failed = true
		}
		c.Time = time.Unix(seconds, int64(nanos)).UTC()
	}
	return cs
}
