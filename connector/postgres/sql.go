package postgres

import (
	"strings"
	"unicode/utf8"

	"github.com/sluicehq/sluice/schema"
)

// quoteIdent quotes one identifier. Names reach SQL only through it, so any legal name is safe.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteName quotes a qualified name.
func quoteName(n schema.Name) string { return quoteIdent(n.Schema) + "." + quoteIdent(n.Table) }

// quoteList quotes identifiers and joins them with commas.
func quoteList(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quoteIdent(n)
	}
	return strings.Join(quoted, ", ")
}

// maxNameLength is the length in bytes of the longest identifier (NAMEDATALEN - 1).
const maxNameLength = 63

// cutName shortens a name to n bytes without cutting a character.
func cutName(name string, n int) string {
	for len(name) > n {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

// quoteLiteral writes a string constant; it is right under either setting of standard_conforming_strings.
func quoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}
