// Package view shows how a mirror stands to a person: as a table that is alive on a terminal, and as plain text.
package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/schema"
)

// Frame is everything that one picture of the live view shows; Lines draws it.
type Frame struct {
	Live          mirror.Live
	Now           time.Time
	Rates         map[schema.ID]float64 // rows that a table copies or applies in a second
	Draining      bool                  // the run was asked to end
	Width, Height int                   // of the terminal, in columns and lines
	Colors        bool
}

// lagging is the lag from which on a table is shown before those that keep up.
const lagging = 2 * time.Second

// group is the place of a table in the view: those that need a person come first.
type group int

const (
	troubled group = iota // paused or refused
	copies
	behind
	rest
)

// row is a table of the frame.
type row struct {
	*mirror.TableStatus
	group group
	rate  float64
}

// Lines returns the frame's lines: none is wider than Width, and they are fewer than Height. The same frame always gives
// the same lines. The head comes first; if not all tables have room, those where nothing happens are counted in a last
// line.
func (f *Frame) Lines() []string {
	p := painter{f.Colors}
	rows := f.rows()
	lines := f.head(p)
	room := f.Height - 1 - len(lines) - 2 // for rows; the cursor stands below the frame, an empty line and the columns' names above
	if len(rows) == 0 || room < 1 {
		return lines[:max(0, min(len(lines), f.Height-1))]
	}
	l := f.layout(rows)
	shown := fit(rows, l, room)
	lines = append(lines, "", p.bold(l.headings()))
	for _, r := range shown {
		lines = append(lines, l.line(p, f, r)...)
	}
	if left := others(rows, shown); left != "" {
		lines = append(lines, Cut(left, f.Width))
	}
	return lines
}

// rows returns the tables in the order of the view.
func (f *Frame) rows() []row {
	rows := make([]row, 0, len(f.Live.Tables))
	for i := range f.Live.Tables {
		t := &f.Live.Tables[i]
		r := row{TableStatus: t, group: rest, rate: f.Rates[t.ID]}
		switch phase := mirror.Phase(t.Phase); {
		case phase == mirror.Paused, phase == mirror.Refused:
			r.group = troubled
		case phase == mirror.Copying:
			r.group = copies
		case phase == mirror.CatchingUp, t.Lag >= lagging, t.Failures > 0:
			r.group = behind
		}
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b row) int { // the tables come by name
		if a.group == behind && b.group == behind {
			return cmp.Compare(b.Lag, a.Lag)
		}
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.Phase, b.Phase)*oneIn(a.group == troubled))
	})
	return rows
}

func oneIn(is bool) int {
	if is {
		return 1
	}
	return 0
}

// fit chooses the rows that are shown in so many lines. Where not all have room those of rest are left out, and troubled
// ones take no more than half of the room from the others that are at work.
func fit(rows []row, l layout, room int) []row {
	if lines(rows, l) <= room {
		return rows
	}
	room-- // for the line that counts the others
	var trouble, work []row
	for _, r := range rows {
		switch r.group {
		case troubled:
			trouble = append(trouble, r)
		case copies, behind:
			work = append(work, r)
		}
	}
	half := room - min(room/2, lines(work, l))
	shown := take(trouble, l, half)
	return append(shown, take(work, l, room-lines(shown, l))...)
}

// take returns the first rows that have room.
func take(rows []row, l layout, room int) []row {
	n := 0
	for n < len(rows) && lines(rows[:n+1], l) <= room {
		n++
	}
	return slices.Clone(rows[:n])
}

func lines(rows []row, l layout) int {
	n := 0
	for _, r := range rows {
		n += l.height(r)
	}
	return n
}

// others counts the rows that are not shown; "" if all are.
func others(rows, shown []row) string {
	if len(rows) == len(shown) {
		return ""
	}
	n := map[string]int{}
	for _, r := range rows {
		n[r.Phase]++
	}
	for _, r := range shown {
		n[r.Phase]--
	}
	return fmt.Sprintf("and %s more: %s", plural(len(rows)-len(shown), "table"), phases(n))
}

// Summary counts tables by phase.
func Summary(tables []mirror.TableStatus) string {
	n := map[string]int{}
	for i := range tables {
		n[tables[i].Phase]++
	}
	return plural(len(tables), "table") + ": " + phases(n)
}

