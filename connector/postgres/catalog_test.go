package postgres

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// openTestSource returns a source on a new database in which setup was run.
func openTestSource(t testing.TB, setup string) (src *Source, url string) {
	t.Helper()
	url = testServer.Database(t)
	testdb.Exec(t, url, setup)
	src, err := OpenSource(t.Context(), &Config{URL: url, Connections: 8}, connector.Env{Mirror: "m"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src, url
}

// discover returns the tables of a source by schema.table as it is written in the catalog.
func discover(t testing.TB, src *Source) map[string]*schema.Table {
	t.Helper()
	ts, err := src.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*schema.Table{}
	for _, table := range ts {
		byName[table.Name.Schema+"."+table.Name.Table] = table
	}
	return byName
}

func TestDiscoveryFindsTablesOfAnyName(t *testing.T) {
	src, _ := openTestSource(t, `
		CREATE TABLE "t😀 ""q"" x" ("select" int PRIMARY KEY, "a.b" text, "Mixed""Case" int);
		CREATE SCHEMA "My.Schema"; CREATE TABLE "My.Schema"."order" (id int PRIMARY KEY);
		CREATE SCHEMA sluice; CREATE TABLE sluice.entry (id int PRIMARY KEY);
		CREATE TABLE none ();
		CREATE TEMP TABLE gone (id int)`)
	tables := discover(t, src)
	names := []string{}
	for n := range tables {
		names = append(names, n)
	}
	slices.Sort(names)
	want := []string{"My.Schema.order", "public.none", "public.t😀 \"q\" x"}
	if !slices.Equal(names, want) {
		t.Fatalf("tables %q, want %q", names, want)
	}
	weird := tables[want[2]]
	if got := []string{weird.Columns[0].Name, weird.Columns[1].Name, weird.Columns[2].Name}; !slices.Equal(got, []string{"select", "a.b", `Mixed"Case`}) {
		t.Errorf("columns %q", got)
	}
}

func TestKeyIsWhatTheReplicaIdentitySends(t *testing.T) {
	src, _ := openTestSource(t, `
		CREATE TABLE pk (b int, a int, PRIMARY KEY (a, b));
		CREATE TABLE bare (a int);
		CREATE TABLE unique_only (a int NOT NULL UNIQUE, b int);
		CREATE TABLE by_index (a int PRIMARY KEY, b int NOT NULL); CREATE UNIQUE INDEX by_index_b ON by_index (b);
		ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b;
		CREATE TABLE full_pk (a int PRIMARY KEY, b int); ALTER TABLE full_pk REPLICA IDENTITY FULL;
		CREATE TABLE full_unique (a int UNIQUE, b int NOT NULL, c int NOT NULL); ALTER TABLE full_unique REPLICA IDENTITY FULL;
		CREATE UNIQUE INDEX ON full_unique ((b + 1)); CREATE UNIQUE INDEX ON full_unique (c) WHERE c > 0;
		CREATE UNIQUE INDEX ON full_unique (c, b);
		CREATE TABLE full_bare (a int UNIQUE); ALTER TABLE full_bare REPLICA IDENTITY FULL;
		CREATE TABLE nothing (a int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
		CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE);
		CREATE TABLE generated (a int, b int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY);
		CREATE TABLE lost_index (a int NOT NULL); CREATE UNIQUE INDEX lost ON lost_index (a);
		ALTER TABLE lost_index REPLICA IDENTITY USING INDEX lost; DROP INDEX lost;
		CREATE TABLE parts (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
		CREATE TABLE odd_leaf (a int PRIMARY KEY) PARTITION BY RANGE (a);
		CREATE TABLE odd_leaf_1 PARTITION OF odd_leaf DEFAULT; ALTER TABLE odd_leaf_1 REPLICA IDENTITY NOTHING;
		CREATE TABLE parts_full (a int NOT NULL UNIQUE) PARTITION BY RANGE (a); ALTER TABLE parts_full REPLICA IDENTITY FULL;
		CREATE TABLE parts_full_1 PARTITION OF parts_full DEFAULT; ALTER TABLE parts_full_1 REPLICA IDENTITY FULL;
		CREATE TABLE parts_index (a int NOT NULL) PARTITION BY RANGE (a); CREATE UNIQUE INDEX parts_index_a ON parts_index (a);
		CREATE TABLE parts_index_1 PARTITION OF parts_index DEFAULT; ALTER TABLE parts_index REPLICA IDENTITY USING INDEX parts_index_a;
		ALTER TABLE parts_index_1 REPLICA IDENTITY USING INDEX parts_index_1_a_idx;
		CREATE TABLE include (a int, b int, PRIMARY KEY (a) INCLUDE (b))`)
	for name, want := range map[string]struct{ key, keyless string }{
		"pk": {key: "a b"}, "by_index": {key: "b"}, "full_pk": {key: "a"}, "full_unique": {key: "c b"}, "parts": {key: "a"}, "include": {key: "a"},
		"bare":        {keyless: `ALTER TABLE "public"."bare" ADD PRIMARY KEY`},
		"full_bare":   {keyless: `ALTER TABLE "public"."full_bare" ADD PRIMARY KEY`},
		"unique_only": {keyless: `ALTER TABLE "public"."unique_only" REPLICA IDENTITY USING INDEX "unique_only_a_key"`},
		"nothing":     {keyless: `ALTER TABLE "public"."nothing" REPLICA IDENTITY DEFAULT`},
		"deferred":    {keyless: `ALTER TABLE "public"."deferred" DROP CONSTRAINT "deferred_pkey", ADD PRIMARY KEY ("a")`},
		"generated":   {keyless: `ALTER TABLE "public"."generated" ALTER COLUMN "b" DROP EXPRESSION`},
		"lost_index":  {keyless: `ALTER TABLE "public"."lost_index" ADD PRIMARY KEY`},
		"parts_full":  {keyless: `ALTER TABLE "public"."parts_full" ADD PRIMARY KEY ("a")`},
		"parts_index": {keyless: `ALTER TABLE "public"."parts_index" ADD PRIMARY KEY ("a")`},
		"odd_leaf":    {keyless: `ALTER TABLE "public"."odd_leaf_1" REPLICA IDENTITY FULL`},
	} {
		table := discover(t, src)["public."+name]
		if table == nil {
			t.Errorf("%s was not found", name)
			continue
		}
		if got := strings.Join(table.KeyNames(), " "); got != want.key || !strings.Contains(table.Keyless, want.keyless) || (want.keyless == "") != (table.Keyless == "") || table.Refused != "" {
			t.Errorf("%s: key %q, keyless %q, refused %q; want %+v", name, got, table.Keyless, table.Refused, want)
		}
	}
}

func TestUniqueKeysSayWhetherTheReplicaIdentitySendsThem(t *testing.T) {
	src, _ := openTestSource(t, `
		CREATE TABLE by_default (a int PRIMARY KEY, b int NOT NULL UNIQUE, c int UNIQUE);
		CREATE TABLE part_of_it (a int, b int NOT NULL UNIQUE, PRIMARY KEY (a, b));
		CREATE TABLE by_full (a int PRIMARY KEY, b int NOT NULL UNIQUE); ALTER TABLE by_full REPLICA IDENTITY FULL;
		CREATE TABLE deferred (a int PRIMARY KEY, b int NOT NULL UNIQUE DEFERRABLE); ALTER TABLE deferred REPLICA IDENTITY FULL;
		CREATE TABLE generated (a int PRIMARY KEY, g int GENERATED ALWAYS AS (a + 1) STORED NOT NULL UNIQUE);
		ALTER TABLE generated REPLICA IDENTITY FULL;
		CREATE TABLE parts (a int PRIMARY KEY, b int NOT NULL, UNIQUE (b, a)) PARTITION BY RANGE (a);
		CREATE TABLE parts_1 PARTITION OF parts DEFAULT`)
	tables := discover(t, src)
	for name, want := range map[string][]string{
		"by_default": {"a", `b ALTER TABLE "public"."by_default" REPLICA IDENTITY USING INDEX "by_default_b_key"`},
		"part_of_it": {"a b", "b"}, "by_full": {"a", "b"}, "deferred": {"a"},
		"generated": {"a", `g ALTER TABLE "public"."generated" ALTER COLUMN "g" DROP EXPRESSION`},
		"parts":     {"a", `b a ALTER TABLE "public"."parts_1" REPLICA IDENTITY FULL`},
	} {
		table := tables["public."+name]
		var got []string
		for _, u := range table.Unique {
			var words []string
			for _, c := range u.Columns {
				words = append(words, table.Columns[c].Name)
			}
			if _, fix, unfit := strings.Cut(u.Unfit, "; "); unfit {
				words = append(words, fix)
			}
			got = append(got, strings.Join(words, " "))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestRefusedTablesSayWhyAndWhatToDo(t *testing.T) {
	src, _ := openTestSource(t, `
		CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw;
		CREATE EXTENSION pg_buffercache;
		CREATE UNLOGGED TABLE scratch (a int PRIMARY KEY);
		CREATE FOREIGN TABLE far (a int) SERVER files OPTIONS (filename '/dev/null');
		CREATE VIEW seen AS SELECT 1 AS x; CREATE MATERIALIZED VIEW kept AS SELECT 1 AS x;
		CREATE TABLE ours (a int PRIMARY KEY, _sluice_op text);
		CREATE TABLE parts (a int) PARTITION BY RANGE (a);
		CREATE UNLOGGED TABLE parts_1 PARTITION OF parts DEFAULT;
		CREATE TABLE far_parts (a int) PARTITION BY RANGE (a);
		CREATE FOREIGN TABLE far_parts_1 PARTITION OF far_parts DEFAULT SERVER files OPTIONS (filename '/dev/null');
		CREATE TABLE half_full (a int) PARTITION BY RANGE (a); CREATE TABLE half_full_1 PARTITION OF half_full DEFAULT;
		ALTER TABLE half_full REPLICA IDENTITY FULL`)
	tables := discover(t, src)
	for name, want := range map[string]string{
		"scratch": `ALTER TABLE "public"."scratch" SET LOGGED`, "far": "foreign table", "seen": "view", "kept": "materialized view",
		"ours": `RENAME COLUMN "_sluice_op"`, "parts": `ALTER TABLE "public"."parts_1" SET LOGGED`,
		"far_parts": `DETACH PARTITION "public"."far_parts_1"`, "half_full": `ALTER TABLE "public"."half_full_1" REPLICA IDENTITY FULL`,
	} {
		if table := tables["public."+name]; table == nil || !strings.Contains(table.Refused, want) {
			t.Errorf("%s: %+v, want refused with %q", name, table, want)
		}
	}
	if len(tables) != 8 {
		t.Errorf("%d tables, want 8: partitions and an extension's views are not listed", len(tables))
	}
}

func TestColumnsKeepWhatASinkNeeds(t *testing.T) {
	scale := int32(-2)
	if testServer.Version(t) < 150000 {
		scale = 2 // 15 was the first with others
	}
	src, url := openTestSource(t, `
		CREATE SCHEMA shop; CREATE TYPE shop.mood AS ENUM ('sad', 'ok''ish'); CREATE DOMAIN shop.price AS numeric(10,2) CHECK (VALUE > 0);
		CREATE DOMAIN shop.big_price AS shop.price; CREATE TYPE shop.pair AS (x int, y shop.price[]);
		CREATE TABLE t (dropped int, id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n numeric(5,`+fmt.Sprint(scale)+`), p shop.big_price, m shop.mood[],
			c shop.pair, v varchar(7)[], ts timestamptz(3), g int GENERATED ALWAYS AS (1 + 1) STORED, i interval day to second(2), b box[], "char" "char");
		ALTER TABLE t DROP COLUMN dropped;
		INSERT INTO t DEFAULT VALUES;
		ALTER TABLE t ADD COLUMN late int NOT NULL DEFAULT 7, ADD COLUMN quoted text DEFAULT E'it''s \\', ADD COLUMN list int[] DEFAULT '{1,NULL}';
		ALTER TABLE t ALTER COLUMN late SET DEFAULT 8`)
	table := discover(t, src)["public.t"]
	column := func(name string) schema.Column { return table.Columns[table.Column(name)] }
	if c := column("id"); c.Number != 2 || !c.NotNull || c.Generated != "" || c.Type.Kind != schema.Int64 {
		t.Errorf("id: %+v", c)
	}
	if typ := column("n").Type; typ.Native != fmt.Sprintf("numeric(5,%d)", scale) || typ.Precision != 5 || typ.Scale != scale {
		t.Errorf("n: %+v", typ)
	}
	if typ := column("p").Type; typ.Kind != schema.Numeric || typ.Native != "numeric(10,2)" || typ.Scale != 2 {
		t.Errorf("a domain is not its base type: %+v", typ)
	}
	if typ := column("m").Type; typ.Native != "shop.mood[]" || !slices.Equal(typ.Elem.Labels, []string{"sad", "ok'ish"}) {
		t.Errorf("m: %+v", typ)
	}
	if typ := column("c").Type; typ.Kind != schema.Text || len(typ.Fields) != 2 || typ.Fields[1].Type.Native != "numeric(10,2)[]" {
		t.Errorf("c: %+v", typ)
	}
	if typ := column("v").Type; typ.Native != "character varying(7)[]" || typ.Elem.Native != "character varying(7)" {
		t.Errorf("v: %+v", typ)
	}
	if typ := column("ts").Type; typ.Precision != 3 {
		t.Errorf("ts: %+v", typ)
	}
	if c := column("g"); c.Generated != "(1 + 1)" {
		t.Errorf("g: %+v", c)
	}
	if typ := column("i").Type; typ.Kind != schema.Interval || typ.Precision != 2 {
		t.Errorf("i: %+v", typ)
	}
	if typ := column("b").Type; typ.Kind != schema.Text || typ.Native != "box[]" {
		t.Errorf("an array that has other separators than commas is text: %+v", typ)
	}
	for _, name := range []string{"late", "quoted", "list"} {
		value := column(name).Missing
		if value == nil {
			t.Errorf("%s: no default", name)
			continue
		}
		same := testdb.QueryText(t, url, "SELECT "+name+" IS NOT DISTINCT FROM "+quoteLiteral(*value)+"::"+column(name).Type.Native+" FROM t")
		if same != "t" {
			t.Errorf("%s: rows older than the column do not have %s", name, *value)
		}
	}
}

func TestVersionGrowsWithTheTableAlone(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)`)
	first := discover(t, src)
	testdb.Exec(t, url, "INSERT INTO a SELECT generate_series(1, 1000); ANALYZE a; ALTER TABLE b ADD COLUMN x int")
	second := discover(t, src)
	if a, b := second["public.a"], second["public.b"]; a.Version != first["public.a"].Version || b.Version != first["public.b"].Version+1 || a.Rows != 1000 || a.RowBytes <= 0 {
		t.Errorf("a %+v, b %+v", a, b)
	}
	oid, err := tableOID(second["public.b"].ID)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := src.table(t.Context(), oid); err != nil || b.Version != second["public.b"].Version {
		t.Errorf("table: %+v, %v", b, err)
	}
	testdb.Exec(t, url, "DROP TABLE b")
	b, err := src.table(t.Context(), oid)
	if err != nil || b.Refused == "" || b.Name.Table != "b" || b.Version <= second["public.b"].Version {
		t.Errorf("after DROP: %+v, %v", b, err)
	}
}
