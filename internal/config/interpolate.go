package config

import (
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// maxInterpolatedBytes bounds a file that ${file:...} names.
const maxInterpolatedBytes = 64 << 10

// scalarText is the text of a single value, and how an error may show it.
type scalarText struct {
	value string
	shown string // quoted, or what stands in the file in place of a secret
}

func (t scalarText) found() string { return ", found " + t.shown }

// text returns the text of a single value, with ${env:NAME} and ${file:PATH} replaced; $${ is a ${ that stands for
// itself. What comes from outside the file, and every secret, is kept out of errors.
func (d *decoder) text(n ast.Node, at place, f *field) (scalarText, bool) {
	var raw string
	switch v := n.(type) {
	case *ast.StringNode:
		raw = v.Value
	case *ast.LiteralNode:
		raw = v.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		raw = n.GetToken().Value
		if f.secret {
			return scalarText{raw, "a secret"}, true
		}
		return scalarText{raw, quote(raw)}, true
	default:
		d.find(at, "expected a single value, found %s", describe(n))
		return scalarText{}, false
	}
	value, ok := d.interpolate(raw, at)
	switch {
	case f.secret:
		return scalarText{value, "a secret"}, ok
	case value != raw:
		return scalarText{value, "what " + quote(raw) + " stands for"}, ok
	}
	return scalarText{value, quote(raw)}, ok
}

// quote shows a value in an error, cut to a length that a line of a terminal holds.
func quote(s string) string {
	const longest = 60
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return `"` + strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(s) + `"`
}

func (d *decoder) interpolate(raw string, at place) (string, bool) {
	var b strings.Builder
	rest, ok := raw, true
	for {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			b.WriteString(rest)
			return b.String(), ok
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			b.WriteString(literal + "${")
			rest = after
			continue
		}
		b.WriteString(before)
		reference, after, closed := strings.Cut(after, "}")
		if !closed {
			d.find(at, "a ${ is not closed; $${ stands for itself")
			return "", false
		}
		value, resolved := d.resolve(reference, at)
		b.WriteString(value)
		rest, ok = after, ok && resolved
	}
}

// resolve returns what a reference stands for.
func (d *decoder) resolve(reference string, at place) (string, bool) {
	kind, name, _ := strings.Cut(reference, ":")
	switch {
	case kind == "env" && name != "":
		value, ok := d.lookupEnv(name)
		if !ok {
			d.find(at, "the environment variable %s is not set", name)
		}
		return value, ok
	case kind == "file" && name != "":
		if !filepath.IsAbs(name) {
			name = filepath.Join(d.dir, name)
		}
		value, err := d.readFile(name, maxInterpolatedBytes)
		if err != nil {
			d.find(at, "%v", err)
			return "", false
		}
		return strings.TrimRight(string(value), "\r\n"), true // files of secrets tend to end with a newline
	default:
		d.find(at, "expected ${env:NAME} or ${file:PATH}; $${ stands for itself")
		return "", false
	}
}
