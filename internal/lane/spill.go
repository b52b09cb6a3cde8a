package lane

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluicehq/sluice/schema"
)

// writeBytes is how many bytes of records are written at once.
const writeBytes = 1 << 20

// unread reports whether there are records to read back.
func (l *Lane) unread() bool {
	if l.cursor.segment == nil {
		return false
	}
	for l.cursor.off == l.cursor.segment.size {
		next := l.after(l.cursor.segment)
		if next == nil {
			return false
		}
		l.cursor = place{next, next.start}
	}
	return true
}

// after returns the segment behind seg, nil if that is the last.
func (l *Lane) after(seg *segment) *segment {
	i := slices.Index(l.segments, seg)
	if i+1 == len(l.segments) {
		return nil
	}
	return l.segments[i+1]
}

// fileTail writes the items that are in memory alone. They stay there too.
func (l *Lane) fileTail() error {
	if len(l.items) == l.filed {
		return nil
	}
	err := l.write(l.items[l.filed:])
	for l.filed < len(l.items) && l.items[l.filed].place.segment != nil {
		l.filed++
	}
	if l.filed > 0 && l.writing != nil {
		l.cursor = place{l.writing, l.writing.size} // all records are those of items
	}
	return err
}

// write appends items to the spool and notes where they are. After an error the first ones may be there.
func (l *Lane) write(items []Item) error {
	for len(items) > 0 {
		seg, err := l.segmentFor(&items[0])
		if err != nil {
			return err
		}
		n, err := l.writeSome(seg, items)
		if err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}

// writeSome writes as many of items as belong into one write to this segment, at least one.
func (l *Lane) writeSome(seg *segment, items []Item) (n int, err error) {
	buffer := l.spool.buffers.Get().(*[]byte)
	defer l.spool.buffers.Put(buffer)
	b := (*buffer)[:0]
	table := seg.table
	var offs []int64
	for n < len(items) && len(b) < writeBytes && seg.takes(&items[n], table, int64(len(b)), l.spool.segment) {
		it := &items[n]
		if it.Frames != nil && table == nil {
			table = it.Frames.Table
			if b, err = appendJSON(b, recordTable, table); err != nil {
				return 0, err
			}
		}
		offs = append(offs, seg.size+int64(len(b)))
		if b, err = appendItem(b, it); err != nil {
			return 0, fmt.Errorf("spool: write changes of the table with id %s: %w", l.id, err)
		}
		n++
	}
	if cap(b) <= 4*writeBytes {
		*buffer = b
	}
	if err := l.spool.reserve(l, int64(len(b))); err != nil {
		return 0, err
	}
	if _, err := seg.file.WriteAt(b, seg.size); err != nil {
		l.spool.grow(-int64(len(b)))
		return 0, l.spool.writeError(l, err)
	}
	seg.size += int64(len(b))
	seg.table = table
	for i := range n {
		items[i].place = place{seg, offs[i]}
		l.written(&items[i])
	}
	return n, nil
}

// written accounts for a record.
func (l *Lane) written(it *Item) {
	if !l.dirty.any {
		l.dirty = unsynced{true, it.Before}
	}
	if it.Frames == nil {
		return
	}
	for _, c := range it.Frames.Commits {
		l.ends[c.Part] = runOf(c)
	}
}

// takes reports whether an item may be written to the segment behind so many bytes that are going there, with table the
// one that frames have there. Its first record it takes however long its head is.
func (s *segment) takes(it *Item, table *schema.Table, going, limit int64) bool {
	if end := s.size + going; end >= limit && end > s.start {
		return false
	}
	return it.Frames == nil || table == nil || table == it.Frames.Table || table.Version == it.Frames.Table.Version
}

// segmentFor returns the segment that an item is to be written to, a new one if need be.
func (l *Lane) segmentFor(it *Item) (*segment, error) {
	if l.writing != nil && l.writing.takes(it, l.writing.table, 0, l.spool.segment) {
		return l.writing, nil
	}
	seg, err := l.spool.create(l)
	if err != nil {
		return nil, err
	}
	l.segments = append(l.segments, seg)
	l.writing = seg
	if l.cursor.segment == nil {
		l.cursor = place{seg, seg.start}
	}
	return seg, nil
}

// create begins a segment of a lane. The lane is not changed.
func (s *Spool) create(l *Lane) (*segment, error) {
	if err := os.MkdirAll(s.folder(l.id), 0o700); err != nil {
		return nil, s.writeError(l, err)
	}
	seg := &segment{lane: l.id, number: s.nextNumber(l.id)}
	seg.path = s.path(l.id, seg.number)
	head, err := appendHead(nil, segmentHeader{Table: l.id, Number: seg.number, Ends: sortedRuns(l.ends)})
	if err != nil {
		return nil, err
	}
	if err := s.reserve(l, int64(len(head))); err != nil {
		return nil, err
	}
	seg.file, err = os.OpenFile(seg.path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = seg.file.WriteAt(head, 0)
	}
	if err != nil {
		s.grow(-int64(len(head)))
		if seg.file != nil {
			seg.file.Close()
			_ = os.Remove(seg.path) // the error that is returned tells what is wrong
		}
		return nil, s.writeError(l, err)
	}
	s.numberUsed(l.id, seg.number)
	seg.start, seg.size = int64(len(head)), int64(len(head))
	return seg, nil
}

func sortedRuns(ends map[string]Run) []Run {
	return slices.SortedFunc(maps.Values(ends), func(a, b Run) int { return strings.Compare(a.Part, b.Part) })
}

// writeError tells a disk without room from one that is broken.
func (s *Spool) writeError(l *Lane, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &FullError{Table: l.id, Limit: "the disk is full"}
	}
	return fmt.Errorf("spool: write changes of the table with id %s: %w", l.id, err)
}

