package lane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Limits bounds a Spool, in bytes.
type Limits struct {
	SyncEvery time.Duration // how often what was written is forced to disk while the spool is relied on; 0: once a second

	Lane  int64 // memory of a lane beyond which it goes to disk
	Max   int64 // disk of all lanes
	Table int64 // disk of one lane; 0: no limit of its own
	Free  int64 // disk that is left to others, but not more than 5 % of the file system
}

// Segment is a file of the spool as the state lists it: Size bytes of it are on disk for certain.
type Segment struct {
	Table  schema.ID
	Number int
	Size   int64
}

// FullError says that a change has no room: the reader of the log waits, or the table is given up.
type FullError struct {
	Table    schema.ID
	Limit    string // which limit
	OneTable bool   // it is the table's own
}

// Error says which limit was met.
func (e *FullError) Error() string {
	return fmt.Sprintf("spool: no room for changes of the table with id %s: %s", e.Table, e.Limit)
}

const (
	// syncEvery is the default of Limits.SyncEvery.
	syncEvery = time.Second
	// syncBytes is how much may be written before that happens earlier.
	syncBytes = 64 << 20
	// freeEvery is how many bytes are written between two looks at the free space of the disk.
	freeEvery = 8 << 20
)

// Spool is a folder with the lanes of a mirror's tables. One process uses it at a time, which the lock on the state sees
// to. What the list of segments does not name, a Spool does not find again.
type Spool struct {
	dir     string
	budget  *Budget
	limits  Limits
	compare Compare
	segment int64 // bytes after which a segment ends
	space   func(dir string) (free, total int64, err error)
	force   func(*os.File) error
	buffers sync.Pool // *[]byte, to write records

	rounds   atomic.Int64
	unsynced atomic.Int64 // bytes
	due      chan struct{}
	relied   atomic.Bool

	turn sync.Mutex // held by Sync

	mu      sync.Mutex
	lanes   map[schema.ID]*Lane
	found   map[schema.ID][]Segment // listed, and not opened yet
	numbers map[schema.ID]int       // the highest ever used
	bytes   int64                   // on disk
	unseen  int64                   // written since the last look at the disk's free space
	gone    []*segment              // listed, and not needed any more
	freed   chan struct{}           // closed, and made anew, whenever bytes falls
}

// ownerFile names the mirror whose spool the folder is.
const ownerFile = "owner"

// OwnerError says that a folder holds the spool of another mirror, which is left alone.
type OwnerError struct{ Dir, Owner string }

// Error says what to do.
func (e *OwnerError) Error() string {
	return fmt.Sprintf("spool: %s holds changes of the mirror with id %s; give each mirror a folder of its own, or remove this one if that mirror is no more", e.Dir, e.Owner)
}

// OpenSpool opens a folder for the mirror with the id owner, and makes it if need be. What listed does not name is
// removed: nothing relies on it.
func OpenSpool(dir, owner string, listed []Segment, budget *Budget, limits Limits, compare Compare) (*Spool, error) {
	s := &Spool{
		dir: dir, budget: budget, limits: limits, compare: compare, segment: segmentBytes, space: diskSpace, force: (*os.File).Sync, due: make(chan struct{}, 1),
		lanes: map[schema.ID]*Lane{}, found: map[schema.ID][]Segment{}, numbers: map[schema.ID]int{}, freed: make(chan struct{}),
	}
	s.buffers.New = func() any { return new([]byte) }
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: make folder: %w", err)
	}
	keep := map[string]bool{}
	for _, seg := range listed {
		s.found[seg.Table] = append(s.found[seg.Table], seg)
		s.numbers[seg.Table] = max(s.numbers[seg.Table], seg.Number)
		s.bytes += seg.Size
		keep[s.path(seg.Table, seg.Number)] = true
	}
	for _, segs := range s.found {
		slices.SortFunc(segs, func(a, b Segment) int { return a.Number - b.Number })
	}
	if err := s.own(owner); err != nil {
		return nil, err
	}
	if err := s.sweep(keep); err != nil {
		return nil, fmt.Errorf("spool: remove what is not needed: %w", err)
	}
	return s, nil
}

