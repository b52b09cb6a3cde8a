package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/schema"
)

// unfinished is a copy that was begun: what of it is in the sink, and what is missing. Its plan is in the sink as long as
// the table's lane, or the log from where a session begins to read, holds every change since the copy began, and no
// longer: a copy whose plan is found there may be gone on with. All but at and layout is under the table's mu.
type unfinished struct {
	at        apply.Checkpoint // as its entry says
	layout    string           // of the table, when the copy began
	chunks    int              // of the whole copy
	missing   []connector.Chunk
	rows      int64 // of the chunks that are in the sink
	fruitless int   // snapshots in a row under which no chunk was completed
	progress  bool  // under the snapshot at hand one was
}

const (
	// planFormat is the version of the text of a copy's plan. A newer one is refused.
	planFormat = 1
	// planBytes is the size, about, of one entry of a plan, and of the commit that writes it.
	planBytes = 64 << 10
	// fruitlessMost is how many snapshots in a row may bring an unfinished copy no further before it begins anew.
	fruitlessMost = 3

	chunkPrefix = "chunk/"
	planPrefix  = "copy/"
)

// chunkKey is the key of the entry that says, from the transaction on that loaded it, that a chunk of the copy under way
// is complete. Its value is the number of its rows.
func chunkKey(id schema.ID, chunk int) string { return fmt.Sprintf("%s%s/%d", chunkPrefix, id, chunk) }

// planKey is the key of a piece of the plan of the copy under way.
func planKey(id schema.ID, piece int) string { return fmt.Sprintf("%s%s/%d", planPrefix, id, piece) }

// copyEntryOf returns the table of an entry of a copy under way: of its plan, or of a chunk.
func copyEntryOf(key string) (schema.ID, bool) {
	for _, prefix := range []string{chunkPrefix, planPrefix} {
		if text, ok := strings.CutPrefix(key, prefix); ok {
			return schema.ID(text[:max(strings.LastIndexByte(text, '/'), 0)]), true
		}
	}
	return "", false
}

// planPiece is the entry of a piece of a copy's plan. A plan is whole if all of its pieces are there.
type planPiece struct {
	Format int         `json:"v"`
	Copy   int         `json:"copy"`
	Layout string      `json:"layout"`
	Of     int         `json:"of"` // pieces
	Chunks []planChunk `json:"chunks"`
}

type planChunk struct {
	ID   int    `json:"id"`
	Rows int64  `json:"rows"`
	Spec string `json:"spec"`
}

// planPieces returns the entries that keep a plan.
func planPieces(c *unfinished, chunks []connector.Chunk) []string {
	var pieces []planPiece
	size := planBytes
	for _, chunk := range chunks {
		if size >= planBytes {
			pieces, size = append(pieces, planPiece{Format: planFormat, Copy: c.at.Copy, Layout: c.layout}), 0
		}
		last := &pieces[len(pieces)-1]
		last.Chunks = append(last.Chunks, planChunk{chunk.ID, chunk.Rows, chunk.Spec})
		size += len(chunk.Spec) + len(`{"id":12345,"rows":1234567,"spec":""},`)
	}
	texts := make([]string, len(pieces))
	for i := range pieces {
		pieces[i].Of = len(pieces)
		text, err := json.Marshal(&pieces[i])
		if err != nil {
			panic("mirror: a plan cannot be written: " + err.Error()) // it holds text and numbers only
		}
		texts[i] = string(text)
	}
	return texts
}

// readUnfinished returns the copy that the entries of a table say was begun, nil if its plan is not whole.
func readUnfinished(id schema.ID, at *apply.Checkpoint, entries map[string]string) (*unfinished, error) {
	c := &unfinished{at: *at}
	for piece, of := 0, 1; piece < of; piece++ {
		text := entries[planKey(id, piece)]
		if text == "" {
			return nil, nil
		}
		var p planPiece
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			return nil, fmt.Errorf("read the plan of a copy: %w", err)
		}
		if p.Format != planFormat {
			return nil, fmt.Errorf("plan of a copy of format %d, this version knows %d: use the version of sluice that wrote it, or a newer one", p.Format, planFormat)
		}
		if p.Copy != at.Copy {
			return nil, nil
		}
		of, c.layout = p.Of, p.Layout
		for _, chunk := range p.Chunks {
			c.chunks++
			loaded := entries[chunkKey(id, chunk.ID)]
			if loaded == "" {
				c.missing = append(c.missing, connector.Chunk{ID: chunk.ID, Rows: chunk.Rows, Spec: chunk.Spec})
				continue
			}
			rows, err := strconv.ParseInt(loaded, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("read the rows of a chunk: %w", err)
			}
			c.rows += rows
		}
	}
	return c, nil
}

