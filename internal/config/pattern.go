package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/invopop/jsonschema"

	"github.com/sluicehq/sluice/schema"
)

// defaultSchema is the schema of a table that is written without one.
const defaultSchema = "public"

// Pattern matches names of tables. It is written as a name is, with * for any run of characters and ? for any one, dots
// included; what stands in double quotes stands for itself (a double quote in it is written twice). It must match the
// whole of schema.table. A pattern without a dot also matches the name of a table alone, if that is in the schema public
// or the source has no schemas: orders matches public.orders, * matches everything.
type Pattern struct {
	text   string
	glyphs []rune // of the pattern, with the signs below for what does not stand for itself
	dotted bool
}

// Signs of glyphs; no character of a name has such a code.
const (
	anyRun    rune = -1 - iota // *
	anyOne                     // ?
	separator                  // the dot between schema and table, also in a name that is matched
)

var matchAll = Pattern{text: "*", glyphs: []rune{anyRun}}

// ParsePattern reads a pattern.
func ParsePattern(s string) (Pattern, error) {
	p := Pattern{text: s}
	if err := p.scan([]rune(s)); err != nil {
		return Pattern{}, fmt.Errorf("pattern %q: %w", s, err)
	}
	return p, nil
}

func (p *Pattern) scan(text []rune) error {
	part := 0 // glyphs of the part so far
	for i := 0; i < len(text); i++ {
		switch r := text[i]; {
		case r == '"':
			n, err := p.scanQuoted(text[i:])
			if err != nil {
				return err
			}
			i += n - 1
			part++
		case r == '.' && p.dotted:
			return errors.New("more than two parts; put a part that holds a dot in double quotes")
		case r == '.' && part == 0:
			return errors.New("a part is empty")
		case r == '.':
			p.dotted, part = true, 0
			p.glyphs = append(p.glyphs, separator)
		default:
			part++
			p.glyphs = append(p.glyphs, glyph(r))
		}
	}
	if part == 0 {
		return errors.New("a part is empty")
	}
	return nil
}

func glyph(r rune) rune {
	switch r {
	case '*':
		return anyRun
	case '?':
		return anyOne
	}
	return r
}

// scanQuoted takes a quoted piece off the front of text and returns its length there.
func (p *Pattern) scanQuoted(text []rune) (int, error) {
	before := len(p.glyphs)
	for i := 1; i < len(text); i++ {
		if text[i] != '"' {
			p.glyphs = append(p.glyphs, text[i])
			continue
		}
		if i+1 < len(text) && text[i+1] == '"' {
			p.glyphs = append(p.glyphs, '"')
			i++
			continue
		}
		if len(p.glyphs) == before {
			return 0, errors.New("nothing stands between two double quotes")
		}
		return i + 1, nil
	}
	return 0, errors.New("a double quote is not closed")
}

// Match reports whether the pattern matches the name.
func (p Pattern) Match(n schema.Name) bool {
	table := []rune(n.Table)
	if n.Schema == "" {
		return matchGlyphs(p.glyphs, table)
	}
	if !p.dotted && n.Schema == defaultSchema && matchGlyphs(p.glyphs, table) {
		return true
	}
	return matchGlyphs(p.glyphs, slices.Concat([]rune(n.Schema), []rune{separator}, table))
}

// matchGlyphs takes at most len(pattern)*len(name) steps: on a mismatch only the last * takes one character more.
func matchGlyphs(pattern, name []rune) bool {
	p, n := 0, 0
	star, resume := -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == anyRun:
			star, resume = p, n
			p++
		case p < len(pattern) && (pattern[p] == anyOne || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			resume++
			p, n = star+1, resume
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == anyRun {
		p++
	}
	return p == len(pattern)
}

// String returns the pattern as it was written.
func (p Pattern) String() string { return p.text }

// UnmarshalText is [ParsePattern] with errors that do not repeat the text.
func (p *Pattern) UnmarshalText(text []byte) error {
	*p = Pattern{text: string(text)}
	return p.scan([]rune(p.text))
}

func (Pattern) jsonSchema() *jsonschema.Schema {
	one := uint64(1)
	return &jsonschema.Schema{Type: "string", MinLength: &one}
}
