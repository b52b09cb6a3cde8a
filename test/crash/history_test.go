package crash

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
)

// record is one change of a row, as the source's audit or the sink's history tells it. A change of a row's key is an
// update of the new key and a record "moved" of the old one.
type record struct {
	op, id, row string // row is a checksum of the new row, "" where the key has no row any more
}

// committed is a change that the source's audit holds.
type committed struct {
	record
	xid string
	at  time.Time // of the commit
}

// copyOverlap is how much the commit times of transactions that a copy holds and of those that it does not may overlap: a
// transaction takes its time before others can see it.
const copyOverlap = 500 * time.Millisecond

// checkHistory holds the history of the table audited in the sink against the audit at the source: after what the copy
// brought, each committed change is there exactly once, in the order of its key.
func checkHistory(source, sink string) error {
	audit, err := readAudit(source)
	if err != nil {
		return err
	}
	history, err := readHistory(sink)
	if err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return compareHistory(audit, history)
}

// readAudit returns the changes by key, in order.
func readAudit(source string) (map[string][]committed, error) {
	const query = `SELECT op, id, row_sum, coalesce(old_id::text, ''), xid, (extract(epoch FROM pg_xact_commit_timestamp(xid::xid)) * 1e6)::bigint
		FROM audit ORDER BY number`
	rows, err := testdb.TryQuery(source, query)
	if err != nil {
		return nil, err
	}
	audit := map[string][]committed{}
	for _, r := range rows {
		micros, err := strconv.ParseInt(r[5], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("commit time of transaction %s: %w", r[4], err)
		}
		for _, c := range records(r) {
			audit[c.id] = append(audit[c.id], committed{record: c, xid: r[4], at: time.UnixMicro(micros)})
		}
	}
	return audit, nil
}

func readHistory(sink string) (map[string][]record, error) {
	const query = `SELECT _sluice_op, id, CASE WHEN _sluice_op <> 'delete' THEN md5(ROW(id, v, note, big)::text) ELSE '' END,
			coalesce(_sluice_old_key ->> 'id', '')
		FROM audited ORDER BY _sluice_op <> 'copy', _sluice_position COLLATE "C", _sluice_seq`
	rows, err := testdb.TryQuery(sink, query)
	if err != nil {
		return nil, err
	}
	history := map[string][]record{}
	for _, r := range rows {
		for _, c := range records(r) {
			history[c.id] = append(history[c.id], c)
		}
	}
	return history, nil
}

// records makes one or two records of op, key, checksum and old key.
func records(r []string) []record {
	change := []record{{r[0], r[1], r[2]}}
	if old := r[3]; old != "" {
		change = append(change, record{op: "moved", id: old})
	}
	return change
}

// compareHistory checks, key by key, that the history is a state that the audit reaches, or nothing, and then the audit's
// changes after that state; and, over all keys, that those which the copy is said to hold were committed before those that
// came later, a transaction being on one side only.
func compareHistory(audit map[string][]committed, history map[string][]record) error {
	var faults []string
	var copied, streamed []committed
	for id := range history {
		if audit[id] == nil {
			faults = append(faults, fmt.Sprintf("key %s: in the history, never at the source", id))
		}
	}
	for id, changes := range audit {
		n, err := splitAt(changes, history[id])
		if err != nil {
			faults = append(faults, fmt.Sprintf("key %s: %v\n    source:  %v\n    history: %v", id, err, brief(changes), history[id]))
			continue
		}
		copied = append(copied, changes[:n]...)
		streamed = append(streamed, changes[n:]...)
	}
	faults = append(faults, compareSides(copied, streamed)...)
	if faults == nil {
		return nil
	}
	return fmt.Errorf("history: %d faults, the first:\n  %s", len(faults), strings.Join(faults[:min(5, len(faults))], "\n  "))
}

// splitAt returns how many of a key's changes the copy held.
func splitAt(changes []committed, history []record) (int, error) {
	later := history
	if len(history) > 0 && history[0].op == "copy" {
		later = history[1:]
	}
	n := len(changes) - len(later)
	if n < 0 {
		return 0, fmt.Errorf("%d changes, of which %d were delivered", len(changes), len(later))
	}
	for i, r := range later {
		if r != changes[n+i].record {
			return 0, fmt.Errorf("change %d of %d differs", n+i+1, len(changes))
		}
	}
	var before, copied string // the row that the last change before these left, and the copied one; "" is none
	if n > 0 {
		before = changes[n-1].row
	}
	if len(later) < len(history) {
		copied = history[0].row
	}
	if before != copied {
		return 0, fmt.Errorf("the copy did not hold what change %d of %d left", n, len(changes))
	}
	return n, nil
}

func compareSides(copied, streamed []committed) (faults []string) {
	var last committed
	side := map[string]bool{}
	for _, c := range copied {
		side[c.xid] = true
		if c.at.After(last.at) {
			last = c
		}
	}
	for _, c := range streamed {
		if side[c.xid] {
			faults = append(faults, fmt.Sprintf("transaction %s is neither whole in the copy nor whole behind it", c.xid))
		}
		if last.at.Sub(c.at) > copyOverlap {
			faults = append(faults, fmt.Sprintf("key %s: a change of %s is missing, one of %s was delivered",
				last.id, last.at.Format(time.StampMicro), c.at.Format(time.StampMicro)))
		}
	}
	return faults
}

func brief(changes []committed) []record {
	records := make([]record, len(changes))
	for i, c := range changes {
		records[i] = c.record
	}
	return records
}

func TestHistoryCheckSeesEveryFault(t *testing.T) {
	base := time.UnixMicro(0)
	change := func(op, id, row, xid string, second int) committed {
		return committed{record{op, id, row}, xid, base.Add(time.Duration(second) * time.Second)}
	}
	audit := map[string][]committed{
		"1": {change("insert", "1", "a", "10", 1), change("update", "1", "b", "11", 5), change("update", "1", "c", "12", 6)},
		"2": {change("insert", "2", "x", "11", 5), change("delete", "2", "", "13", 7)},
		"3": {change("insert", "3", "p", "9", 1), change("delete", "3", "", "10", 1)},
	}
	right := map[string][]record{
		"1": {{"copy", "1", "a"}, {"update", "1", "b"}, {"update", "1", "c"}},
		"2": {{"insert", "2", "x"}, {"delete", "2", ""}},
	}
	cases := map[string]struct {
		key     string
		history []record
		want    string
	}{
		"right":               {"2", right["2"], ""},
		"twice":               {"1", []record{{"copy", "1", "a"}, {"update", "1", "b"}, {"update", "1", "b"}, {"update", "1", "c"}}, "key 1"},
		"lost":                {"1", []record{{"copy", "1", "a"}, {"update", "1", "c"}}, "the copy did not hold"},
		"lost at the end":     {"1", []record{{"copy", "1", "a"}, {"update", "1", "b"}}, "differs"},
		"order":               {"2", []record{{"delete", "2", ""}, {"insert", "2", "x"}}, "differs"},
		"lost whole key":      {"2", nil, "neither whole"},
		"copied and streamed": {"1", []record{{"copy", "1", "b"}, {"update", "1", "b"}, {"update", "1", "c"}}, "the copy did not hold"},
		"half a transaction":  {"1", []record{{"copy", "1", "b"}, {"update", "1", "c"}}, "neither whole"},
		"not at the source":   {"4", []record{{"insert", "4", "z"}}, "never at the source"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			history := map[string][]record{"1": right["1"], "2": right["2"]}
			history[c.key] = c.history
			err := compareHistory(audit, history)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}
