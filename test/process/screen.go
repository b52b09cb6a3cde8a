package process

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

// screen understands the sequences of a terminal (ECMA-48) that programs here use; anything else is an error of theirs.
type screen struct {
	width, height int
	rows          [][]string // a cell is a character with its combining marks; the second cell of a wide one is ""
	x, y          int
	noWrap        bool
	rest          []byte   // the beginning of a sequence or of a character
	history       []string // rows that have left at the top
	err           error
}

func (s *screen) resize(width, height int) {
	s.width, s.height = width, height
	for len(s.rows) > height {
		s.scroll()
	}
	s.x = min(s.x, width-1)
}

func (s *screen) scroll() {
	s.history = append(s.history, line(s.rows[0]))
	s.rows = s.rows[1:]
	s.y = max(0, s.y-1)
}

func line(cells []string) string { return strings.TrimRight(strings.Join(cells, ""), " ") }

func (s *screen) text() []string {
	var out []string
	for _, row := range s.rows {
		out = append(out, line(row))
	}
	for len(out) > 0 && out[len(out)-1] == "" {
		out = out[:len(out)-1]
	}
	return out
}

func (s *screen) write(b []byte) {
	b = append(s.rest, b...)
	for len(b) > 0 && s.err == nil {
		n := s.take(b)
		if n == 0 {
			break
		}
		b = b[n:]
	}
	s.rest = append([]byte{}, b...)
}

// take acts on the first character or sequence and returns its bytes; 0: the rest of it has not come yet.
func (s *screen) take(b []byte) int {
	switch c := b[0]; {
	case c == '\r':
		s.x = 0
	case c == '\n':
		s.down()
	case c == 0x1b:
		return s.sequence(b)
	case c < ' ' || c == 0x7f:
		s.err = fmt.Errorf("control character %#x on the screen", c)
	default:
		if !utf8.FullRune(b) {
			return 0
		}
		r, n := utf8.DecodeRune(b)
		s.put(r)
		return n
	}
	return 1
}

func (s *screen) down() {
	s.y++
	s.row()
}

// row returns the cursor's row.
func (s *screen) row() []string {
	for s.y >= s.height {
		if len(s.rows) == 0 {
			s.rows = append(s.rows, nil)
		}
		s.scroll()
	}
	for len(s.rows) <= s.y {
		s.rows = append(s.rows, nil)
	}
	return s.rows[s.y]
}

func (s *screen) put(r rune) {
	width := displaywidth.Rune(r)
	row := s.row()
	if width == 0 && s.x > 0 && s.x <= len(row) {
		row[s.x-1] += string(r)
		return
	}
	if s.x+width > s.width {
		if s.noWrap {
			return
		}
		s.x = 0
		s.down()
		row = s.row()
	}
	for len(row) < s.x+width {
		row = append(row, " ")
	}
	row[s.x] = string(r)
	if width == 2 {
		row[s.x+1] = ""
	}
	s.x += width
	s.rows[s.y] = row
}

// sequence acts on what begins with ESC [.
func (s *screen) sequence(b []byte) int {
	if len(b) < 3 {
		return 0
	}
	end := 2
	for end < len(b) && (b[end] < '@' || b[end] > '~') {
		end++
	}
	if end == len(b) {
		return 0
	}
	n, err := strconv.Atoi(string(b[2:end]))
	if err != nil {
		n = 1
	}
	switch seq := string(b[1 : end+1]); {
	case seq == "[?7l", seq == "[?7h":
		s.noWrap = seq == "[?7l"
	case seq == "[H":
		s.x, s.y = 0, 0
	case seq == "[2J":
		s.rows = nil
	case seq == "[J":
		s.rows = s.rows[:min(len(s.rows), s.y+1)]
		s.eraseLine()
	case seq == "[K":
		s.eraseLine()
	case b[end] == 'A':
		s.y = max(0, s.y-n)
	case b[end] == 'm':
	default:
		s.err = fmt.Errorf("sequence %q on the screen", seq)
	}
	return end + 1
}

func (s *screen) eraseLine() {
	row := s.row()
	s.rows[s.y] = row[:min(len(row), s.x)]
}
