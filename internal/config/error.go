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

// oneOf lists values for a person: "current, history or other".
func oneOf(values []string) string {
	quoted := slices.Clone(values)
	if n := len(quoted); n > 1 {
		return strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
	return strings.Join(quoted, "")
}