// phases writes how many are in each phase; those that need a person come first, then in the order in which a table goes
// through them.
func phases(n map[string]int) string {
	var parts []string
	for _, p := range []mirror.Phase{
		mirror.Paused, mirror.Refused, mirror.Pending, mirror.Copying, mirror.CatchingUp, mirror.Streaming, mirror.Dropped,
	} {
		if n[string(p)] > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", Count(int64(n[string(p)])), p))
		}
	}
	return strings.Join(parts, ", ")
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Count(int64(n)) + " " + what + "s"
}

// head returns the lines about the whole mirror, as many as its parts need at this width.
func (f *Frame) head(p painter) []string {
	live := &f.Live
	parts := []string{Safe(live.Mirror) + " " + f.doing()}
	if len(live.Tables) > 0 {
		parts = append(parts, strings.Split(Summary(live.Tables), ", ")...)
	}
	parts = append(parts, "source "+live.Source.State, "sink "+live.Sink.State)
	if live.Lag >= 0 {
		parts = append(parts, "lag "+Lag(live.Lag))
	}
	var moved float64
	for _, r := range f.Rates {
		moved += r
	}
	if moved > 0 {
		parts = append(parts, rate(moved))
	}
	var copied, applied int64
	for _, n := range live.Counts {
		copied, applied = copied+n.RowsCopied, applied+n.ChangesApplied
	}
	parts = append(parts, Count(copied)+" rows copied", Count(applied)+" changes applied")
	if live.SpoolBytes > 0 {
		parts = append(parts, "spool "+Size(live.SpoolBytes))
	}
	if live.RetainedBytes >= 0 {
		parts = append(parts, "log kept at the source "+Size(live.RetainedBytes))
	}
	if live.Position != "" {
		parts = append(parts, "at "+Safe(live.Position))
	}
	lines := flow(parts, f.Width)
	lines = lines[:min(len(lines), max(2, f.Height/3))] // the last parts matter least
	lines[0] = p.bold(lines[0])
	if live.Error != "" {
		lines = append(lines, p.red(Cut(fmt.Sprintf("again in %s: %s", Duration(max(0, live.RetryAt.Sub(f.Now))), Safe(live.Error)), f.Width)))
	}
	return lines
}

// doing says what the run is doing.
func (f *Frame) doing() string {
	since := Duration(f.Now.Sub(f.Live.Since))
	switch {
	case f.Live.State == mirror.Ended:
		return "has ended after " + since
	case f.Draining:
		return "is stopping: what was read is applied; a second Ctrl-C ends it at once"
	}
	return string(f.Live.State) + ", up " + since
}

// flow puts parts into lines, as many in each as have room.
func flow(parts []string, width int) []string {
	var lines []string
	for _, part := range parts {
		part = Cut(part, width)
		if last := len(lines) - 1; last >= 0 && Width(lines[last])+3+Width(part) <= width {
			lines[last] += " · " + part
			continue
		}
		lines = append(lines, part)
	}
	return lines
}

// column is one of those between a table's phase and the line's end.
type column struct {
	title string
	width int
	text  func(f *Frame, r row) string
}

// columns in the order in which they are given up where the terminal is narrow, the last ones first.
var columns = []column{
	{"LAG", 7, func(_ *Frame, r row) string { return Lag(r.Lag) }},
	{"RATE", 11, func(_ *Frame, r row) string { return rate(r.rate) }},
	{"COPIED", 14, func(_ *Frame, r row) string { return Count(r.RowsCopied) }},
	{"CHANGES", 14, func(_ *Frame, r row) string { return Count(r.ChangesApplied) }},
	{"WAITING", 10, func(_ *Frame, r row) string { return Waiting(r.TableStatus) }},
}

// Waiting is the size of a table's changes that wait to be applied; "" if there are none.
func Waiting(t *mirror.TableStatus) string {
	if t.LaneBytes == 0 {
		return ""
	}
	return Size(t.LaneBytes)
}

const (
	gap        = 2  // between two columns
	phaseWidth = 11 // catching_up
	nameMin    = 10
	nameMax    = 60
	barWidth   = 20
	barText    = 14 // of what stands around a bar: its ends, the part that is done, the time left
	notesMin   = 24 // of the column with progress or a reason; it takes what room there is

	namesBeforeNotes = 8 // columns that names get beside nameMin before there is such a column
)

// layout is how the lines of tables are divided.
type layout struct {
	name, phase int // widths
	columns     []column
	notes       int // width of the last column, for progress and reasons; 0: there is none
	width       int
}

