package e2e

import (
	"fmt"
	"strings"
)

// kind is a table with the values its columns take. A value is an SQL expression over g, a whole number: as an insert
// makes row g, or an update writes another g's value into it.
type kind struct {
	name    string // SQL, quoted and qualified
	create  string // statements
	key     string // SQL: the column that numbers the rows, g by its expression in columns
	columns []column
	refused string // what the plan says about a table that cannot be mirrored
	empty   bool   // stays empty
}

type column struct{ name, value string }

// pool is an expression that picks one of some literals of a type; the last of them is NULL.
func pool(native string, literals ...string) string {
	quoted := make([]string, len(literals))
	for i, l := range literals {
		quoted[i] = "'" + strings.ReplaceAll(l, "'", "''") + "'"
	}
	return fmt.Sprintf("(ARRAY[%s, NULL])[1 + g %% %d]::%s", strings.Join(quoted, ", "), len(literals)+1, native)
}

// domain is a type with literals that cover its ends and its odd values.
type domain struct {
	native   string
	literals []string
}

func of(native string, literals ...string) domain { return domain{native, literals} }

var (
	numbers = []domain{
		of("smallint", "0", "-32768", "32767"),
		of("int", "0", "-2147483648", "2147483647"),
		of("bigint", "0", "-9223372036854775808", "9223372036854775807", "9007199254740993"),
		of("real", "0", "-0", "0.1", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38"),
		of("double precision", "0", "-0", "0.1", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308"),
		of("numeric", "0", "0.000", "-1.50", "NaN", "Infinity", "-Infinity", "1e131071", "1e-16383", "12345678901234567890.123456789"),
		of("numeric(12,2)", "0", "1.5", "-9999999999.99", "NaN"),
		of("numeric(38,0)", "70", "-99999999999999999999999999999999999999"),
		of("money", "0", "-92233720368547758.08", "12.34"),
		of("boolean", "t", "f"),
		of("oid", "0", "4294967295"),
	}
	times = []domain{
		of("date", "2024-02-29", "infinity", "-infinity", "4713-11-24 BC", "5874897-12-31", "0001-01-01", "1582-10-10"),
		of("timestamp", "2024-02-29 23:59:59.999999", "infinity", "-infinity", "4713-11-24 00:00 BC", "294276-12-31 23:59:59.999999", "1999-12-31 23:59:59.999999"),
		of("timestamptz", "2024-03-31 02:30:00+02", "infinity", "-infinity", "4713-11-24 00:00+00 BC", "294276-12-31 23:59:59.999999+00"),
		of("timestamp(0)", "2024-02-29 23:59:59.5", "infinity"),
		of("time", "00:00", "24:00", "12:34:56.789012"),
		of("timetz", "00:00+15:59:59", "24:00-15:59:59", "12:34:56.789012+05:30"),
		of("interval", "1 mon 30 days 720:00:00.000001", "-1 mon +1 day -00:00:00.000001", "178000000 years", "0"),
	}
	strings_ = []domain{
		of("text", "", "NULL", `\N`, "é中😀", "a\tb\nc\rd\\", "trailing  "),
		of("varchar(20)", "", "null", "é  "),
		of("char(7)", "", "ab", "é"),
		of(`"char"`, "", "x"),
		of("name", "", "n"),
		of("bytea", "", `\x00`, `\xdeadbeef`, `\x5c`),
		of("uuid", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
		of("bit(5)", "10101", "00000"),
		of("bit varying(9)", "", "1", "101010101"),
	}
	networks = []domain{
		of("inet", "10.0.0.1", "10.0.0.1/8", "::1", "2001:db8::/32"),
		of("cidr", "10.0.0.0/8", "::/0"),
		of("macaddr", "08:00:2b:01:02:03"),
		of("macaddr8", "08:00:2b:01:02:03:04:05"),
		of("pg_lsn", "0/0", "FFFFFFFF/FFFFFFFF"),
		of("txid_snapshot", "10:20:10,14,15"),
	}
	ranges = []domain{
		of("int4range", "[1,5)", "empty", "(,)", "[-2147483648,2147483647)"),
		of("int8range", "[1,5)", "(,1)"),
		of("numrange", "(1.50,]", "[NaN,]", "empty"),
		of("tsrange", `["2024-01-01 00:00",infinity)`, "empty"),
		of("tstzrange", `["2024-01-01 00:00+00",infinity]`, "(,)"),
		of("daterange", "[2024-01-01,2024-02-01)", "[-infinity,infinity]"),
		of("int4multirange", "{}", "{[1,2),[5,9)}"),
		of("tstzmultirange", `{["2024-01-01 00:00+00","2024-01-02 00:00+00"),["2025-01-01 00:00+00",)}`),
	}
	shapes = []domain{
		of("point", "(0,0)", "(-1.5,1e300)", "(NaN,Infinity)"),
		of("line", "{1,2,3}"),
		of("lseg", "[(0,0),(1,1)]"),
		of("box", "(1,1),(0,0)"),
		of("path", "[(0,0),(1,1)]", "((0,0),(1,1),(2,0))"),
		of("polygon", "((0,0),(1,1),(2,0))"),
		of("circle", "<(0,0),0.1>"),
	}
	documents = []domain{
		of("json", "null", `"a"`, `{"b": 1.0, "a" : 1,  "a":2}`, "[]", "12345678901234567890.1"),
		of("jsonb", "null", `"a"`, `{"b": 1.0, "a" : 1}`, "{}", "12345678901234567890.1", `"é\n\\u0000"`),
		of("xml", "<a b=\"1\">x &amp; y</a>", "text only"),
		of("jsonpath", "$", "$.a[*]?(@ > 1)"),
		of("tsvector", "'a b':1A fat:2B", ""),
		of("tsquery", "fat & (rat | cat:*)"),
	}
)

const userTypes = `
	CREATE TYPE mood AS ENUM ('sad', 'ok, "fine"', '', 'NULL');
	CREATE TYPE address AS (street text, no int, tags text[]);
	CREATE TYPE person AS (name text, home address, feels mood);
	CREATE DOMAIN positive AS int CHECK (VALUE > 0);
	CREATE DOMAIN label AS varchar(20) DEFAULT 'x';
	CREATE DOMAIN feeling AS mood;
	CREATE TYPE spans AS RANGE (subtype = float8);`

var mine = []domain{
	of("mood", "sad", `ok, "fine"`, "", "NULL"),
	of("address", `("a ""b"", (c)",,"{x,y z}")`, "(,,)", `(\\,1,{})`),
	of("person", `(Ann,"(High St,1,{a})",sad)`, "(,,)"),
	of("positive", "1", "2147483647"),
	of("label", "", "l"),
	of("feeling", "sad", "NULL"),
	of("spans", "[0.1,0.2)", "empty", "(,)"),
}

// allOf is a table with a column of each type.
func allOf(name string, types []domain) kind {
	k := kind{name: name, key: "id", columns: []column{{"id", "g"}}}
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE %s (id bigint PRIMARY KEY", name)
	for i, d := range types {
		c := fmt.Sprintf("c%d", i)
		fmt.Fprintf(&b, ", %s %s", c, d.native)
		k.columns = append(k.columns, column{c, pool(d.native, d.literals...)})
	}
	k.create = b.String() + ")"
	return k
}

// arraysOf is a table with arrays of each type: NULL and empty ones, of one and two dimensions, not from 1, with NULL in them.
func arraysOf(name string, types []domain) kind {
	k := kind{name: name, key: "id", columns: []column{{"id", "g"}}}
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE TABLE %s (id bigint PRIMARY KEY", name)
	for i, d := range types {
		c := fmt.Sprintf("c%d", i)
		fmt.Fprintf(&b, ", %s %s[]", c, d.native)
		one := pool(d.native, d.literals...)
		next := strings.ReplaceAll(one, "1 + g ", "1 + (g + 1) ")
		k.columns = append(k.columns, column{c, fmt.Sprintf(`CASE g %% 6 WHEN 0 THEN NULL WHEN 1 THEN '{}'::%[1]s[] WHEN 2 THEN ARRAY[%[2]s]
			WHEN 3 THEN ARRAY[[%[2]s, %[3]s], [%[3]s, NULL]] WHEN 4 THEN array_prepend(%[2]s, ARRAY[%[3]s]) ELSE array_fill(%[2]s, ARRAY[3], ARRAY[-1]) END`,
			d.native, one, next)})
	}
	k.create = b.String() + ")"
	return k
}

const filler = "repeat(md5(g::text), (g % 5 * 60)::int)" // up to 7 kB: out of line from g % 5 = 2 on

var kinds = []kind{
	allOf("numbers", numbers), allOf("times", times), allOf("strings", strings_), allOf("networks", networks),
	allOf("ranges", ranges), allOf("shapes", shapes), allOf("documents", documents), allOf("mine", mine),
	arraysOf("arrays_of_numbers", numbers), arraysOf("arrays_of_times", times), arraysOf("arrays_of_strings", strings_),
	arraysOf("arrays_of_others", append(append([]domain{}, documents[1], networks[0], ranges[0], shapes[0]), mine[:4]...)),
	{
		name: "generated", key: "id",
		create: `CREATE TABLE generated (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, net numeric(10,2),
			gross numeric GENERATED ALWAYS AS (net * 1.19) STORED, shout text GENERATED ALWAYS AS (upper(name)) STORED, name text)`,
		columns: []column{{"id", "g"}, {"net", "g / 7.0"}, {"name", "'n' || g"}},
	},
	{
		name: "sales", key: "id",
		create: `CREATE TABLE sales (id int, region text, amount numeric, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
			CREATE TABLE sales_eu PARTITION OF sales FOR VALUES IN ('eu') PARTITION BY RANGE (id);
			CREATE TABLE sales_eu_low PARTITION OF sales_eu FOR VALUES FROM (MINVALUE) TO (300);
			CREATE TABLE sales_eu_high (note text, amount numeric, gone int, region text NOT NULL, id int NOT NULL, PRIMARY KEY (id, region));
			ALTER TABLE sales_eu_high DROP gone;
			ALTER TABLE sales_eu ATTACH PARTITION sales_eu_high FOR VALUES FROM (300) TO (MAXVALUE);
			CREATE TABLE sales_rest PARTITION OF sales DEFAULT`,
		columns: []column{{"id", "g"}, {"region", "CASE g % 3 WHEN 0 THEN 'eu' WHEN 1 THEN 'us' ELSE 'as' END"}, {"amount", "g"}, {"note", filler}},
	},
	{
		name: "parent", key: "id", create: "CREATE TABLE parent (id int PRIMARY KEY, v text)",
		columns: []column{{"id", "g"}, {"v", "'p' || g"}},
	},
	{
		name: "child", key: "id", create: "CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent)",
		columns: []column{{"id", "g"}, {"v", "'c' || g"}, {"more", "'m' || g"}},
	},
	{
		name: `"t😀 ""q"" x"`, key: `"I""d"`, create: `CREATE TABLE "t😀 ""q"" x" ("I""d" int PRIMARY KEY, "order" text, "😀 ü" text, "a.b" text, "c,d" text, "%s" text)`,
		columns: []column{{`"I""d"`, "g"}, {`"order"`, "'o' || g"}, {`"😀 ü"`, "'😀' || g"}, {`"a.b"`, "NULL"}, {`"c,d"`, "g::text"}, {`"%s"`, "'%d'"}},
	},
	{
		name: `"Odd.Schema"."select"`, key: `"from"`, create: `CREATE SCHEMA "Odd.Schema"; CREATE TABLE "Odd.Schema"."select" ("from" int PRIMARY KEY, "where" text)`,
		columns: []column{{`"from"`, "g"}, {`"where"`, "'w' || g"}},
	},
	{ // the key's order is not the table's
		name: "lines", key: "line", create: "CREATE TABLE lines (note text, line int, big text, name text, at timestamptz, PRIMARY KEY (name, at, line))",
		columns: []column{{"line", "g"}, {"name", "'n' || g % 7"}, {"at", "timestamptz '2024-01-01 00:00+00' + g % 5 * interval '1 us'"}, {"note", "'x' || g"}, {"big", filler}},
	},
	{
		name: "by_bytes", key: "id", create: "CREATE TABLE by_bytes (k bytea, f numeric, id int UNIQUE, big text, PRIMARY KEY (k, f))",
		columns: []column{{"id", "g"}, {"k", "decode(md5((g % 50)::text), 'hex')"}, {"f", "g + (g % 3) / 10.0"}, {"big", filler}},
	},
	{
		name: "identity_full", key: "id", create: "CREATE TABLE identity_full (id int PRIMARY KEY, v text, big text); ALTER TABLE identity_full REPLICA IDENTITY FULL",
		columns: []column{{"id", "g"}, {"v", "CASE WHEN g % 4 > 0 THEN 'v' || g END"}, {"big", filler}},
	},
	{
		name: "identity_index", key: "id", create: `CREATE TABLE identity_index (id int NOT NULL, v text, big text);
			CREATE UNIQUE INDEX identity_index_id ON identity_index (id); ALTER TABLE identity_index REPLICA IDENTITY USING INDEX identity_index_id`,
		columns: []column{{"id", "g"}, {"v", "'v' || g"}, {"big", filler}},
	},
	{
		name: "large_values", key: "id", create: `CREATE TABLE large_values (id int PRIMARY KEY, n int, t text, b bytea, j jsonb, a text[]);
			ALTER TABLE large_values ALTER t SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL, ALTER a SET STORAGE EXTERNAL`,
		columns: []column{
			{"id", "g"}, {"n", "g"}, {"t", filler}, {"b", "decode(" + filler + ", 'hex')"},
			{"j", "jsonb_build_object('k', " + filler + ")"}, {"a", "array_fill(md5(g::text), ARRAY[(g % 4 * 50)::int])"},
		},
	},
	{
		name: "dropped_columns", key: "id", create: `CREATE TABLE dropped_columns (a int, id int PRIMARY KEY, b text, c text, d text);
			ALTER TABLE dropped_columns DROP a, DROP c; ALTER TABLE dropped_columns ADD e text DEFAULT 'e'`,
		columns: []column{{"id", "g"}, {"b", "'b' || g"}, {"d", "'d' || g"}, {"e", "NULLIF(g % 3, 0)::text"}},
	},
	{
		name: "only_key", key: "id", create: "CREATE TABLE only_key (id int PRIMARY KEY)",
		columns: []column{{"id", "g"}},
	},
	wide(300),
	{name: "empty", create: "CREATE TABLE empty (id int PRIMARY KEY, v text)", empty: true},
	{
		name: "no_key", key: "id", create: "CREATE TABLE no_key (id int, v text)", refused: "primary key",
		columns: []column{{"id", "g"}, {"v", "'v' || g"}},
	},
	{
		name: "unlogged", key: "id", create: "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY, v text)", refused: "unlogged",
		columns: []column{{"id", "g"}, {"v", "'v' || g"}},
	},
}

func wide(n int) kind {
	k := kind{name: "wide", key: "id", columns: []column{{"id", "g"}}}
	var b strings.Builder
	b.WriteString("CREATE TABLE wide (id int PRIMARY KEY")
	for i := range n {
		fmt.Fprintf(&b, ", c%d text", i)
		k.columns = append(k.columns, column{fmt.Sprintf("c%d", i), fmt.Sprintf("CASE WHEN (g + %d) %% 5 = 0 THEN 'v' || g END", i)})
	}
	k.create = b.String() + ")"
	return k
}

// insert makes the rows from one number to another; those that are there stay as they are.
func (k *kind) insert(from, to int) string {
	names, values := make([]string, len(k.columns)), make([]string, len(k.columns))
	for i, c := range k.columns {
		names[i], values[i] = c.name, c.value
	}
	return fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM generate_series(%d::bigint, %d) g ON CONFLICT DO NOTHING",
		k.name, strings.Join(names, ", "), strings.Join(values, ", "), from, to)
}

// update writes into columns from the one given on, at most three, the values of row g; a key column leaves its row where
// another has the place.
func (k *kind) update(row, column, g int) string {
	var set []string
	for _, c := range k.columns[column:min(column+3, len(k.columns))] {
		set = append(set, fmt.Sprintf("%s = (SELECT %s FROM (SELECT %d::bigint AS g) x)", c.name, c.value, g))
	}
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s = %d", k.name, strings.Join(set, ", "), k.key, row)
}

func (k *kind) delete(row int) string {
	return fmt.Sprintf("DELETE FROM %s WHERE %s = %d", k.name, k.key, row)
}
