package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// historyColumns stand behind the source's columns in a history: what was done, the position of its commit, the number of
// the row within the commit, when that was, which columns' values are not known, and the old key of a changed one.
//
// Rows of the first copy have neither position nor number. In front of those of a later copy stands a row with the
// operation gap and no values: what happened between the rows before it and the copy is not known. It has the position of
// the last row before it and the number after its, and the copy the number after that: so (position, number) is the order in
// which rows were added.
var historyColumns = []tableColumn{
	{name: "_sluice_op", typ: "text", source: -1},
	{name: "_sluice_position", typ: "text", source: -1},
	{name: "_sluice_seq", typ: "bigint", source: -1},
	{name: "_sluice_committed_at", typ: "timestamp with time zone", source: -1},
	{name: "_sluice_unsent", typ: "text[]", source: -1},
	{name: "_sluice_old_key", typ: "jsonb", source: -1},
}

// historyOrder sorts the rows of a key from the last to the first.
const historyOrder = `"_sluice_position" COLLATE "C" DESC NULLS LAST, "_sluice_seq" DESC NULLS LAST`

var historyOps = map[connector.Op]string{
	connector.Insert: "insert", connector.Update: "update", connector.Delete: "delete", connector.Truncate: "truncate",
	connector.Leave: "leave",
}

func historyList() string {
	names := make([]string, len(historyColumns))
	for i, c := range historyColumns {
		names[i] = quoteIdent(c.name)
	}
	return strings.Join(names, ", ")
}

// appendCopy adds the rows of a copy to a history, behind a gap unless it is the first copy.
func (x *tx) appendCopy(ctx context.Context, t *connector.Target, first bool) error {
	var names []string
	for _, c := range tableColumns(t) {
		if c.source >= 0 && c.generated == "" {
			names = append(names, quoteIdent(c.name))
		}
	}
	dest, from, list := quoteName(t.Name), quoteName(copyName(t)), strings.Join(append(names, `"_sluice_op"`), ", ")
	insert := "INSERT INTO " + dest + " (" + list + ") SELECT " + list + " FROM " + from
	if !first {
		insert = `WITH gap AS (
				INSERT INTO ` + dest + ` ("_sluice_op", "_sluice_position", "_sluice_seq")
				SELECT 'gap', last.position, coalesce(last.seq, 0) + 1
				FROM (SELECT) one LEFT JOIN (SELECT "_sluice_position" AS position, "_sluice_seq" AS seq
					FROM ` + dest + ` ORDER BY ` + historyOrder + ` LIMIT 1) last ON true
				RETURNING "_sluice_position" AS position, "_sluice_seq" AS seq)
			INSERT INTO ` + dest + ` (` + list + `, "_sluice_position", "_sluice_seq")
			SELECT ` + list + `, gap.position, gap.seq + 1 FROM ` + from + `, gap`
	}
	_, err := x.exec(ctx, insert+"; DROP TABLE "+from)
	return err
}

// historyBatch is a batch of rows that are appended to a history.
type historyBatch struct {
	*batch
	previous []int // by row: the row of this batch that last had its old key, -1 if none had
	number   []int64
	commit   []int // by row: index into rows.Commits
}

// writeHistory appends changes. A value that was not sent is that of the key's previous row: in the batch, or else in the
// table, where a stage table asks for it.
func (x *tx) writeHistory(ctx context.Context, b *batch) error {
	h := &historyBatch{batch: b}
	if err := h.count(); err != nil {
		return err
	}
	if err := h.link(); err != nil {
		return err
	}
	stored := h.needsStored()
	s := b.historyStage()
	var w *copyIn
	var err error
	if stored {
		w, err = x.openStage(ctx, b, s)
	} else {
		w, err = x.openCopy(ctx, b.target.Name, "COPY "+b.dest+" ("+historyList()+", "+b.columnList()+")", b.binary)
	}
	for i := 0; err == nil && i < b.rows.Len(); i++ {
		if b.rows.Op(i) == connector.Before {
			continue
		}
		if err = h.writeRow(w, i, stored); err == nil {
			err = w.endRow(ctx)
		}
	}
	if err != nil || !stored {
		return err
	}
	_, err = x.exec(ctx, b.fillHistory(s))
	return err
}

// count finds commit and number of each row message; a Before has that of its Update.
func (h *historyBatch) count() error {
	h.number, h.commit = make([]int64, h.rows.Len()), make([]int, h.rows.Len())
	i := 0
	for c, commit := range h.rows.Commits {
		n := commit.First
		for range commit.Rows {
			if i == h.rows.Len() {
				break
			}
			h.number[i], h.commit[i] = n, c
			if h.rows.Op(i) != connector.Before {
				n++
			}
			i++
		}
	}
	if i != h.rows.Len() {
		return &connector.Error{System: sinkSystem, Op: "write rows", Table: h.target.Name,
			Err: fmt.Errorf("commits cover %d of %d rows of a history", i, h.rows.Len())}
	}
	return nil
}

