package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicehq/sluice/connector"
)

// LSN is a byte position in the write-ahead log (PostgreSQL: pg_lsn, XLogRecPtr).
type LSN uint64

// String writes an LSN as the server does, with leading zeros, so that text order is log order.
func (l LSN) String() string { return fmt.Sprintf("%08X/%08X", uint32(l>>32), uint32(l)) }

// ParseLSN reads a pg_lsn as the server writes it.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("LSN %q: no slash", s)
	}
	h, err := strconv.ParseUint(hi, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	l, err := strconv.ParseUint(lo, 16, 32)
	if err != nil {
		return 0, fmt.Errorf("LSN %q: %w", s, err)
	}
	return LSN(h<<32 | l), nil
}

// position is the parsed form of a connector.Position: systemid/timeline/LSN, the timeline in eight hexadecimal digits.
//
// Two kinds of LSN stand in it, and the order between them decides what is skipped. In a Progress it is an end of the
// log: all transactions whose commit record begins below it were delivered. In a Commit it is the byte after the first
// one of the commit record, which Begin announces (its end is known only after the last row): so a transaction is
// covered by an end E exactly if its position is <= E, also where the next commit record begins right at E.
type position struct {
	system   uint64 // pg_control_system().system_identifier
	timeline uint32
	lsn      LSN
}

func (p position) String() string { return p.prefix() + p.lsn.String() }

// prefix is what all positions of one timeline begin with.
func (p position) prefix() string {
	return strconv.FormatUint(p.system, 10) + fmt.Sprintf("/%08X/", p.timeline)
}

// Position returns the text form.
func (p position) Position() connector.Position { return connector.Position(p.String()) }

func parsePosition(s connector.Position) (position, error) {
	sys, rest, ok := strings.Cut(string(s), "/")
	tl, lsn, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return position{}, fmt.Errorf("position %q: not of the form systemid/timeline/LSN", s)
	}
	var p position
	var err error
	if p.system, err = strconv.ParseUint(sys, 10, 64); err != nil {
		return position{}, fmt.Errorf("position %q: system identifier: %w", s, err)
	}
	t, err := strconv.ParseUint(tl, 16, 32)
	if err != nil {
		return position{}, fmt.Errorf("position %q: timeline: %w", s, err)
	}
	p.timeline = uint32(t)
	p.lsn, err = ParseLSN(lsn)
	return p, err
}