// layout divides the width. The phase, lag, rate and progress come first, then room for names, then the rest.
func (f *Frame) layout(rows []row) layout {
	longest, noted := 0, false
	for _, r := range rows {
		longest = max(longest, Width(Safe(r.Name.String())))
		noted = noted || r.note(barWidth) != ""
	}
	longest = max(nameMin, min(longest, nameMax))
	l := layout{phase: phaseWidth, width: f.Width}
	left := f.Width - nameMin - gap - phaseWidth
	if left < 0 {
		l.phase = max(0, f.Width-nameMin-gap)
		left = 0
	}
	wanted := longest - nameMin // what names could still use
	for i, c := range columns {
		if left < c.width+gap || i >= 2 && left < c.width+gap+wanted {
			break
		}
		l.columns = append(l.columns, c)
		left -= c.width + gap
		if i == 1 && noted && left >= notesMin+gap+min(wanted, namesBeforeNotes) {
			l.notes = notesMin
			left -= notesMin + gap
		}
	}
	more := min(left, wanted)
	l.name = min(nameMin+more, f.Width)
	if l.notes > 0 {
		l.notes += left - more
	}
	return l
}

func (l layout) headings() string {
	var b strings.Builder
	b.WriteString(pad(Cut("TABLE", l.name), l.name+gap) + pad(Cut("PHASE", l.phase), l.phase))
	for _, c := range l.columns {
		b.WriteString(strings.Repeat(" ", gap) + padLeft(c.title, c.width))
	}
	return Cut(strings.TrimRight(b.String(), " "), l.width)
}

// height is how many lines a table takes.
func (l layout) height(r row) int {
	if note := r.note(l.bar()); note != "" && Width(note) > l.notes {
		return 2
	}
	return 1
}

// bar is the width of a bar that shows progress.
func (l layout) bar() int {
	if l.notes == 0 {
		return barWidth // in a line of its own
	}
	return min(barWidth, l.notes-barText)
}

// line returns a table's lines.
func (l layout) line(p painter, f *Frame, r row) []string {
	var b strings.Builder
	b.WriteString(pad(cutMiddle(Safe(r.Name.String()), l.name), l.name) + strings.Repeat(" ", gap))
	b.WriteString(p.phase(r, pad(Cut(r.Phase, l.phase), l.phase)))
	for _, c := range l.columns {
		b.WriteString(strings.Repeat(" ", gap) + padLeft(Cut(c.text(f, r), c.width), c.width))
	}
	note := r.note(l.bar())
	if l.height(r) == 1 {
		return []string{strings.TrimRight(b.String()+strings.Repeat(" ", gap)+note, " ")}
	}
	return []string{strings.TrimRight(b.String(), " "), Cut("  "+note, l.width)}
}

// note says why a table does not go on, or how far its copy is; "" if there is nothing to say.
func (r row) note(bar int) string {
	switch {
	case r.Reason != "" && r.Phase == string(mirror.Copying):
		return Safe("waits: " + r.Reason)
	case r.Reason != "":
		return Safe(r.Reason)
	case r.Failures > 0:
		return Safe(fmt.Sprintf("failed %s: %s", plural(r.Failures, "time"), r.LastError))
	}
	return r.progress(bar)
}

// progress shows how far a copy is and when it is done, as far as that can be guessed.
func (r row) progress(width int) string {
	if r.Phase != string(mirror.Copying) || r.RowsEstimated <= 0 {
		return ""
	}
	part := min(1, float64(r.RowsCopied)/float64(r.RowsEstimated))
	full := int(part * float64(width))
	text := fmt.Sprintf("[%s%s] %3.0f%%", strings.Repeat("#", full), strings.Repeat("-", width-full), part*100)
	if left := float64(r.RowsEstimated - r.RowsCopied); left > 0 && r.rate > 0 {
		text += " " + Duration(time.Duration(left/r.rate*float64(time.Second)))
	}
	return text
}

// painter colours text for terminals that show colours.
type painter struct{ colors bool }

func (p painter) paint(code, s string) string {
	if !p.colors || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p painter) bold(s string) string { return p.paint("1", s) }
func (p painter) red(s string) string  { return p.paint("31", s) }

// phase colours a text by how a table is.
func (p painter) phase(r row, s string) string {
	switch r.group {
	case troubled:
		return p.red(s)
	case copies:
		return p.paint("36", s)
	case behind:
		return p.paint("33", s)
	}
	if r.Phase == string(mirror.Streaming) {
		return p.paint("32", s)
	}
	return s
}
