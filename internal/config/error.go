package config

import (
	"fmt"
	"slices"
	"strings"
)

// Error is all that is wrong with a config file.
type Error struct {
	Path     string
	Findings []Finding // at least one, in the file's order
}

// Finding is one fault of a config file.
type Finding struct {
	Line, Column int    // from 1; 0 where the whole file is meant
	Key          string // "mirror.tables.include[0]"; "" where none is meant
	Text         string
}

// Error writes one line a finding: shop.yaml:12:5: mirror.tabels: unknown key; did you mean "tables"?
func (e *Error) Error() string {
	lines := make([]string, len(e.Findings))
	for i, f := range e.Findings {
		var b strings.Builder
		b.WriteString(e.Path)
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
		}
		b.WriteString(": ")
		if f.Key != "" {
			b.WriteString(f.Key + ": ")
		}
		b.WriteString(f.Text)
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}

// Nearest returns the options that are like word, the likest first: three at most.
func Nearest(word string, options []string) []string {
	limit := max(3, len(word)/2)
	like := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return distance(word, o) > limit && !strings.Contains(o, word) })
	slices.SortStableFunc(like, func(a, b string) int { return distance(word, a) - distance(word, b) })
	return like[:min(3, len(like))]
}

// didYouMean returns a hint at the option that is most like word, "" if none is.
func didYouMean(word string, options []string) string {
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, o := range options {
		if d := distance(word, o); d < bestDistance && d < len(o) {
			best, bestDistance = o, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the number of characters to insert, delete or replace that turns a into b (Levenshtein).
func distance(a, b string) int {
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replace := previous[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, previous[j+1]+1, row[j]+1)
		}
		previous = row
	}
	return previous[len(b)]
}

// oneOf lists values for a person: "current, history or other".
func oneOf(values []string) string {
	quoted := slices.Clone(values)
	if n := len(quoted); n > 1 {
		return strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	return strings.Join(quoted, "")
}