// mayConverge reports whether the rows of a copy of t may be of several moments: changes of a keyed table in its current
// state can be replayed over newer rows, and come to the same in the end. A history would count changes twice, rows
// without a key cannot be told apart, and where rows are held against each other by more than the key those of two
// moments need not fit together.
func (s *session) mayConverge(t *connector.Target) bool {
	_, finds := s.source.(connector.Finder)
	ownKey := t.Key == nil || slices.Equal(t.Key, t.Table.KeyNames())
	return finds && len(t.Table.Key) > 0 && ownKey && !t.History && !t.SoftDelete && !t.UniqueBeyondKey
}

// planCopy cuts the table into chunks, and keeps the plan if the copy may be gone on with.
func (s *session) planCopy(ctx context.Context, t *table, snap connector.Snapshot, at apply.Checkpoint) (*unfinished, error) {
	chunks, err := snap.Chunks(ctx, s.chunkRows(t.planned.table))
	if err != nil {
		return nil, err
	}
	c := &unfinished{at: at, layout: snap.Layout(), chunks: len(chunks), missing: slices.Clone(chunks)}
	if c.layout == "" || len(chunks) < 2 || !s.mayConverge(t.planned.target) {
		return c, nil
	}
	return c, s.keepPlan(ctx, t, c, chunks)
}

// keepPlan makes the plan of a copy durable, so that the copy may be gone on with, unless changes of its table were given
// up since the copy began. Meanwhile they are not.
func (s *session) keepPlan(ctx context.Context, t *table, c *unfinished, chunks []connector.Chunk) error {
	if err := t.opening.Acquire(ctx, 1); err != nil {
		return err
	}
	defer t.opening.Release(1)
	if t.isOutrun() {
		return nil
	}
	for i, text := range planPieces(c, chunks) {
		key := planKey(t.id, i)
		if err := s.commit(ctx, map[string]string{key: text}); err != nil {
			return err
		}
		t.mu.Lock()
		t.copyKeys = append(t.copyKeys, key)
		t.mu.Unlock()
	}
	t.mu.Lock()
	t.unfinished = c
	t.mu.Unlock()
	return nil
}

// carryOn goes on with an unfinished copy under a new snapshot, after which the log's end was at until. It returns nil if
// the copy is to begin anew.
func (s *session) carryOn(ctx context.Context, t *table, snap connector.Snapshot, until connector.Positions) (*unfinished, error) {
	t.mu.Lock()
	c := t.unfinished
	target, settings, version := *t.planned.target, t.planned.settings, t.planned.table
	t.mu.Unlock()
	if c == nil || len(c.missing) == c.chunks || c.fruitless == fruitlessMost || c.layout != snap.Layout() || !s.mayConverge(&target) ||
		c.at.Settings != settingsOf(&target, settings) || c.at.Fingerprint != versionOf(version) {
		return nil, nil
	}
	target.Copy = c.at.Copy
	c.at.Overlap = until[c.at.Part]
	if err := s.commit(ctx, map[string]string{apply.Key(t.id): c.at.String()}); err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.planned.target = &target
	c.progress = false
	c.fruitless++
	missing := len(c.missing)
	t.mu.Unlock()
	s.Log.Info("copy goes on under a new snapshot", "table", t.name().String(), "missing", missing, "chunks", c.chunks)
	s.event(ctx, t.name(), "copy_resumed", fmt.Sprintf("%d of %d chunks are missing", missing, c.chunks))
	return c, nil
}

