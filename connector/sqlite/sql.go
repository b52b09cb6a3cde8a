package sqlite

import (
	"fmt"
	"strings"
)

// quoteIdent quotes one identifier. Names reach SQL only through it, so any legal name is safe.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteList quotes names and joins them.
func quoteList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quoteIdent(n)
	}
	return strings.Join(quoted, ", ")
}

// param writes the nth parameter of a statement, from 1.
func param(n int) string { return fmt.Sprintf("?%d", n) }

// foldName is what two names have in common that are one to SQLite, which folds the case of ASCII letters alone.
func foldName(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
