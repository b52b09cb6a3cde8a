package sqlite

import (
	"encoding/json"
	"slices"
	"strings"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// historyColumns stand behind the source's columns in a history: what was done, the position of its commit, the number of
// the row within the commit, when that was, which columns' values are not known (a JSON array), and the old key of a
// changed one (a JSON object).
//
// Rows of the first copy have neither position nor number. In front of those of a later copy stands a row with the
// operation gap and no values: what happened between the rows before it and the copy is not known. It has the position of
// the last row before it and the number after its, and the copy the number after that: so (position, number) is the order in
// which rows were added.
var historyColumns = []tableColumn{
	{name: "_sluice_op", typ: "TEXT", source: -1},
	{name: "_sluice_position", typ: "TEXT", source: -1},
	{name: "_sluice_seq", typ: "INTEGER", source: -1},
	{name: "_sluice_committed_at", typ: "TEXT", source: -1},
	{name: "_sluice_unsent", typ: "TEXT", source: -1},
	{name: "_sluice_old_key", typ: "TEXT", source: -1},
}

// historyOrder sorts the rows of a key from the last to the first; NULL comes last.
const historyOrder = `"_sluice_position" DESC, "_sluice_seq" DESC`

var historyOps = map[connector.Op]string{
	connector.Insert: "insert", connector.Update: "update", connector.Delete: "delete", connector.Truncate: "truncate",
	connector.Leave: "leave",
}

// historyIndex is how the name of a history's index begins; the number of the copy that it was made for follows. It
// finds the last row of a key.
func historyIndex(table string) string { return "sluice_history_" + nameHash(table) + "_" }

// appendCopy adds the rows of a copy to a history, behind a gap unless it is the first copy.
func (w *writer) appendCopy(t *connector.Target, first bool) error {
	var names []string
	for _, c := range tableColumns(t) {
		if c.source >= 0 {
			names = append(names, c.name)
		}
	}
	dest, from, list := quoteIdent(t.Name.Table), quoteIdent(copyName(t)), quoteList(append(names, "_sluice_op"))
	if err := w.addColumns(t); err != nil {
		return err
	}
	insert, at := "INSERT INTO "+dest+" ("+list+") SELECT "+list+" FROM "+from, []any(nil)
	if !first {
		position, seq, err := w.appendGap(dest)
		if err != nil {
			return err
		}
		insert = "INSERT INTO " + dest + " (" + list + `, "_sluice_position", "_sluice_seq") SELECT ` + list + ", ?, ? FROM " + from
		at = []any{position, seq + 1}
	}
	err := w.exec(insert, at...)
	if err == nil {
		err = w.exec("DROP TABLE " + from)
	}
	return err
}

// appendGap adds a row to a history behind all others, and returns its position, nil: none, and its number.
func (w *writer) appendGap(dest string) (position any, seq int64, err error) {
	err = w.query(`SELECT "_sluice_position", coalesce("_sluice_seq", 0) FROM `+dest+" ORDER BY "+historyOrder+" LIMIT 1", func(s *sqlite.Stmt) {
		if seq = s.ColumnInt64(1); s.ColumnType(0) != sqlite.TypeNull {
			position = s.ColumnText(0)
		}
	})
	if err != nil {
		return nil, 0, err
	}
	seq++
	return position, seq, w.exec("INSERT INTO "+dest+` ("_sluice_op", "_sluice_position", "_sluice_seq") VALUES ('gap', ?, ?)`, position, seq)
}

// writeHistory appends changes.
func (b *batch) writeHistory() error {
	i := 0
	for c := range b.rows.Commits {
		commit := &b.rows.Commits[c]
		number := commit.First
		for range commit.Rows {
			if i == b.rows.Len() {
				break
			}
			if b.rows.Op(i) != connector.Before { // which has the number of its Update
				if err := b.appendChange(i, commit, number); err != nil {
					return err
				}
				number++
			}
			i++
		}
	}
	if i != b.rows.Len() {
		return fault(connector.Internal, "write rows", b.target.Name, "", "commits cover %d of %d rows of a history", i, b.rows.Len())
	}
	return nil
}

// valueSource is where the value of a column of a history's row comes from.
type valueSource uint8

const (
	fromRow      valueSource = iota
	fromBefore               // the old row in front of it
	fromPrevious             // the key's last row in the table
	fromNowhere              // NULL
)

// sources returns where each value of row i comes from, and the columns that only the key's last row may know.
func (b *batch) sources(i int) (from []valueSource, unknown []string) {
	from = make([]valueSource, len(b.columns))
	op := b.rows.Op(i)
	for c := range from {
		switch {
		case op == connector.Truncate, op == connector.Delete && b.isUnsent(c, i):
			from[c] = fromNowhere
		case op == connector.Leave && b.isUnsent(c, i): // nor do later rows of the key know it from here
			from[c], unknown = fromNowhere, append(unknown, b.layout.columns[c].name)
		case !isPut(op) || !b.isUnsent(c, i):
		case i > 0 && b.rows.Op(i-1) == connector.Before && !b.isUnsent(c, i-1):
			from[c] = fromBefore
		default:
			from[c], unknown = fromNowhere, append(unknown, b.layout.columns[c].name)
			if b.key != nil {
				from[c] = fromPrevious
			}
		}
	}
	return from, unknown
}

// appendChange adds row i. What the key's last row does not know stays unknown.
func (b *batch) appendChange(i int, commit *connector.Commit, number int64) error {
	from, unknown := b.sources(i)
	old, err := b.oldKey(i)
	if err != nil {
		return err
	}
	s, err := b.w.prepare(b.historyInsert(from))
	if err != nil {
		return err
	}
	for c := range b.columns {
		switch row := i; from[c] {
		case fromBefore:
			row = i - 1
			fallthrough
		case fromRow:
			if err := b.bind(s, c+1, c, row); err != nil {
				return err
			}
		}
	}
	n := len(b.columns) + 1
	if err := b.bindHead(s, n, i, old, commit, number, unknown); err != nil {
		return err
	}
	if slices.Contains(from, fromPrevious) {
		if err := b.bindKey(s, n+len(historyColumns), old); err != nil {
			return err
		}
	}
	if err := run(s); err != nil {
		return b.refused(err, i)
	}
	return nil
}

// historyInsert is the statement that adds a row whose values come from these sources: parameters for the columns, then for
// the history's own, then for the key of the row to take values from.
func (b *batch) historyInsert(from []valueSource) string {
	var names, values []string
	for c := range b.columns {
		names, values = append(names, b.layout.columns[c].sql), append(values, param(c+1))
		switch from[c] {
		case fromPrevious:
			values[c] = "p." + b.layout.columns[c].sql
		case fromNowhere:
			values[c] = "NULL"
		}
	}
	for i, c := range historyColumns {
		names, values = append(names, quoteIdent(c.name)), append(values, param(len(b.columns)+1+i))
	}
	insert := "INSERT INTO " + b.dest + " (" + strings.Join(names, ", ") + ") "
	if !slices.Contains(from, fromPrevious) {
		return insert + "VALUES (" + strings.Join(values, ", ") + ")"
	}
	unsent := len(b.columns) + 4
	values[unsent] = `nullif((SELECT json_group_array(value) FROM json_each(` + param(unsent+1) + `)
		WHERE p."_sluice_op" IS NULL OR value IN (SELECT value FROM json_each(p."_sluice_unsent"))), '[]')`
	return insert + "SELECT " + strings.Join(values, ", ") + " FROM (SELECT 1) LEFT JOIN (SELECT * FROM " + b.dest + " WHERE " +
		b.match(len(b.columns)+len(historyColumns)+1) + " ORDER BY " + historyOrder + " LIMIT 1) AS p"
}

// bindHead binds the history's own columns, from parameter n on.
func (b *batch) bindHead(s *sqlite.Stmt, n, i, old int, commit *connector.Commit, number int64, unknown []string) error {
	s.BindText(n, historyOps[b.rows.Op(i)])
	s.BindText(n+1, string(commit.Position))
	s.BindInt64(n+2, number)
	s.BindNull(n + 3)
	if !commit.Time.IsZero() {
		s.BindText(n+3, string(schema.AppendTimestampTZ(nil, commit.Time.UnixMicro()-year2000)))
	}
	s.BindNull(n + 4)
	if unknown != nil {
		list, err := json.Marshal(unknown)
		if err != nil {
			return err
		}
		s.BindText(n+4, string(list))
	}
	s.BindNull(n + 5)
	if old != i {
		var err error
		if b.scratch, err = b.appendKey(b.scratch[:0], old); err != nil {
			return err
		}
		s.BindText(n+5, string(b.scratch))
	}
	return nil
}

// year2000 is where timestamps are counted from, in microseconds of Unix time.
const year2000 = 946_684_800_000_000