// readBack reads records until the batch is full, or the memory, or its time is over; at least one. The caller holds taking
// and mu; mu is let go meanwhile, so that the reader of the log need not wait.
func (l *Lane) readBack(b *batch) error {
	from := l.cursor
	var ahead []stretch
	for i := slices.Index(l.segments, from.segment); i < len(l.segments); i++ {
		ahead = append(ahead, stretch{l.segments[i], l.segments[i].size, l.segments[i].table})
	}
	var read []Item
	var size int64
	l.mu.Unlock()
	at, err := l.readSegments(from, ahead, func(it Item) bool {
		read = append(read, it)
		size += it.size
		return b.add(&it) && l.budget.fits(size) && time.Now().Before(b.until)
	})
	l.mu.Lock()
	for _, it := range read {
		l.keep(it)
		l.filed++
		if seg := it.place.segment; seg.old && it.Frames != nil {
			seg.table = it.Frames.Table
		}
	}
	l.cursor = at
	return err
}

// stretch is what is to be read of a segment: up to where, and its table if that is known.
type stretch struct {
	segment *segment
	end     int64
	table   *schema.Table
}

// readSegments hands on items from a place on until yield returns false or ahead is exhausted, and returns the place
// behind the last of them.
func (l *Lane) readSegments(from place, ahead []stretch, yield func(Item) bool) (place, error) {
	at := from
	for _, s := range ahead {
		if at.segment != s.segment {
			at = place{s.segment, s.segment.start}
		}
		r, err := l.readerAt(at, s.table)
		if err != nil {
			return at, err
		}
		r.extend(s.end)
		for {
			it, off, err := r.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				l.reader = nil
				return at, damaged(s.segment, off, err)
			}
			it.Old = s.segment.old
			it.place = place{s.segment, off}
			at.off = r.off
			if !yield(it) {
				return at, nil
			}
		}
		at.off = s.end
	}
	return at, nil
}

func damaged(seg *segment, off int64, err error) error {
	return &DamagedError{Table: seg.lane, File: seg.path, Offset: off, Err: err}
}

// readerAt returns a reader that stands at a place.
func (l *Lane) readerAt(at place, table *schema.Table) (*segmentReader, error) {
	if l.reader != nil && l.reader.segment == at.segment && l.reader.off == at.off {
		return l.reader, nil
	}
	seg := at.segment
	file, err := seg.open()
	if err != nil {
		return nil, damaged(seg, at.off, err)
	}
	l.reader = newSegmentReader(file, at.off, table)
	l.reader.segment = seg
	return l.reader, nil
}

// open opens the file of a segment of an earlier process; those of this one are open.
func (s *segment) open() (*os.File, error) {
	if s.file != nil {
		return s.file, nil
	}
	file, err := os.Open(s.path)
	s.file = file
	return file, err
}

// retire lets those segments go that nothing in the lane needs any more. The caller holds mu.
func (l *Lane) retire() {
	var oldest *segment
	switch {
	case l.filed > 0:
		oldest = l.items[0].place.segment
	case l.unread():
		oldest = l.cursor.segment
	}
	gone := l.segments
	if oldest == nil {
		l.segments, l.writing, l.cursor, l.reader = nil, nil, place{}, nil
		l.dirty, l.syncing = unsynced{}, unsynced{}
	} else {
		i := slices.Index(l.segments, oldest)
		gone, l.segments = l.segments[:i:i], l.segments[i:]
	}
	for _, seg := range gone {
		l.spool.retire(seg)
	}
}

// release frees the memory of the items that no applier has: they are in the spool, or are written now. It returns how
// many bytes that were.
func (l *Lane) release() (freed int64, err error) {
	if !l.taking.TryLock() {
		return 0, nil // an applier reads back
	}
	defer l.taking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	err = l.fileTail()
	if l.filed <= l.taken {
		return 0, err
	}
	if l.filed < len(l.items) { // the spool has no room for all: records to read back may not stand in front of the rest
		return 0, err
	}
	next := &l.items[l.taken]
	l.cursor, l.before, l.since = next.place, next.Before, next.time()
	for _, it := range l.items[l.taken:] {
		freed += it.size
	}
	l.items = slices.Clone(l.items[:l.taken])
	l.filed = len(l.items)
	l.bytes -= freed
	l.budget.add(-freed)
	return freed, err
}

// folder is where a table's segments are. An id may hold any text.
func (s *Spool) folder(id schema.ID) string {
	return filepath.Join(s.dir, folderName(id))
}

func (s *Spool) path(id schema.ID, number int) string {
	return filepath.Join(s.folder(id), fmt.Sprintf("%08d%s", number, segmentSuffix))
}

const segmentSuffix = ".lane"

// folderName writes an id with what a file name may hold.
func folderName(id schema.ID) string {
	var b strings.Builder
	for i := range len(id) {
		c := id[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