// take returns a chunk that is missing, and whether there are more.
func (t *table) take(c *unfinished) (chunk connector.Chunk, ok, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(c.missing) == 0 {
		return chunk, false, false
	}
	chunk, c.missing = c.missing[0], c.missing[1:]
	return chunk, true, len(c.missing) > 0
}

// putBack returns a chunk that was taken and could not be loaded.
func (t *table) putBack(c *unfinished, chunk connector.Chunk) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.missing = append(c.missing, chunk)
}

// loaded takes note of a chunk that is in the sink, under the key of its entry, and of its bytes in memory.
func (t *table) loaded(c *unfinished, key string, rows, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.copyKeys = append(t.copyKeys, key)
	t.total.rowsCopied += rows
	t.total.bytesCopied += bytes
	t.total.copied += rows
	c.rows += rows
	c.progress, c.fruitless = true, 0
}

// progressed reports whether a chunk of the unfinished copy was completed under the last snapshot.
func (t *table) progressed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unfinished != nil && t.unfinished.progress
}

// lacks returns how many chunks of a copy are missing.
func (t *table) lacks(c *unfinished) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(c.missing)
}

// goesOn reports whether the copy under way may go on under another snapshot.
func (t *table) goesOn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unfinished != nil
}

// deletions returns what deletes the entries of the last copy begun, which cannot be gone on with after that.
func (t *table) deletions() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries := map[string]string{}
	for _, key := range t.copyKeys {
		entries[key] = ""
	}
	return entries
}

// deleted takes note of entries that are durable, among them those of deletions.
func (t *table) deleted(entries map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.copyKeys = slices.DeleteFunc(t.copyKeys, func(key string) bool {
		text, ok := entries[key]
		return ok && text == ""
	})
	t.unfinished = nil
}

// abandon makes it durable that the copy under way cannot be gone on with, before changes of its table are given up.
func (s *session) abandon(ctx context.Context, t *table) error {
	if !t.goesOn() {
		return nil
	}
	entries := t.deletions()
	if err := s.commit(ctx, entries); err != nil {
		return err
	}
	t.deleted(entries)
	return nil
}

// takeUpCopy opens the lane of a table whose unfinished copy goes on when a chunk reader is free. It says why that cannot
// be, if changes were lost.
func (s *session) takeUpCopy(ctx context.Context, t *table, c *unfinished) (lost string, err error) {
	lost, err = s.openLane(t, &c.at)
	if lost != "" || err != nil {
		return lost, err
	}
	whole, err := s.joinAgain(ctx, t, &c.at)
	switch kind := connector.KindOf(err); {
	case err == nil && whole:
	case err == nil:
		t.log.forget(t)
		return takenOut, nil
	case kind == connector.TableFault, kind == connector.Setup:
		t.log.forget(t)
		return err.Error(), nil
	default:
		return "", err
	}
	t.mu.Lock()
	t.unfinished = c
	t.total.copied = c.rows
	t.mu.Unlock()
	return "", nil
}

// errAged says that a snapshot is older than it may become.
var errAged = errors.New("its snapshot has reached snapshot.max_age")

// aged is the error of a table whose copy must end under the snapshot that it began with, and did not in the time that it
// has.
func (s *session) aged(t *table, c *unfinished) error {
	done := c.chunks - t.lacks(c)
	takes := s.Limits.ViewAge / time.Duration(max(done, 1)) * time.Duration(c.chunks)
	takes = (takes + takes/5).Round(time.Second) // the chunks are not all alike
	return &connector.Error{
		Kind: connector.Setup, System: "mirror", Op: "copy a table", Table: t.name(),
		Err:  fmt.Errorf("%w after %d of %d chunks, and a copy of this kind of table cannot go on under another one", errAged, done, c.chunks),
		Hint: fmt.Sprintf("raise snapshot.max_age to %v or more", takes),
	}
}

// copyEntries returns the keys of the entries of copies, by table.
func copyEntries(entries map[string]string) map[schema.ID][]string {
	keys := map[schema.ID][]string{}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		if id, ok := copyEntryOf(key); ok {
			keys[id] = append(keys[id], key)
		}
	}
	return keys
}
