package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicehq/sluice/schema"
)

func TestPatternsMatchWholeNames(t *testing.T) {
	n := func(s string) schema.Name {
		schemaPart, table, _ := strings.Cut(s, "/")
		return schema.Name{Schema: schemaPart, Table: table}
	}
	for _, c := range []struct {
		pattern       string
		matches, does []schema.Name // does: does not match
	}{
		{"*", []schema.Name{n("public/a"), n("x/a.b"), n("/a")}, nil},
		{"public.*", []schema.Name{n("public/a"), n("public/a.b")}, []schema.Name{n("publics/a"), n("x/public.a"), n("/a")}},
		{"*.audit_*", []schema.Name{n("public/audit_"), n("x/audit_1.2")}, []schema.Name{n("public/x_audit_1"), n("/audit_1")}},
		{"orders", []schema.Name{n("public/orders"), n("/orders")}, []schema.Name{n("shop/orders"), n("public/orders2")}},
		{"shop*", []schema.Name{n("shop/a"), n("shop_2/b"), n("public/shops")}, []schema.Name{n("a/shop")}},
		{"a?c.t", []schema.Name{n("abc/t"), n("a.c/t"), n("aüc/t")}, []schema.Name{n("ac/t"), n("abbc/t")}},
		{"a.b", []schema.Name{n("a/b")}, []schema.Name{n("public/a.b"), n("/a.b"), n("A/b")}},
		{`public."Odd.Name"`, []schema.Name{n("public/Odd.Name")}, []schema.Name{n("public/OddxName"), n("public.Odd/Name")}},
		{`"a*"."b?"`, []schema.Name{n("a*/b?")}, []schema.Name{n("ab/bc")}},
		{`"say ""hi"""`, []schema.Name{n(`public/say "hi"`)}, []schema.Name{n("public/say hi")}},
		{`"a."*.b`, []schema.Name{n("a.x/b")}, []schema.Name{n("ax/b")}},
		{"*a*a*b", []schema.Name{n("public/aaab"), n("a/ab")}, []schema.Name{n("public/ab"), n("public/aaa")}},
	} {
		p, err := ParsePattern(c.pattern)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range c.matches {
			if !p.Match(name) {
				t.Errorf("%s does not match %v", p, name)
			}
		}
		for _, name := range c.does {
			if p.Match(name) {
				t.Errorf("%s matches %v", p, name)
			}
		}
	}
}

func TestParsePatternRefuses(t *testing.T) {
	for _, s := range []string{"", ".", "a.", ".a", "a.b.c", "*.*.*", `"a`, `""`, `a.""`} {
		if p, err := ParsePattern(s); err == nil {
			t.Errorf("ParsePattern(%q) = %#v, want an error", s, p)
		}
	}
}

func TestNameWrittenAsTextIsItsOwnPattern(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) string {
			return strings.ToValidUTF8(rapid.StringN(1, 20, -1).Draw(t, label), "x")
		}
		n := schema.Name{Schema: draw("schema"), Table: draw("table")}
		p, err := ParsePattern(n.String())
		if err != nil || !p.Match(n) {
			t.Fatalf("%s does not match itself: %v", n, err)
		}
		other := schema.Name{Schema: draw("other schema"), Table: draw("other table")}
		if other != n && p.Match(other) {
			t.Fatalf("%s matches %s", n, other)
		}
	})
}

// FuzzParsePattern checks that parsing and matching end without a crash for any text.
func FuzzParsePattern(f *testing.F) {
	f.Add(`public."Odd.*"`, "public", "Odd.*")
	f.Add("*a*b?", "", "aab")
	f.Fuzz(func(t *testing.T, text, schemaName, table string) {
		p, err := ParsePattern(text)
		if err != nil {
			return
		}
		if p.Match(schema.Name{Schema: schemaName, Table: table}) && !matchAll.Match(schema.Name{Schema: schemaName, Table: table}) {
			t.Errorf("%q matches what * does not", text)
		}
	})
}