// link finds the previous row of each row's key where values must be taken from there.
func (h *historyBatch) link() error {
	if len(h.unsent) == 0 || len(h.key) == 0 {
		return nil
	}
	h.previous = make([]int, h.rows.Len())
	last := map[string]int{}
	var key []byte
	for i := range h.rows.Len() {
		op := h.rows.Op(i)
		h.previous[i] = -1
		if op == connector.Before || op == connector.Truncate {
			continue
		}
		old, err := h.oldKey(i)
		if err != nil {
			return err
		}
		if key, err = h.appendKey(key[:0], old); err != nil {
			return err
		}
		if p, ok := last[string(key)]; ok {
			h.previous[i] = p
		}
		if key, err = h.appendKey(key[:0], i); err != nil {
			return err
		}
		last[string(key)] = i
	}
	return nil
}

// find returns the row that holds the value of column c in row i: itself, the Before in front of it, or an earlier row of
// the key. If there is none in the batch, found is false and row is the first row of the key in it.
func (h *historyBatch) find(c, i int) (row int, found bool) {
	for {
		switch {
		case h.ends(i), !h.isUnsent(c, i):
			return i, true
		case i > 0 && h.rows.Op(i-1) == connector.Before && !h.isUnsent(c, i-1):
			return i - 1, true
		case h.previous == nil || h.previous[i] < 0:
			return i, false
		}
		i = h.previous[i]
	}
}

// ends reports whether row i says that a row is gone: what is unsent of it was not known to anyone later.
func (h *historyBatch) ends(i int) bool {
	return h.rows.Op(i) == connector.Delete || h.rows.Op(i) == connector.Leave
}

// needsStored reports whether a value must be looked up in the table.
func (h *historyBatch) needsStored() bool {
	if h.previous == nil {
		return false
	}
	for i := range h.rows.Len() {
		if h.rows.Op(i) != connector.Update {
			continue
		}
		for _, c := range h.unsent {
			if _, found := h.find(c, i); !found {
				return true
			}
		}
	}
	return false
}

// historyStage is the stage of a history: the row's number and, where values are to be looked up, a bitmap of them and the
// key to look under; then the history's columns and the table's.
func (l *sinkLayout) historyStage() stage {
	set := l.stage()
	s := stage{fields: set.fields - 1 + len(historyColumns)}
	columns := make([]string, len(historyColumns))
	names := make([]string, len(historyColumns))
	for i, c := range historyColumns {
		names[i], columns[i] = fmt.Sprintf("h%d", i), fmt.Sprintf("h%d %s", i, c.typ)
	}
	s.list = strings.Join(names, ", ") + strings.TrimPrefix(set.list, "op")
	s.name = set.name + "_h"
	_, body, _ := strings.Cut(set.create, `(op "char", `)
	s.create = "CREATE TEMPORARY TABLE " + strings.TrimPrefix(s.name, "pg_temp.") + " (" + strings.Join(columns, ", ") + ", " + body
	return s
}

// writeRow writes row i; staged with what to look up in front of the table's columns.
func (h *historyBatch) writeRow(w *copyIn, i int, staged bool) error {
	sources, unknown, lost, root := h.sources(i)
	fields := len(historyColumns) + len(h.columns)
	if staged {
		fields += 2 + len(h.key)
	}
	w.beginRow(fields)
	if err := h.writeHead(w, i, slices.Concat(unknown, lost)); err != nil {
		return err
	}
	if staged {
		if err := h.writeLookup(w, i, unknown, root); err != nil {
			return err
		}
	}
	for c := range h.columns {
		if sources[c] < 0 {
			w.null()
		} else if err := w.value(&h.columns[c], sources[c]); err != nil {
			return h.rowError(err, c, i)
		}
	}
	return nil
}

// sources returns by column the row that holds its value, -1 if none does; the columns whose values are not known in the
// batch; those that nobody knows since a row left the history; and the row under whose old key the table may know the
// unknown ones.
func (h *historyBatch) sources(i int) (rows, unknown, lost []int, root int) {
	rows, root = make([]int, len(h.columns)), i
	op := h.rows.Op(i)
	for c := range rows {
		rows[c] = i
		switch {
		case op == connector.Truncate, op == connector.Delete && h.isUnsent(c, i):
			rows[c] = -1
		case op == connector.Leave && h.isUnsent(c, i):
			rows[c], lost = -1, append(lost, c)
		case op == connector.Insert, op == connector.Update:
			row, found := h.find(c, i)
			rows[c] = row
			if found && h.rows.Op(row) == connector.Leave && h.isUnsent(c, row) {
				rows[c], lost = -1, append(lost, c)
			}
			if !found {
				rows[c], root, unknown = -1, row, append(unknown, c)
			}
		}
	}
	return rows, unknown, lost, root
}

