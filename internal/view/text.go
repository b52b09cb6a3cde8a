package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
)

// Safe returns a text that comes from outside, such as a table's name, as it can be shown on a terminal: what would move
// the cursor, change colours, turn the direction of writing or be invisible is written as an escape.
func Safe(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r != ' ' && (!unicode.IsPrint(r) || unicode.Is(unicode.Cf, r)):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// SafeLines is Safe for a text of several lines.
func SafeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Safe(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Width returns the columns that a safe text takes on a terminal. Where terminals do not agree on that it is the larger
// number.
func Width(s string) int {
	if plain(s) {
		return len(s)
	}
	n := 0
	for g := displaywidth.StringGraphemes(s); g.Next(); {
		n += clusterWidth(g.Value(), g.Width())
	}
	return n
}

// plain reports whether a text is printable ASCII.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// clusterWidth is the width of one character as a person sees it, which a simple terminal shows as the code points that it
// is made of.
func clusterWidth(cluster string, width int) int {
	if len(cluster) == 1 {
		return width
	}
	n := 0
	for _, r := range cluster {
		n += displaywidth.Rune(r)
	}
	return max(n, width)
}

// Cut returns a safe text in width columns at most; what is left out at the end is shown as "…".
func Cut(s string, width int) string {
	if len(s) <= width || Width(s) <= width {
		return s
	}
	if width <= 0 {
		return ""
	}
	used, end := 0, 0
	for g := displaywidth.StringGraphemes(s); g.Next(); {
		w := clusterWidth(g.Value(), g.Width())
		if used+w > width-1 {
			break
		}
		used, end = used+w, end+len(g.Value())
	}
	return s[:end] + "…"
}

// cutMiddle is Cut that leaves out the middle, since tables of one kind have names that begin alike.
func cutMiddle(s string, width int) string {
	if Width(s) <= width {
		return s
	}
	if width < 8 {
		return Cut(s, width)
	}
	head := strings.TrimSuffix(Cut(s, width/2+1), "…")
	room := width - 1 - Width(head)
	tail := s
	for g := displaywidth.StringGraphemes(s); Width(tail) > room && g.Next(); {
		tail = tail[len(g.Value()):]
	}
	return head + "…" + tail
}

// pad fills a safe text up to width columns.
func pad(s string, width int) string { return s + strings.Repeat(" ", max(0, width-Width(s))) }

// padLeft puts a safe text at the end of width columns.
func padLeft(s string, width int) string { return strings.Repeat(" ", max(0, width-Width(s))) + s }

// Count writes a number with its thousands apart; "?" if it is not known.
func Count(n int64) string {
	if n < 0 {
		return "?"
	}
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Size writes a number of bytes; "?" if it is not known.
func Size(bytes int64) string {
	if bytes < 0 {
		return "?"
	}
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	n, unit := float64(bytes)/(1<<10), 0
	for n >= 1024 && unit < 3 {
		n, unit = n/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", n, []string{"KiB", "MiB", "GiB", "TiB"}[unit])
}

// Lag writes a lag to the tenth of a second while that means something; "" if it is not known.
func Lag(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	default:
		return Duration(d)
	}
}

// Duration writes a time span in its two largest units.
func Duration(d time.Duration) string {
	s := int64(d / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	default:
		return fmt.Sprintf("%dd%02dh", s/86400, s/3600%24)
	}
}

// rate writes rows a second.
func rate(perSecond float64) string {
	switch {
	case perSecond >= 10:
		return Count(int64(perSecond)) + "/s"
	case perSecond > 0:
		return fmt.Sprintf("%.1f/s", perSecond)
	}
	return ""
}
