package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/sluicehq/sluice/connector"
)

// tokenVersion begins the text of a snapshot token; a text of another version is refused.
const tokenVersion = "1"

// view is what a snapshot token says: which transactions the snapshot sees. Beyond insert no transaction can be in it,
// which keeps a transaction id that was used again, 2^32 later, apart.
type view struct {
	system uint64
	insert LSN // end of the log just after the snapshot was taken
	xmin   uint64
	xmax   uint64
	active []uint64 // in progress, sorted
}

// token writes the text form: version, system identifier, insert LSN, and pg_current_snapshot()'s own text.
func (v view) token() string {
	active := make([]string, len(v.active))
	for i, x := range v.active {
		active[i] = strconv.FormatUint(x, 10)
	}
	return fmt.Sprintf("%s %d %s %d:%d:%s", tokenVersion, v.system, v.insert, v.xmin, v.xmax, strings.Join(active, ","))
}

func parseToken(token string) (view, error) {
	parts := strings.Split(token, " ")
	if len(parts) != 4 || parts[0] != tokenVersion {
		return view{}, fmt.Errorf("snapshot token %.40q is not of version %s", token, tokenVersion)
	}
	v, err := parseSnapshot(parts[3])
	if err != nil {
		return view{}, err
	}
	if v.system, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return view{}, fmt.Errorf("snapshot token: system identifier: %w", err)
	}
	v.insert, err = ParseLSN(parts[2])
	return v, err
}

// parseSnapshot reads a pg_snapshot: xmin:xmax:active,active,...
func parseSnapshot(s string) (view, error) {
	var v view
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return view{}, errors.New("snapshot: not of the form xmin:xmax:list")
	}
	var err error
	if v.xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return view{}, fmt.Errorf("snapshot: xmin: %w", err)
	}
	if v.xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return view{}, fmt.Errorf("snapshot: xmax: %w", err)
	}
	if parts[2] == "" {
		return v, nil
	}
	for text := range strings.SplitSeq(parts[2], ",") {
		x, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return view{}, fmt.Errorf("snapshot: list: %w", err)
		}
		v.active = append(v.active, x)
	}
	slices.Sort(v.active)
	return v, nil
}

// sees reports whether the snapshot sees a top-level transaction, of whose id the log gives the low half. The high half
// is that of the snapshot's xmax, or its neighbour's where that would be more than 2^31 away.
func (v view) sees(xid uint32) bool {
	const epoch, half = 1 << 32, 1 << 31
	full := v.xmax&^(epoch-1) | uint64(xid)
	switch {
	case full > v.xmax+half && full >= epoch:
		full -= epoch
	case full+half < v.xmax:
		full += epoch
	}
	if full < v.xmin {
		return true
	}
	if full >= v.xmax {
		return false
	}
	_, active := slices.BinarySearch(v.active, full)
	return !active
}

// seenToken keeps the token parsed last: a table that catches up asks about the same one for each transaction.
type seenToken struct {
	last atomic.Pointer[parsedToken]
}

type parsedToken struct {
	token string
	view  view
}

func (s *seenToken) parse(token string) (view, error) {
	if p := s.last.Load(); p != nil && p.token == token {
		return p.view, nil
	}
	v, err := parseToken(token)
	if err == nil {
		s.last.Store(&parsedToken{token, v})
	}
	return v, err
}

// Contains reports whether the snapshot that token names sees the transaction of c, whose Tag is its id as Begin sends it.
func (s *Source) Contains(token string, c connector.Commit) (bool, error) {
	v, err := s.seen.parse(token)
	if err != nil {
		return false, containsError(connector.Internal, c.Position, err)
	}
	p, err := parsePosition(c.Position)
	if err != nil {
		return false, containsError(connector.Internal, c.Position, err)
	}
	if p.system != v.system {
		err := fmt.Errorf("the snapshot was taken on the server with system identifier %d", v.system)
		return false, containsError(connector.Gap, c.Position, &connector.OtherHistoryError{Err: err})
	}
	return p.lsn <= v.insert && v.sees(uint32(c.Tag)), nil
}

func containsError(kind connector.Kind, at connector.Position, err error) error {
	return &connector.Error{Kind: kind, System: sourceSystem, Op: "compare a transaction with a snapshot", Position: at, Err: err}
}