// own makes sure that the folder is this mirror's. One in which another has left nothing is taken over.
func (s *Spool) own(owner string) error {
	path := filepath.Join(s.dir, ownerFile)
	text, err := os.ReadFile(path)
	switch {
	case err == nil && string(text) == owner:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("spool: read whose folder it is: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(s.dir, "*", "*"+segmentSuffix))
	if err == nil && len(files) > 0 {
		return &OwnerError{s.dir, string(text)}
	}
	if err == nil {
		err = os.WriteFile(path, []byte(owner), 0o600)
	}
	if err != nil {
		return fmt.Errorf("spool: write whose folder it is: %w", err)
	}
	return nil
}

// RemoveSpool removes the folder of the mirror with the id owner, or what of it is ours. Another mirror's is left alone.
func RemoveSpool(dir, owner string) error {
	path := filepath.Join(dir, ownerFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(text) != owner {
		return nil
	}
	if err == nil {
		err = (&Spool{dir: dir}).sweep(nil)
	}
	if err == nil {
		err = removeFile(path)
	}
	if err != nil {
		return fmt.Errorf("spool: remove: %w", err)
	}
	_ = os.Remove(dir) // fails, as it should, where something is left
	return nil
}

// sweep removes the segments, and the folders without any, that are not to be kept.
func (s *Spool) sweep(keep map[string]bool) error {
	folders, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, folder := range folders {
		path := filepath.Join(s.dir, folder.Name())
		files, err := os.ReadDir(path)
		if err != nil {
			continue // not ours
		}
		for _, f := range files {
			file := filepath.Join(path, f.Name())
			if strings.HasSuffix(file, segmentSuffix) && !keep[file] {
				if err := removeFile(file); err != nil {
					return err
				}
			}
		}
		_ = os.Remove(path) // fails, as it should, where something is left
	}
	return nil
}

// Open returns the lane of a table with what the list names of it, for a log that is delivered from start on. A
// *DamagedError says that not all of it is there: Forget it then, and the table needs a new copy.
func (s *Spool) Open(id schema.ID, start connector.Positions) (*Lane, error) {
	l := &Lane{id: id, budget: s.budget, spool: s, ends: map[string]Run{}}
	s.mu.Lock()
	found := s.found[id]
	s.mu.Unlock()
	if err := l.recover(found); err != nil {
		l.closeFiles()
		return nil, err
	}
	if err := l.again.expect(start, l.ends, s.compare); err != nil {
		l.closeFiles()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, id)
	s.lanes[id] = l
	return l, nil
}

// Ends returns the runs with which the lane's spool ends, one for each part of the log, as far as they are on disk for
// certain. nil: there is nothing of it in the spool.
func (l *Lane) Ends() []Run {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segments) == 0 {
		return nil
	}
	return sortedRuns(l.onDisk)
}

// recover takes up the segments of an earlier process.
func (l *Lane) recover(found []Segment) error {
	for i, f := range found {
		seg := &segment{lane: l.id, number: f.Number, path: l.spool.path(l.id, f.Number), synced: f.Size, size: f.Size, named: true, listed: true, old: true}
		l.segments = append(l.segments, seg)
		if i > 0 && f.Number != found[i-1].Number+1 {
			return damaged(seg, 0, fmt.Errorf("the one before it is missing: %w", fs.ErrNotExist))
		}
		head, err := l.recoverSegment(seg)
		if err != nil {
			return err
		}
		if i == len(found)-1 {
			if err := l.findEnds(seg, head); err != nil {
				return err
			}
		}
	}
	if len(l.segments) == 0 {
		return nil
	}
	l.onDisk = maps.Clone(l.ends)
	l.cursor = place{l.segments[0], l.segments[0].start}
	if !l.unread() {
		return nil
	}
	r, err := l.readerAt(l.cursor, nil)
	if err != nil {
		return err
	}
	l.reader = nil // what it reads now is read again
	r.extend(l.cursor.segment.size)
	first, off, err := r.next()
	if err != nil {
		return damaged(l.cursor.segment, off, err)
	}
	l.before, l.since = first.Before, first.time()
	return nil
}

// recoverSegment checks that a segment is there and whose it is, and cuts off what came behind the bytes that are on disk
// for certain.
func (l *Lane) recoverSegment(seg *segment) (segmentHeader, error) {
	info, err := os.Stat(seg.path)
	if err != nil {
		return segmentHeader{}, damaged(seg, 0, err)
	}
	if info.Size() < seg.size {
		return segmentHeader{}, damaged(seg, info.Size(), errShort)
	}
	if info.Size() > seg.size {
		if err := os.Truncate(seg.path, seg.size); err != nil {
			return segmentHeader{}, fmt.Errorf("spool: cut %s: %w", seg.path, err)
		}
	}
	file, err := seg.open()
	if err != nil {
		return segmentHeader{}, damaged(seg, 0, err)
	}
	r := newSegmentReader(file, 0, nil)
	r.extend(seg.size)
	head, err := r.readHead(seg.path)
	if _, newer := errors.AsType[*FormatError](err); newer {
		return head, err
	}
	if err == nil && (head.Table != l.id || head.Number != seg.number) {
		err = errForeign
	}
	if err != nil {
		return head, damaged(seg, r.off, err)
	}
	seg.start = r.off
	return head, nil
}

// findEnds reads the whole last segment for the runs with which the spool ends.
func (l *Lane) findEnds(last *segment, head segmentHeader) error {
	for _, run := range head.Ends {
		l.ends[run.Part] = run
	}
	r := newSegmentReader(last.file, last.start, nil)
	r.extend(last.size)
	for {
		it, off, err := r.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return damaged(last, off, err)
		}
		if it.Frames == nil {
			continue
		}
		for _, c := range it.Frames.Commits {
			l.ends[c.Part] = runOf(c)
		}
	}
}

// Forget throws away what the list names of a table that is not opened.
func (s *Spool) Forget(id schema.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.found[id] {
		s.gone = append(s.gone, &segment{lane: id, number: f.Number, path: s.path(id, f.Number), size: f.Size, listed: true, gone: true})
	}
	delete(s.found, id)
}

// Unopened returns the tables that the list names and that were not opened or forgotten.
func (s *Spool) Unopened() []schema.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.found))
}

