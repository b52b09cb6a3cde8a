package schema

import (
	"testing"

	"pgregory.net/rapid"
)

func TestNameKeepsAnyLegalNameThroughText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := Name{Schema: rapid.String().Draw(t, "schema"), Table: rapid.StringN(1, 63, -1).Draw(t, "table")}
		got, err := ParseName(n.String())
		if err != nil || got != n {
			t.Fatalf("ParseName(%q) = %#v, %v; want %#v", n.String(), got, err, n)
		}
	})
}

func TestParseNameRefuses(t *testing.T) {
	for _, s := range []string{"", ".", "a.", ".a", "a.b.c", `"a`, `"a"b`, `a"b`, `""`, `a.""`} {
		if n, err := ParseName(s); err == nil {
			t.Errorf("ParseName(%q) = %#v, want an error", s, n)
		}
	}
}

func TestEveryKindHasAnArrowStorage(t *testing.T) {
	for k := Bool; k <= Document; k++ {
		typ := Type{Kind: k, Precision: 10, Elem: &Type{Kind: Int32}}
		if typ.Arrow() == nil {
			t.Errorf("kind %d has no storage", k)
		}
	}
}
