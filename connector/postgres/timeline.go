package postgres

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
)

// timelines is the history of the server's timeline, as the last Stream opened has read it. The zero value knows none.
type timelines struct {
	mu      sync.RWMutex
	history history
}

// history lists the ancestors of a timeline; each was left for the next one at a byte of the log that both share.
type history struct {
	timeline  uint32
	ancestors map[uint32]LSN // where each was left
}

// readHistory reads the history file of a timeline (TIMELINE_HISTORY; the form is in timeline.c). The first one has none.
func readHistory(ctx context.Context, conn *pgconn.PgConn, timeline uint32) (history, error) {
	h := history{timeline: timeline, ancestors: map[uint32]LSN{}}
	if timeline == 1 {
		return h, nil
	}
	row, err := replicationRow(ctx, conn, fmt.Sprintf("TIMELINE_HISTORY %d", timeline))
	if err != nil {
		return h, err
	}
	if len(row) < 2 {
		return h, fmt.Errorf("TIMELINE_HISTORY %d returned no file", timeline)
	}
	return parseHistory(timeline, row[1])
}

func parseHistory(timeline uint32, file []byte) (history, error) {
	h := history{timeline: timeline, ancestors: map[uint32]LSN{}}
	for lines := bufio.NewScanner(bytes.NewReader(file)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Fields(line) // parent timeline, switch point, reason
		if len(fields) < 2 {
			return h, fmt.Errorf("history of timeline %d: a line has %d fields", timeline, len(fields))
		}
		parent, err := strconv.ParseUint(fields[0], 10, 32)
		if err != nil {
			return h, fmt.Errorf("history of timeline %d: %w", timeline, err)
		}
		lsn, err := ParseLSN(fields[1])
		if err != nil {
			return h, fmt.Errorf("history of timeline %d: %w", timeline, err)
		}
		h.ancestors[uint32(parent)] = lsn
	}
	return h, nil
}

// contains reports whether p is a point of this history: of the timeline itself, or of an ancestor before it was left.
func (h history) contains(p position) bool {
	if p.timeline == h.timeline {
		return true
	}
	left, ok := h.ancestors[p.timeline]
	return ok && p.lsn <= left
}

// Compare orders two Positions by their place in the log, across timelines along the history of the server's own.
func (s *Source) Compare(a, b connector.Position) (int, error) {
	pa, err := parsePosition(a)
	if err != nil {
		return 0, &connector.Error{System: sourceSystem, Op: "compare positions", Err: err}
	}
	pb, err := parsePosition(b)
	if err != nil {
		return 0, &connector.Error{System: sourceSystem, Op: "compare positions", Err: err}
	}
	if pa.system != pb.system {
		return 0, s.noOrder(b, fmt.Errorf("%s is of another server", a))
	}
	if pa.timeline != pb.timeline {
		s.timelines.mu.RLock()
		h := s.timelines.history
		s.timelines.mu.RUnlock()
		if !h.contains(pa) || !h.contains(pb) {
			return 0, s.noOrder(b, fmt.Errorf("%s is of another timeline, and the server's history (timeline %d) does not lead through both", a, h.timeline))
		}
	}
	switch {
	case pa.lsn < pb.lsn:
		return -1, nil
	case pa.lsn > pb.lsn:
		return 1, nil
	}
	return 0, nil
}

func (s *Source) noOrder(at connector.Position, why error) error {
	return &connector.Error{Kind: connector.Gap, System: sourceSystem, Op: "compare positions", Position: at, Err: &connector.OtherHistoryError{Err: why}, Hint: hintGap}
}

func (s *Source) setHistory(h history) {
	s.timelines.mu.Lock()
	s.timelines.history = h
	s.timelines.mu.Unlock()
}
