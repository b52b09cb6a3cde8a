package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

const historyQuery = `SELECT id, a, b, _sluice_op, _sluice_position, _sluice_seq, _sluice_unsent, _sluice_old_key
	FROM t ORDER BY _sluice_position NULLS FIRST, _sluice_seq NULLS FIRST, id`

// writeHistoryRows applies one commit.
func writeHistoryRows(t *testing.T, s *Sink, target *connector.Target, position string, first int64, rows ...testRow) {
	t.Helper()
	r := testRows(t, target.Table, false, rows...)
	r.Commits = []connector.Commit{{Rows: len(rows), First: first, Position: connector.Position(position), Time: time.Date(2024, 2, 29, 1, 2, 3, 4000, time.UTC)}}
	x := begin(t, s)
	must(t, x.Write(t.Context(), target, r))
	must(t, x.Commit(t.Context(), nil))
}

func TestHistoryKeepsEveryChange(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t"), History: true}, inserts("1|a|A", "2|b|B")...)
	writeHistoryRows(t, s, target, "p1", 5, testRow{update, "1|x|~"}, testRow{insert, "3|c|C"}, testRow{before, "2|~|~"},
		testRow{update, "9|~|y"}, testRow{update, "9|~|~"}, testRow{remove, "1|~|~"})
	writeHistoryRows(t, s, target, "p2", 0, testRow{update, "9|~|z"}, testRow{update, "7|~|q"}, testRow{truncate, "∅"})
	writeHistoryRows(t, s, target, "p3", 0, testRow{update, "7|~|~"})
	wantRows(t, url, historyQuery, `1|a|A|copy|∅|∅|∅|∅
2|b|B|copy|∅|∅|∅|∅
1|x|A|update|p1|5|∅|∅
3|c|C|insert|p1|6|∅|∅
9|b|y|update|p1|7|∅|{"id": "2"}
9|b|y|update|p1|8|∅|∅
1|∅|∅|delete|p1|9|∅|∅
9|b|z|update|p2|0|∅|∅
7|∅|q|update|p2|1|{a}|∅
∅|∅|∅|truncate|p2|2|∅|∅
7|∅|q|update|p3|0|{a}|∅`)
	wantRows(t, url, "SELECT DISTINCT _sluice_committed_at AT TIME ZONE 'UTC' FROM t WHERE _sluice_op <> 'copy'", "2024-02-29 01:02:03.000004")
}

func TestHistoryInTextFormat(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := testTable("t", column("id", schema.Int32, "integer"), column("a", schema.Text, "text"), column("b", schema.Text, "inet"))
	target := stored(t, s, connector.Target{Table: table, History: true}, inserts("1|a|::1")...)
	writeHistoryRows(t, s, target, "p1", 0, testRow{before, "1|~|~"}, testRow{update, "2|~|::2"}, testRow{update, "8|~|~"})
	writeHistoryRows(t, s, target, "p2", 0, inserts("5|e|::5")...)
	wantRows(t, url, historyQuery, `1|a|::1|copy|∅|∅|∅|∅
2|a|::2|update|p1|0|∅|{"id": "1"}
8|∅|∅|update|p1|1|{a,b}|∅
5|e|::5|insert|p2|0|∅|∅`)
	wantRows(t, url, "SELECT DISTINCT _sluice_committed_at AT TIME ZONE 'UTC' FROM t WHERE _sluice_op <> 'copy'", "2024-02-29 01:02:03.000004")
}

func TestNoticesOfTriggersDoNotBlockTheRows(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t"), History: true})
	testdb.Exec(t, url, `CREATE FUNCTION noise() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE NOTICE '%', repeat('x', 8000); RETURN NEW; END $$;
		CREATE TRIGGER noise BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION noise()`)
	const n = 20_000 // more than the buffers on both sides hold
	rows := make([]testRow, n)
	for i := range rows {
		rows[i] = testRow{insert, fmt.Sprintf("%d|%s|b", i, strings.Repeat("y", 400))}
	}
	r := testRows(t, target.Table, false, rows...)
	r.Commits = []connector.Commit{{Rows: n, Position: "p"}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	x := begin(t, s)
	must(t, x.Write(ctx, target, r))
	must(t, x.Commit(ctx, nil))
	wantRows(t, url, "SELECT count(*) FROM t", fmt.Sprint(n))
}

func TestLaterCopyIsAppendedToAHistory(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	target := stored(t, s, connector.Target{Table: plain("t"), History: true}, inserts("1|a|A")...)
	copyAgain := func(rows ...testRow) {
		target.Copy++
		load(t, s, target, rows...)
		must(t, s.Ready(t.Context(), target, map[string]string{"at": fmt.Sprint(target.Copy)}))
	}
	copyAgain(inserts("1|a2|A2")...)
	writeHistoryRows(t, s, target, "p1", 3, testRow{update, "1|~|x"})
	copyAgain(inserts("1|a3|A3")...)
	writeHistoryRows(t, s, target, "p2", 0, testRow{update, "1|~|y"})
	wantRows(t, url, historyQuery, `1|a|A|copy|∅|∅|∅|∅
∅|∅|∅|gap|∅|1|∅|∅
1|a2|A2|copy|∅|2|∅|∅
1|a2|x|update|p1|3|∅|∅
∅|∅|∅|gap|p1|4|∅|∅
1|a3|A3|copy|p1|5|∅|∅
1|a3|y|update|p2|0|∅|∅`)
}

func TestHistoryOfATableWithoutAKey(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	table := plain("t")
	table.Key, table.Keyless = nil, "no key"
	target := stored(t, s, connector.Target{Table: table, History: true}, inserts("1|a|A", "1|a|A")...)
	writeHistoryRows(t, s, target, "p1", 0, testRow{insert, "1|a|A"}, testRow{before, "1|a|A"}, testRow{update, "1|~|B"}, testRow{remove, "1|a|A"})
	wantRows(t, url, historyQuery, `1|a|A|copy|∅|∅|∅|∅
1|a|A|copy|∅|∅|∅|∅
1|a|A|insert|p1|0|∅|∅
1|a|B|update|p1|1|∅|∅
1|a|A|delete|p1|2|∅|∅`)
	if got := testdb.QueryText(t, url, "SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass"); got != "0" {
		t.Errorf("%s indexes", got)
	}
}
