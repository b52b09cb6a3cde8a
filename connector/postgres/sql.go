package postgres

import (
	"strings"

	"github.com/sluicehq/sluice/schema"
)

// quoteIdent quotes one identifier. Names reach SQL only through it, so any legal name is safe.
func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteName quotes a qualified name.
func quoteName(n schema.Name) string { return quoteIdent(n.Schema) + "." + quoteIdent(n.Table) }

// quoteLiteral writes a string constant; it is right under either setting of standard_conforming_strings.
func quoteLiteral(s string) string {
	q := "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(q, `\`, `\\`)
	}
	return q
}
