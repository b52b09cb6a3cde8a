package crash

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/internal/testdb"
)

// table is one that the writer changes. Beside its key it has the columns v (unique to each change of the whole source),
// note (short) and big (stored out of line when it is long).
type table struct {
	name string
	key  []string // column and type
	make func(*rand.Rand) []string
	more string // statements after its creation
	by   string // partitioning clause
}

// keys is how many different keys a table has, so that its rows meet often.
const keys = 4000

func number(r *rand.Rand) int { return r.IntN(keys) + 1 }

var tables = []table{
	{
		name: "keyed", key: []string{"id bigint"},
		make: func(r *rand.Rand) []string { return []string{strconv.Itoa(number(r))} },
	},
	{ // the key's order is not that of the columns
		name: "composite", key: []string{"b text", "a int"},
		make: func(r *rand.Rand) []string {
			return []string{fmt.Sprintf("b'%d", r.IntN(60)), strconv.Itoa(r.IntN(60))}
		},
	},
	{
		name: "identified", key: []string{"id int"},
		make: func(r *rand.Rand) []string { return []string{strconv.Itoa(number(r))} },
		more: "ALTER TABLE identified REPLICA IDENTITY FULL",
	},
	{ // an update of region moves a row to another partition
		name: "parted", key: []string{"id int", "region text"},
		make: func(r *rand.Rand) []string {
			return []string{strconv.Itoa(r.IntN(keys/4) + 1), []string{"eu", "us", "as", "af"}[r.IntN(4)]}
		},
		by: "PARTITION BY LIST (region)",
		more: `CREATE TABLE parted_eu PARTITION OF parted FOR VALUES IN ('eu');
			CREATE TABLE parted_us PARTITION OF parted FOR VALUES IN ('us');
			CREATE TABLE parted_rest PARTITION OF parted DEFAULT PARTITION BY HASH (id);
			CREATE TABLE parted_rest_0 PARTITION OF parted_rest FOR VALUES WITH (MODULUS 2, REMAINDER 0);
			CREATE TABLE parted_rest_1 PARTITION OF parted_rest FOR VALUES WITH (MODULUS 2, REMAINDER 1)`,
	},
	{ // one key has many texts: 7, 7.0, 7.00
		name: "by_numeric", key: []string{"k numeric"},
		make: func(r *rand.Rand) []string {
			return []string{fmt.Sprintf("%d%s", number(r), []string{"", ".0", ".00", ".5"}[r.IntN(4)])}
		},
	},
	{
		name: "by_uuid", key: []string{"k uuid"},
		make: func(r *rand.Rand) []string { return []string{fmt.Sprintf("00000000-0000-4000-8000-%012x", number(r))} },
	},
	{
		name: "by_text", key: []string{"k text"},
		make: func(r *rand.Rand) []string {
			return []string{fmt.Sprintf("%s%d", []string{"", "É", "😀 ", "a\tb\\"}[r.IntN(4)], r.IntN(keys/4))}
		},
	},
	{ // mirrored in mode history
		name: "audited", key: []string{"id int"},
		make: func(r *rand.Rand) []string { return []string{strconv.Itoa(number(r))} },
		more: auditSQL,
	},
	{
		name: "swapped", key: []string{"id int"},
		make: func(r *rand.Rand) []string { return []string{strconv.Itoa(number(r))} },
	},
	{ // the only one that is truncated
		name: "cleared", key: []string{"id int"},
		make: func(r *rand.Rand) []string { return []string{strconv.Itoa(number(r))} },
	},
}

// auditSQL records every change of the table audited in the transaction that makes it. The numbers of one key's records
// follow its changes: whoever takes one holds the row's lock.
const auditSQL = `
	CREATE TABLE audit (number bigserial PRIMARY KEY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(), op text NOT NULL,
		id int NOT NULL, old_id int, row_sum text NOT NULL);
	CREATE FUNCTION record_change() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO audit (op, id, old_id, row_sum) VALUES (lower(TG_OP), coalesce(NEW.id, OLD.id),
			CASE WHEN TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN OLD.id END,
			CASE TG_OP WHEN 'DELETE' THEN '' ELSE md5(ROW(NEW.id, NEW.v, NEW.note, NEW.big)::text) END);
		RETURN NULL;
	END $$;
	CREATE TRIGGER record_change AFTER INSERT OR UPDATE OR DELETE ON audited FOR EACH ROW EXECUTE FUNCTION record_change()`

func (t *table) keyNames() []string {
	names := make([]string, len(t.key))
	for i, k := range t.key {
		names[i], _, _ = strings.Cut(k, " ")
	}
	return names
}

// createSource makes the tables and fills them by the writer's own means, so that each kind of row is there at the copy.
func createSource(t testing.TB, url string, seed uint64) {
	t.Helper()
	var b strings.Builder
	b.WriteString("CREATE SEQUENCE version CACHE 1;\n")
	for _, tab := range tables {
		fmt.Fprintf(&b, "CREATE TABLE %s (%s, v bigint NOT NULL, note text, big text, PRIMARY KEY (%s)) %s;\n",
			tab.name, strings.Join(tab.key, ", "), strings.Join(tab.keyNames(), ", "), tab.by)
		fmt.Fprintf(&b, "ALTER TABLE %s ALTER big SET STORAGE EXTERNAL;\n%s;\n", tab.name, tab.more)
	}
	testdb.Exec(t, url, b.String())
	b.Reset()
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range tables {
		for range keys / 2 {
			b.WriteString(tables[i].insert(rng) + ";\n")
		}
	}
	testdb.Exec(t, url, b.String())
}
