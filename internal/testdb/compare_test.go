package testdb

import (
	"strings"
	"testing"
)

func TestCompareSeesEveryDifference(t *testing.T) {
	const table = "CREATE TABLE a (k int PRIMARY KEY, c char(3), n numeric, s text);"
	const rows = "INSERT INTO a VALUES (1, 'x', 1.50, NULL), (2, 'y', 2, 'two');"
	cases := map[string]struct{ change, want string }{
		"equal":            {"", ""},
		"scale of numeric": {"UPDATE a SET n = 1.5 WHERE k = 1", "n is (1.50) at the source, (1.5) at the sink"},
		"null and empty":   {"UPDATE a SET s = '' WHERE k = 1", `s is () at the source, ("") at the sink`},
		"missing row":      {"DELETE FROM a WHERE k = 2", "key (2): 1 rows at the source, 0 at the sink"},
		"extra row":        {"INSERT INTO a VALUES (3)", "key (3): 0 rows at the source, 1 at the sink"},
		"doubled row":      {"ALTER TABLE a DROP CONSTRAINT a_pkey; INSERT INTO a SELECT * FROM a WHERE k = 1", "key (1): 1 rows at the source, 2 at the sink"},
		"more columns":     {"ALTER TABLE a ADD extra int DEFAULT 7", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			source, sink := server.Database(t), server.Database(t)
			Exec(t, source, table+rows)
			Exec(t, sink, table+rows+c.change)
			got, err := OpenPair(t, source, sink).Compare(t.Context(), "public.a", "public.a")
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q in it", got, c.want)
			}
		})
	}
}

func TestCompareTellsAMissingTable(t *testing.T) {
	source, sink := server.Database(t), server.Database(t)
	Exec(t, source, "CREATE TABLE a (k int)")
	if _, err := OpenPair(t, source, sink).Compare(t.Context(), "public.a", "public.a"); !Missing(err) {
		t.Errorf("got %v, want an error for which Missing is true", err)
	}
}
