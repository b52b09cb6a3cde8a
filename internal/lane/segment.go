package lane

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/sluicehq/sluice/schema"
)

// segmentBytes is where a segment ends, but for its last record.
const segmentBytes = 64 << 20

// segment is one file of a lane. Its lane's mu guards what changes.
type segment struct {
	lane   schema.ID
	number int
	path   string
	start  int64 // where its records begin, behind the header

	file   *os.File      // open while it is written or read
	size   int64         // written so far
	synced int64         // of it, on disk for certain
	named  bool          // its name is on disk for certain
	listed bool          // the state may hold it in its list
	table  *schema.Table // of its frames; nil: it has none yet, or they were not read yet
	old    bool          // an earlier Spool wrote it
	gone   bool          // nothing in it is needed any more
}

// DamagedError says that what the spool holds of a table cannot be read: the table needs a new copy.
type DamagedError struct {
	Table  schema.ID
	File   string
	Offset int64
	Err    error
}

// Error says where.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("spool: read the changes of the table with id %s: %s, at byte %d: %v", e.Table, e.File, e.Offset, e.Err)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

var (
	errMagic    = errors.New("it is no segment of a spool")
	errChecksum = errors.New("a checksum is wrong")
	errShort    = errors.New("it ends inside a record")
	errForeign  = errors.New("it belongs to another table, or has another number")
)

// FormatError says that a newer version of the program wrote a segment.
type FormatError struct {
	File    string
	Version uint32
}

// Error says what to do.
func (e *FormatError) Error() string {
	return fmt.Sprintf("spool: read %s: format %d, this version knows %d; use the version of sluice that wrote it, or a newer one", e.File, e.Version, segmentFormat)
}

// segmentReader reads one segment from its front. It may be used again when the segment has grown.
type segmentReader struct {
	segment *segment
	window  *fileWindow
	buffer  *bufio.Reader
	off     int64 // of the next record
	table   *schema.Table
	head    [recordHead]byte
}

// fileWindow reads a file from at to end.
type fileWindow struct {
	file    io.ReaderAt
	at, end int64
}

func (w *fileWindow) Read(p []byte) (int, error) {
	if w.at >= w.end {
		return 0, io.EOF
	}
	if int64(len(p)) > w.end-w.at {
		p = p[:w.end-w.at]
	}
	n, err := w.file.ReadAt(p, w.at)
	w.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// readBuffer is how many bytes are read from a segment at once.
const readBuffer = 64 << 10

// newSegmentReader begins at the offset of a record; table is that of the frames in front of it.
func newSegmentReader(file io.ReaderAt, off int64, table *schema.Table) *segmentReader {
	w := &fileWindow{file: file, at: off, end: off}
	return &segmentReader{window: w, buffer: bufio.NewReaderSize(w, readBuffer), off: off, table: table}
}

// extend lets the reader read up to end.
func (r *segmentReader) extend(end int64) { r.window.end = end }

// readHead reads what a segment begins with.
func (r *segmentReader) readHead(path string) (segmentHeader, error) {
	var h segmentHeader
	var fixed [len(segmentMagic) + 4]byte
	if _, err := io.ReadFull(r.buffer, fixed[:]); err != nil {
		return h, shortOr(err)
	}
	if string(fixed[:len(segmentMagic)]) != segmentMagic {
		return h, errMagic
	}
	if v := binary.BigEndian.Uint32(fixed[len(segmentMagic):]); v != segmentFormat {
		return h, &FormatError{File: path, Version: v}
	}
	r.off += int64(len(fixed))
	kind, payload, err := r.record()
	if err != nil {
		return h, err
	}
	if kind != recordHeader || json.Unmarshal(payload, &h) != nil {
		return h, errRecord
	}
	return h, nil
}

// next returns the next item and where its record begins. io.EOF: there is none up to where the reader may read.
func (r *segmentReader) next() (Item, int64, error) {
	for {
		if r.off >= r.window.end {
			return Item{}, r.off, io.EOF
		}
		at := r.off
		kind, payload, err := r.record()
		if err != nil {
			return Item{}, at, err
		}
		if kind != recordTable {
			it, err := decodeItem(kind, payload, r.table)
			return it, at, err
		}
		table := new(schema.Table)
		if err := json.Unmarshal(payload, table); err != nil {
			return Item{}, at, errRecord
		}
		r.table = table
	}
}

// record reads one record and moves behind it.
func (r *segmentReader) record() (kind byte, payload []byte, err error) {
	if _, err := io.ReadFull(r.buffer, r.head[:]); err != nil {
		return 0, nil, shortOr(err)
	}
	n := int64(binary.BigEndian.Uint32(r.head[:]))
	if n == 0 || n > maxRecord {
		return 0, nil, errChecksum
	}
	if n > r.window.end-r.off-recordHead {
		return 0, nil, errShort
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(r.buffer, payload); err != nil {
		return 0, nil, shortOr(err)
	}
	if checksum(r.head[:4], payload) != binary.BigEndian.Uint32(r.head[4:]) {
		return 0, nil, errChecksum
	}
	r.off += recordHead + n
	return payload[0], payload[1:], nil
}

func shortOr(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errShort
	}
	return err
}
