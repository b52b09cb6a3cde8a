package postgres

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// changes runs sql and returns what pgoutput sends of it, as the Frames of one table.
func changes(t testing.TB, url string, table *schema.Table, sql string) *connector.Frames {
	t.Helper()
	slot := fmt.Sprintf("s%d", len(sql))
	testdb.Exec(t, url, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	testdb.Exec(t, url, sql)
	f := &connector.Frames{Table: table}
	for _, row := range testdb.Query(t, url, "SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('"+slot+"', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')") {
		message := unhex(row[0])
		switch message[0] {
		case 'B':
			f.Commits = append(f.Commits, connector.Commit{Position: connector.Position(fmt.Sprint(len(f.Commits)))})
		case 'I', 'U', 'D', 'T':
			f.Data = appendMessage(f.Data, message)
			f.Commits[len(f.Commits)-1].Rows++
		}
	}
	testdb.Exec(t, url, "SELECT pg_drop_replication_slot('"+slot+"')")
	return f
}

func unhex(s string) []byte {
	var out []byte
	if _, err := fmt.Sscanf(s, "%x", &out); err != nil {
		panic(err)
	}
	return out
}

// rowTexts writes each row as "op: values", a dash for NULL, a question mark for an unsent value.
func rowTexts(r *connector.Rows) []string {
	names := [...]string{"insert", "update", "delete", "before", "truncate"}
	lines := make([]string, r.Len())
	for i := range lines {
		var b strings.Builder
		b.WriteString(names[r.Op(i)] + ":")
		for c := range int(r.Values.NumCols()) {
			switch v := r.Values.Column(c); {
			case r.IsUnsent(c, i):
				b.WriteString(" ?")
			case v.IsNull(i):
				b.WriteString(" -")
			default:
				fmt.Fprintf(&b, " %.9s", v.ValueStr(i))
			}
		}
		lines[i] = b.String()
	}
	return lines
}

func TestRowMessagesOfTheServer(t *testing.T) {
	const large = `(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)` // stored out of line
	for name, c := range map[string]struct {
		setup, sql string
		want       []string
		key        []int // in place of the table's
		unread     []int
	}{
		"full identity and a key that was chosen": {
			setup: `CREATE TABLE t (id int PRIMARY KEY, k text NOT NULL UNIQUE, big text); ALTER TABLE t REPLICA IDENTITY FULL`,
			sql:   `INSERT INTO t VALUES (1, 'a', ` + large + `); UPDATE t SET id = 2; UPDATE t SET k = 'b'; DELETE FROM t`,
			want:  []string{"insert: 1 a c4ca4238a", "update: 2 a c4ca4238a", "before: 2 a c4ca4238a", "update: 2 b c4ca4238a", "delete: 2 b c4ca4238a"},
			key:   []int{1},
		},
		"a key that is a part of the identity": {
			setup: `CREATE TABLE t (id int, k text NOT NULL UNIQUE, PRIMARY KEY (id, k))`,
			sql:   `INSERT INTO t VALUES (1, 'a'); UPDATE t SET id = 2; UPDATE t SET k = 'b'; DELETE FROM t`,
			want:  []string{"insert: 1 a", "update: 2 a", "before: ? a", "update: 2 b", "delete: ? b"},
			key:   []int{1},
		},
		"columns that are not read": {
			setup:  `CREATE TABLE t (secret int, id int PRIMARY KEY, big text); ALTER TABLE t REPLICA IDENTITY FULL`,
			sql:    `INSERT INTO t VALUES (1, 1, ` + large + `); UPDATE t SET secret = 2; UPDATE t SET id = 2; DELETE FROM t`,
			want:   []string{"insert: - 1 -", "update: - 1 -", "before: - 1 -", "update: - 2 -", "delete: - 2 -"},
			unread: []int{0, 2},
		},
		"an unsent value that is not read": {
			setup:  `CREATE TABLE t (a int, id int PRIMARY KEY, big text)`,
			sql:    `INSERT INTO t VALUES (1, 1, ` + large + `); UPDATE t SET a = 2`,
			want:   []string{"insert: 1 1 -", "update: 2 1 -"},
			unread: []int{2},
		},
		"full identity and a partition made later without it": {
			setup: `CREATE TABLE t (id int PRIMARY KEY, a int, big text) PARTITION BY RANGE (id); ALTER TABLE t REPLICA IDENTITY FULL`,
			sql:   `CREATE TABLE t_1 PARTITION OF t DEFAULT; INSERT INTO t VALUES (1, 1, ` + large + `); UPDATE t SET a = 2; UPDATE t SET id = 2`,
			want:  []string{"insert: 1 1 c4ca4238a", "update: 1 2 ?", "before: 1 - ?", "update: 2 2 ?"},
		},
		"default identity": {
			setup: `CREATE TABLE t (a int, id int PRIMARY KEY, big text, g int GENERATED ALWAYS AS (1) STORED)`,
			sql:   `INSERT INTO t VALUES (1, 1, ` + large + `); UPDATE t SET a = NULL; UPDATE t SET id = 2; DELETE FROM t; TRUNCATE t`,
			want:  []string{"insert: 1 1 c4ca4238a -", "update: - 1 ? -", "before: ? 1 ? -", "update: - 2 ? -", "delete: ? 2 ? -", "truncate: - - - -"},
		},
		"identity by index": {
			setup: `CREATE TABLE t (id int PRIMARY KEY, k text NOT NULL UNIQUE); ALTER TABLE t REPLICA IDENTITY USING INDEX t_k_key`,
			sql:   `INSERT INTO t VALUES (1, 'a'); UPDATE t SET id = 2; UPDATE t SET k = 'b'; DELETE FROM t`,
			want:  []string{"insert: 1 a", "update: 2 a", "before: ? a", "update: 2 b", "delete: ? b"},
		},
		"full identity with a key": {
			setup: `CREATE TABLE t (id int PRIMARY KEY, a int, big text); ALTER TABLE t REPLICA IDENTITY FULL`,
			sql:   `INSERT INTO t VALUES (1, 1, ` + large + `); UPDATE t SET a = NULL; UPDATE t SET id = 2; DELETE FROM t`,
			want:  []string{"insert: 1 1 c4ca4238a", "update: 1 - c4ca4238a", "before: 1 - c4ca4238a", "update: 2 - c4ca4238a", "delete: 2 - c4ca4238a"},
		},
		"full identity without a key": {
			setup: `CREATE TABLE t (id int, a int); ALTER TABLE t REPLICA IDENTITY FULL`,
			sql:   `INSERT INTO t VALUES (1, NULL); UPDATE t SET a = 1; DELETE FROM t`,
			want:  []string{"insert: 1 -", "before: 1 -", "update: 1 1", "delete: 1 1"},
		},
		"a key out of line": {
			setup: `CREATE TABLE t (id text PRIMARY KEY, a int); ALTER TABLE t ALTER id SET STORAGE EXTERNAL`,
			sql:   `INSERT INTO t VALUES (repeat('k', 2500), 1); UPDATE t SET a = 2`,
			want:  []string{"insert: kkkkkkkkk 1", "update: kkkkkkkkk 2"},
		},
		"leaf of another identity and column order": {
			setup: `CREATE TABLE t (id int PRIMARY KEY, a int) PARTITION BY RANGE (id); CREATE TABLE t_1 (a int, x int, id int NOT NULL);
			 ALTER TABLE t_1 DROP x; ALTER TABLE t ATTACH PARTITION t_1 DEFAULT; ALTER TABLE t_1 REPLICA IDENTITY FULL`,
			sql:  `INSERT INTO t VALUES (1, 5); UPDATE t SET a = 6; UPDATE t SET id = 2; DELETE FROM t`,
			want: []string{"insert: 1 5", "update: 1 6", "before: 1 ?", "update: 2 6", "delete: 2 ?"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			src, url := openTestSource(t, c.setup)
			testdb.Exec(t, url, "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
			table := discover(t, src)["public.t"]
			if c.key != nil {
				table.Key = c.key
			}
			for _, n := range c.unread {
				table.Columns[n].Unread = true
			}
			f := changes(t, url, table, c.sql)
			r, err := newRowDecoder(table, memory.DefaultAllocator).Decode(f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, rowTexts(r)); diff != "" {
				t.Error(diff)
			}
			n := 0
			for i, commit := range r.Commits {
				if n += commit.Rows; commit.Position != f.Commits[i].Position {
					t.Errorf("commit %d: %+v", i, commit)
				}
			}
			if n != r.Len() {
				t.Errorf("commits cover %d of %d rows", n, r.Len())
			}
		})
	}
}

func listTable(key ...int) *schema.Table {
	return &schema.Table{Name: schema.Name{Schema: "public", Table: "t"}, Key: key, Columns: []schema.Column{
		{Name: "id", Type: schema.Type{Kind: schema.Int32}},
		{Name: "v", Type: schema.Type{Kind: schema.Text}},
		{Name: "list", Type: schema.Type{Kind: schema.Array, Elem: &schema.Type{Kind: schema.TimestampTZ}}},
	}}
}

func tuple(kind byte, values ...string) []byte {
	row := make([][]byte, len(values))
	for i, v := range values {
		if v != "NULL" {
			row[i] = []byte(v)
		}
	}
	return appendTuple([]byte{kind}, row)
}

func TestDamagedCommitsDoNotPanic(t *testing.T) {
	table := listTable()
	f := &connector.Frames{Table: table, Commits: []connector.Commit{{Rows: math.MaxInt}, {Rows: -1}, {Rows: math.MaxInt}}}
	if _, err := newRowDecoder(table, memory.DefaultAllocator).Decode(f); connector.KindOf(err) != connector.TableFault {
		t.Errorf("kind %s: %v", connector.KindOf(err), err)
	}
}

func TestDamagedFramesNameTheColumnAndThePosition(t *testing.T) {
	header := func(kind byte, tuples ...[]byte) []byte {
		m := []byte{kind, 0, 0, 0, 1}
		for _, tuple := range tuples {
			m = append(m, tuple...)
		}
		return m
	}
	good := header('I', tuple('N', "1", "a", "{}"))
	d := newRowDecoder(listTable(0), memory.DefaultAllocator)
	for name, c := range map[string]struct {
		message []byte
		column  string
	}{
		"value":           {header('I', tuple('N', "secret", "a", "{}")), "id"},
		"array":           {header('I', tuple('N', "1", "a", "{secret}")), "list"},
		"fewer columns":   {header('I', tuple('N', "1")), ""},
		"more columns":    {header('I', tuple('N', "1", "a", "{}", "secret")), ""},
		"no tuple":        {header('I'), ""},
		"unknown message": {header('X', tuple('N', "1", "a", "{}")), ""},
		"binary value":    {append(header('I'), 'N', 0, 3, 'b', 0, 0, 0, 0, 'n', 'n'), ""},
		"key is NULL":     {header('D', tuple('K', "NULL", "NULL", "NULL")), "id"},
		"no new tuple":    {header('U', tuple('K', "1", "NULL", "NULL")), ""},
		"long":            {append(header('I', tuple('N', "1", "a", "{}")), 0), ""},
	} {
		f := &connector.Frames{Data: appendMessage(appendMessage(nil, good), c.message), Commits: []connector.Commit{{Rows: 1, Position: "7/1/1"}, {Rows: 1, Position: "7/1/2"}}}
		_, err := d.Decode(f)
		var e *connector.Error
		if connector.KindOf(err) == connector.TableFault {
			e = err.(*connector.Error)
		}
		if e == nil || e.Column != c.column || e.Position != "7/1/2" || e.Table.Table != "t" || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := d.Decode(&connector.Frames{Data: appendMessage(nil, good), Commits: []connector.Commit{{Rows: 1}}})
	if err != nil || r.Len() != 1 {
		t.Errorf("after an error nothing of it may be left: %v", err)
	}
}

func FuzzDecodeRow(f *testing.F) {
	for _, m := range [][]byte{
		append([]byte{'I', 0, 0, 0, 1}, tuple('N', "1", "a", `{NULL,"2024-01-01 00:00:00+00"}`)...),
		append(append([]byte{'U', 0, 0, 0, 1}, tuple('K', "1", "NULL", "NULL")...), tuple('N', "2", "b", "[0:0]={infinity}")...),
		append([]byte{'D', 0, 0, 0, 1}, tuple('O', "1", "a", "{}")...), {'T', 0, 0, 0, 1, 0, 0, 0, 0, 1},
	} {
		f.Add(appendMessage(nil, m), 1)
	}
	d := newRowDecoder(listTable(0), memory.DefaultAllocator)
	f.Fuzz(func(t *testing.T, data []byte, rows int) {
		r, err := d.Decode(&connector.Frames{Data: data, Commits: []connector.Commit{{Rows: rows}}})
		if err != nil {
			if connector.KindOf(err) != connector.TableFault {
				t.Fatal(err)
			}
			return
		}
		for i := range r.Len() {
			_ = r.Op(i)
			for c := range int(r.Values.NumCols()) {
				_ = r.IsUnsent(c, i)
			}
		}
		if r.Commits[0].Rows != r.Len() {
			t.Fatalf("%d rows in the commit, %d decoded", r.Commits[0].Rows, r.Len())
		}
		r.Release()
	})
}