// Rely says whether the spool is to be durable: then Run forces what is written to disk, and what has been in memory for
// long is written.
func (s *Spool) Rely(on bool) { s.relied.Store(on) }

// Run keeps the spool durable while it is relied on, until ctx ends. It is the only goroutine that does, for all lanes.
func (s *Spool) Run(ctx context.Context) error {
	tick := time.NewTicker(cmp.Or(s.limits.SyncEvery, syncEvery))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.due:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !s.relied.Load() {
			continue
		}
		if err := s.sync(false); err != nil {
			return err
		}
	}
}

// Sync writes what is in memory alone, as far as there is room, and forces all to disk.
func (s *Spool) Sync() error { return s.sync(true) }

func (s *Spool) sync(all bool) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.unsynced.Store(0)
	round := int(s.rounds.Add(1))
	for _, l := range s.open() {
		if err := l.sync(round, all); err != nil {
			return fmt.Errorf("spool: force the changes of the table with id %s to disk: %w", l.id, err)
		}
	}
	return nil
}

func (s *Spool) open() []*Lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.lanes))
}

// errNotForced is the end of a lane of which a sync failed: the system may have forgotten what it could not write, and a
// second sync would not tell.
var errNotForced = errors.New("an earlier attempt failed")

// sync forces a lane's records to disk. What is in memory alone is written first if it was there in an earlier round.
func (l *Lane) sync(round int, all bool) error {
	l.mu.Lock()
	if waits := len(l.items) > l.filed; waits && (all || l.items[l.filed].round < round-1) {
		err := l.fileTail()
		if _, full := errors.AsType[*FullError](err); err != nil && !full {
			l.mu.Unlock()
			return err
		}
	}
	if l.syncing.any {
		l.mu.Unlock()
		return errNotForced
	}
	if !l.dirty.any {
		l.mu.Unlock()
		return nil
	}
	l.syncing, l.dirty = l.dirty, unsynced{}
	ends := maps.Clone(l.ends)
	var ahead []stretch
	for _, seg := range l.segments {
		if seg.synced < seg.size {
			ahead = append(ahead, stretch{segment: seg, end: seg.size})
		}
	}
	l.mu.Unlock()
	for _, st := range ahead {
		if err := l.syncSegment(st.segment); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, st := range ahead {
		st.segment.synced, st.segment.named = st.end, true
	}
	if l.syncing.any {
		l.syncing, l.onDisk = unsynced{}, ends
	}
	return nil
}

func (l *Lane) syncSegment(seg *segment) error {
	err := l.spool.force(seg.file)
	l.mu.Lock()
	named, gone := seg.named, seg.gone
	l.mu.Unlock()
	if gone {
		return nil
	}
	if err != nil || named {
		return err
	}
	return errors.Join(syncFolder(l.spool.folder(l.id)), syncFolder(l.spool.dir))
}

func syncFolder(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// List is the segments that are on disk for certain. It is made durable before anything relies on it, and then Saved.
type List struct {
	Segments []Segment
	gone     []*segment // not in it, and perhaps in the one that is saved now
}

// List returns the segments to be saved. It holds at least what Durable counted on before the call, and what is not
// opened yet.
func (s *Spool) List() List {
	s.mu.Lock()
	lanes := slices.Collect(maps.Values(s.lanes)) // at one time with found: a lane that is opened goes from there to here
	list := List{gone: slices.Clone(s.gone)}
	for _, found := range s.found {
		list.Segments = append(list.Segments, found...)
	}
	s.mu.Unlock()
	for _, l := range lanes {
		l.mu.Lock()
		for _, seg := range l.segments {
			if seg.synced <= seg.start {
				break
			}
			seg.listed = true
			list.Segments = append(list.Segments, Segment{Table: l.id, Number: seg.number, Size: seg.synced})
		}
		l.mu.Unlock()
	}
	slices.SortFunc(list.Segments, func(a, b Segment) int {
		if a.Table != b.Table {
			return strings.Compare(string(a.Table), string(b.Table))
		}
		return a.Number - b.Number
	})
	return list
}

// Saved removes the files that a list which is durable now does not name any more.
func (s *Spool) Saved(list List) error {
	s.mu.Lock()
	s.gone = slices.DeleteFunc(s.gone, func(seg *segment) bool { return slices.Contains(list.gone, seg) })
	s.mu.Unlock()
	for _, seg := range list.gone {
		if err := s.remove(seg); err != nil {
			return fmt.Errorf("spool: remove what was applied: %w", err)
		}
	}
	return nil
}

// retire takes note that a segment is not needed. Its file stays while a list may name it.
func (s *Spool) retire(seg *segment) {
	seg.gone = true
	if seg.file != nil {
		seg.file.Close()
	}
	if seg.listed {
		s.mu.Lock()
		s.gone = append(s.gone, seg)
		s.mu.Unlock()
		return
	}
	_ = s.remove(seg) // what stays is swept up at the next start
}

func (s *Spool) remove(seg *segment) error {
	err := removeFile(seg.path)
	if err == nil {
		s.grow(-seg.size)
	}
	return err
}

// Close closes the files of all lanes, which must not be used any more. What was saved is found again.
func (s *Spool) Close() error {
	for _, l := range s.open() {
		l.taking.Lock()
		l.mu.Lock()
		l.budget.add(-l.bytes)
		l.bytes = 0
		l.closeFiles()
		l.mu.Unlock()
		l.taking.Unlock()
	}
	return nil
}

func (l *Lane) closeFiles() {
	for _, seg := range l.segments {
		if seg.file != nil {
			seg.file.Close()
		}
	}
}

// Bytes returns what the spool takes on disk.
func (s *Spool) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Freed returns a channel that is closed when the spool next takes less than it did. To be asked for before an Append
// that may find no room.
func (s *Spool) Freed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freed
}

func (s *Spool) grow(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
	if n < 0 {
		close(s.freed)
		s.freed = make(chan struct{})
	}
}

// reserve takes room on disk for n bytes of a lane, whose mu the caller holds.
func (s *Spool) reserve(l *Lane, n int64) error {
	if s.limits.Table > 0 && l.spoolBytes()+n > s.limits.Table {
		return &FullError{Table: l.id, Limit: fmt.Sprintf("the table may take %d bytes", s.limits.Table), OneTable: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+n > s.limits.Max {
		return &FullError{Table: l.id, Limit: fmt.Sprintf("all tables may take %d bytes", s.limits.Max)}
	}
	if s.unseen -= n; s.unseen < 0 {
		free, total, err := s.space(s.dir)
		if err != nil {
			return fmt.Errorf("spool: look at the free space of the disk: %w", err)
		}
		if left := min(s.limits.Free, total/20); free-n < left {
			return &FullError{Table: l.id, Limit: fmt.Sprintf("the disk has %d bytes left, %d are left to others", free, left)}
		}
		s.unseen = freeEvery
	}
	s.bytes += n
	if s.unsynced.Add(n) > syncBytes {
		select {
		case s.due <- struct{}{}:
		default: // it is due already
		}
	}
	return nil
}

func (s *Spool) round() int { return int(s.rounds.Load()) }

// nextNumber returns the number of a table's next segment.
func (s *Spool) nextNumber(id schema.ID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.numbers[id] + 1
}

func (s *Spool) numberUsed(id schema.ID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.numbers[id] = n
}

// relieve makes room in memory: the lane that holds most of what no applier has goes to disk.
func (s *Spool) relieve() {
	var most *Lane
	var size int64
	for _, l := range s.open() {
		l.mu.Lock()
		n := l.bytes - l.takenBytes
		l.mu.Unlock()
		if n > size {
			most, size = l, n
		}
	}
	if most != nil {
		_, _ = most.release() // what it cannot write stays in memory, and the next Append says why
	}
}