// writeHead writes the history's own columns.
func (h *historyBatch) writeHead(w *copyIn, i int, unknown []int) error {
	commit := &h.rows.Commits[h.commit[i]]
	w.text(historyOps[h.rows.Op(i)])
	w.text(string(commit.Position))
	w.int64(h.number[i])
	w.timestamp(commit.Time)
	if unknown == nil {
		w.null()
	} else {
		names := make([]string, len(unknown))
		for n, c := range unknown {
			names[n] = h.sinkLayout.columns[c].name
		}
		w.texts(names)
	}
	old, err := h.oldKey(i)
	if err != nil {
		return err
	}
	if old == i {
		w.null()
		return nil
	}
	key, err := h.keyJSON(old)
	if err != nil {
		return err
	}
	if w.binary {
		key = "\x01" + key // the version of jsonb's binary form
	}
	w.text(key)
	return nil
}

// keyJSON writes the key of a row as an object of the values' text.
func (h *historyBatch) keyJSON(i int) (string, error) {
	key := map[string]string{}
	for _, k := range h.key {
		c := &h.sinkLayout.columns[k]
		text, err := bindText(c.typ, c.sink, h.columns[k].Array)
		if err == nil {
			h.scratch, err = text(h.scratch[:0], i)
		}
		if err != nil {
			return "", h.rowError(err, k, i)
		}
		key[c.name] = string(h.scratch)
	}
	b, err := json.Marshal(key)
	return string(b), err
}

func (h *historyBatch) writeLookup(w *copyIn, i int, unknown []int, root int) error {
	w.int32(int32(i))
	if unknown == nil {
		for range 1 + len(h.key) {
			w.null()
		}
		return nil
	}
	bits := make([]byte, (len(h.columns)+7)/8)
	for _, c := range unknown {
		bits[c/8] |= 1 << (c % 8)
	}
	w.bytes(bits)
	old, err := h.oldKey(root)
	if err != nil {
		return err
	}
	for _, k := range h.key {
		if err := w.value(&h.columns[k], old); err != nil {
			return h.rowError(err, k, old)
		}
	}
	return nil
}

// fillHistory takes what is not known from each key's last row in the table, then appends the stage. A value that is not
// known there either stays unknown.
func (b *batch) fillHistory(s stage) string {
	sets := []string{`h4 = (SELECT array_agg(name) FROM unnest(s.h4) name WHERE name = ANY (p."_sluice_unsent"))`}
	for _, c := range b.unsent {
		sets = append(sets, fmt.Sprintf("c%d = CASE get_bit(s.u, %d) WHEN 1 THEN p.%s ELSE s.c%d END", c, c, b.sinkLayout.columns[c].sql, c))
	}
	names := make([]string, 0, len(historyColumns)+len(b.columns))
	for i := range historyColumns {
		names = append(names, fmt.Sprintf("h%d", i))
	}
	for c := range b.columns {
		names = append(names, fmt.Sprintf("c%d", c))
	}
	return "UPDATE " + s.name + " s SET " + strings.Join(sets, ", ") + " FROM " + s.name + " q, LATERAL (SELECT * FROM " + b.dest + " d WHERE " +
		b.match("d.", func(n int) string { return fmt.Sprintf("q.o%d", n) }) + " ORDER BY " + historyOrder + " LIMIT 1) p" +
		" WHERE q.n = s.n AND q.u IS NOT NULL; INSERT INTO " + b.dest + " (" + historyList() + ", " + b.columnList() + ") SELECT " +
		strings.Join(names, ", ") + " FROM " + s.name + " ORDER BY n"
}

func (w *copyIn) timestamp(t time.Time) {
	switch {
	case t.IsZero():
		w.null()
	case w.binary:
		w.int64(serverMicros(t))
	default:
		w.text(string(schema.AppendTimestampTZ(nil, serverMicros(t))))
	}
}

func (w *copyIn) int64(v int64) {
	if !w.binary {
		w.text(strconv.FormatInt(v, 10))
		return
	}
	start := w.beginField()
	w.buf = appendUint64(w.buf, uint64(v))
	w.endField(start)
}

// texts writes a value of type text[].
func (w *copyIn) texts(values []string) {
	if !w.binary {
		w.text(string(textArray(values)))
		return
	}
	start := w.beginField()
	w.buf = appendUint32(w.buf, 1) // one dimension
	w.buf = appendUint32(w.buf, 0) // no nulls
	w.buf = appendUint32(w.buf, oidText)
	w.buf = appendUint32(w.buf, uint32(len(values)))
	w.buf = appendUint32(w.buf, 1) // its lower bound
	for _, v := range values {
		w.buf = append(appendUint32(w.buf, uint32(len(v))), v...)
	}
	w.endField(start)
}
