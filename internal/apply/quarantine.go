package apply

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// A row that the sink refuses goes into the table's quarantine, and the table goes on. The quarantine is a set of keys, one
// entry of the sink each, committed with the checkpoint. What the destination holds under such a key is an earlier state of
// the row, or nothing. So, in the order of the changes,
//
//   - a whole row or a delete of the key is tried, and if the sink takes it the key is out of quarantine;
//   - an update that leaves values unsent is not: the stored row is not the one that it changes. It takes the entry's place;
//   - an update that moves the row to another key deletes the old key, and if it is refused, or lacks values of a row in
//     quarantine, the new key is in quarantine;
//   - a truncation empties the quarantine, as does a new copy.
//
// The entry's image of the row is for people. What mends a row is a later change, or reading it from the source, see
// Table.Retry.

const (
	// quarantineFormat is the version of an entry's text. A newer one is refused.
	quarantineFormat = 1
	// maxQuarantined is how many rows of a table may be in quarantine: the entries of all tables are in memory while the mirror
	// runs, mostly less than two kilobytes each. More refused rows are no exceptions any more but a fault of the table.
	maxQuarantined = 1000
	// maxKeyBytes bounds the key of a row in quarantine; a PostgreSQL index takes 2,704 bytes.
	maxKeyBytes = 4096
	// maxImageBytes, maxValueBytes and maxReasonBytes bound what an entry says of the row for people.
	maxImageBytes  = 1024
	maxValueBytes  = 200
	maxReasonBytes = 500
	// A batch with a refused row is written once more for each refused row in it, so when one is met the batch is taken
	// again in pieces of carefulRows, and so are those behind it until carefulBatches were written without a refused row.
	carefulRows    = 500
	carefulBatches = 20
)

// Quarantined is a row that the sink does not hold as the source has it.
type Quarantined struct {
	Format    int                `json:"v"`
	Table     string             `json:"table"` // the source's name for it, for people
	Copy      int                `json:"copy"`  // of the destination's rows that it is missing from
	Key       []string           `json:"key"`   // values of the key's columns, in a form that gives them back exactly
	Shown     []string           `json:"shown"` // the same for people
	Op        string             `json:"op"`    // what the last change did: copy, insert, update, delete
	Position  connector.Position `json:"position,omitempty"`
	Committed time.Time          `json:"committed,omitzero"` // the last change
	Since     time.Time          `json:"since"`              // the first one that was refused
	Reason    string             `json:"reason"`
	Attempts  int                `json:"attempts"`      // how often the sink has refused it
	Row       map[string]*string `json:"row,omitempty"` // the row as last sent, for people: nil is NULL, what was not sent is not there
	Cut       bool               `json:"cut,omitempty"` // Row is not whole, for its size

	ID string `json:"-"` // of the entry, within its table
}

// quarantinePrefix begins the keys of the entries of all quarantines.
const quarantinePrefix = "quarantine/"

func quarantineKey(table schema.ID, id string) string {
	return quarantinePrefix + string(table) + "/" + id
}

// ParseQuarantineKey returns the table and the row that an entry's key stands for, false if it is none of a quarantine.
func ParseQuarantineKey(key string) (table schema.ID, id string, ok bool) {
	rest, ok := strings.CutPrefix(key, quarantinePrefix)
	cut := strings.LastIndexByte(rest, '/')
	if !ok || cut < 0 {
		return "", "", false
	}
	return schema.ID(rest[:cut]), rest[cut+1:], true
}

// ParseQuarantined reads an entry.
func ParseQuarantined(key, text string) (*Quarantined, error) {
	var q Quarantined
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return nil, fmt.Errorf("read a row in quarantine: %w", err)
	}
	if q.Format != quarantineFormat {
		return nil, fmt.Errorf("row in quarantine of format %d, this version knows %d: use the version of sluice that wrote it, or a newer one", q.Format, quarantineFormat)
	}
	_, q.ID, _ = ParseQuarantineKey(key)
	return &q, nil
}

func (q *Quarantined) text() string {
	q.Format = quarantineFormat
	text, err := json.Marshal(q)
	if err != nil {
		panic("apply: a row in quarantine cannot be written: " + err.Error()) // it holds text and numbers only
	}
	return string(text)
}

// Quarantine is the keys of a table whose rows the sink does not hold as the source has them. It is safe for concurrent use.
type Quarantine struct {
	id schema.ID

	mu    sync.Mutex
	takes bool
	held  map[string]held // by Quarantined.ID
}

// held is what is kept in memory of an entry.
type held struct {
	key, shown []string
	copy       int
	since      time.Time
	attempts   int
}

// NewQuarantine returns an empty quarantine. takes: rows of the table that are refused go into it, see Take.
func NewQuarantine(id schema.ID, takes bool) *Quarantine {
	return &Quarantine{id: id, takes: takes, held: map[string]held{}}
}

func heldOf(q *Quarantined) held {
	return held{key: q.Key, shown: q.Shown, copy: q.Copy, since: q.Since, attempts: q.Attempts}
}

// Take sets whether rows that are refused go into the quarantine; those that are there stay.
func (q *Quarantine) Take(takes bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.takes = takes
}

// Takes reports whether rows that are refused go into the quarantine.
func (q *Quarantine) Takes() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.takes
}

// Len returns the number of rows in quarantine.
func (q *Quarantine) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.held)
}

// Others returns what deletes the entries of all copies but one, to be committed when that one takes their place.
func (q *Quarantine) Others(copy int) map[string]string {
	q.mu.Lock()
	defer q.mu.Unlock()
	entries := map[string]string{}
	for id, h := range q.held {
		if h.copy != copy {
			entries[quarantineKey(q.id, id)] = ""
		}
	}
	return entries
}

// Committed takes note of entries that are in the sink, or are deleted there; those that are none of this quarantine are
// passed over.
func (q *Quarantine) Committed(entries map[string]string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, text := range entries {
		table, id, ok := ParseQuarantineKey(key)
		if !ok || table != q.id {
			continue
		}
		if text == "" {
			delete(q.held, id)
			continue
		}
		row, err := ParseQuarantined(key, text)
		if err != nil {
			return err
		}
		q.held[id] = heldOf(row)
	}
	return nil
}

// move takes note of moves that are durable.
func (q *Quarantine) move(m moves) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for id, row := range m {
		if row == nil {
			delete(q.held, id)
		} else {
			q.held[id] = heldOf(row)
		}
	}
}

// find returns the rows with these ids that are in quarantine, of all if ids is nil, in the order of their ids.
func (q *Quarantine) find(ids []string) (found []string, rows []held) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(q.held)) {
		if ids == nil || slices.Contains(ids, id) {
			found, rows = append(found, id), append(rows, q.held[id])
		}
	}
	return found, rows
}

// snapshot returns what is in quarantine now.
func (q *Quarantine) snapshot() map[string]held {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.held)
}

var errTooMany = fmt.Errorf("more than %d rows of the table would be in quarantine", maxQuarantined)

// full is the error of a table of which too many rows are refused; cause is why the last one is.
func full(cause error) error {
	e := &connector.Error{
		Kind: connector.BadRow, System: "apply", Op: "put a row into quarantine", Err: errTooMany,
		Hint: "mend what makes the sink refuse them, or leave the columns out; then `sluice quarantine retry` and `sluice resume`",
	}
	if why, ok := errors.AsType[*connector.Error](cause); ok {
		e.Table, e.Position = why.Table, why.Position
		e.Err = fmt.Errorf("%w; the last: %w", errTooMany, cause)
	}
	return e
}

// rowID identifies the key of a row within its table. It is made of text, so that it stays the same when the type of a
// column of the key is widened.
func rowID(values arrow.RecordBatch, key []int, i int) string {
	h := sha256.New()
	for _, c := range key {
		text := values.Column(c).ValueStr(i)
		fmt.Fprintf(h, "%d %s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// keyStrings returns the key of a row in the form that keyRecord reads.
func keyStrings(values arrow.RecordBatch, key []int, i int) (texts []string, bytes int) {
	for _, c := range key {
		text := values.Column(c).ValueStr(i)
		texts, bytes = append(texts, text), bytes+len(text)
	}
	return texts, bytes
}

// keyRecord returns rows that hold these keys, in all columns of the table; the others are NULL.
func keyRecord(alloc memory.Allocator, t *schema.Table, rows []held) (arrow.RecordBatch, error) {
	b := array.NewRecordBuilder(alloc, t.Arrow())
	defer b.Release()
	for c := range t.Columns {
		part := slices.Index(t.Key, c)
		for _, h := range rows {
			var err error
			switch column := b.Field(c).(type) {
			case *array.StringBuilder: // has a text of its own for NULL
				if part >= 0 && part < len(h.key) {
					column.Append(h.key[part])
					continue
				}
				column.AppendNull()
			default:
				if part >= 0 && part < len(h.key) {
					err = column.AppendValueFromString(h.key[part])
				} else {
					column.AppendNull()
				}
			}
			if err != nil || len(h.key) != len(t.Key) {
				return nil, fmt.Errorf("read the key of a row in quarantine, column %s: it is none of the table's", t.Columns[c].Name)
			}
		}
	}
	return b.NewRecordBatch(), nil
}

// shownValue is a value as text for people.
func shownValue(kind schema.Kind, values arrow.Array, i int) string {
	var text []byte
	var err error
	switch a := values.(type) {
	case *array.Int32:
		if kind == schema.Date {
			return string(schema.AppendDate(nil, a.Value(i)))
		}
	case *array.Int64:
		switch kind {
		case schema.Time:
			return string(schema.AppendTime(nil, a.Value(i)))
		case schema.Timestamp:
			return string(schema.AppendTimestamp(nil, a.Value(i)))
		case schema.TimestampTZ:
			return string(schema.AppendTimestampTZ(nil, a.Value(i)))
		}
	case *array.FixedSizeBinary:
		switch kind {
		case schema.UUID:
			text, err = schema.AppendUUID(nil, a.Value(i))
		case schema.Interval:
			text, err = schema.AppendInterval(nil, a.Value(i))
		}
	case *array.Binary:
		text = append([]byte(`\x`), hex.EncodeToString(a.Value(i)[:min(len(a.Value(i)), maxValueBytes)])...)
	}
	if text != nil && err == nil {
		return string(text)
	}
	return values.ValueStr(i)
}

// cut shortens a text to so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// describeRow makes the entry of row i, all but what its change and its refusal were.
func describeRow(rows *connector.Rows, key []int, i int) (*Quarantined, error) {
	q := &Quarantined{Row: map[string]*string{}}
	var bytes int
	if q.Key, bytes = keyStrings(rows.Values, key, i); bytes > maxKeyBytes {
		return nil, fmt.Errorf("a row with a key of more than %d bytes cannot be in quarantine", maxKeyBytes)
	}
	for _, c := range key {
		q.Shown = append(q.Shown, cut(shownValue(rows.Table.Columns[c].Type.Kind, rows.Values.Column(c), i), maxValueBytes))
	}
	size := 0
	for c, column := range rows.Table.Columns {
		values := rows.Values.Column(c)
		if column.Unread || rows.IsUnsent(c, i) || rows.IsAbsent(c, i) {
			continue
		}
		var shown *string
		if !values.IsNull(i) {
			whole := shownValue(column.Type.Kind, values, i)
			text := cut(whole, maxValueBytes)
			q.Cut = q.Cut || text != whole
			shown = &text
			size += len(text)
		}
		if size += len(column.Name); size > maxImageBytes {
			q.Cut = true
			break
		}
		q.Row[column.Name] = shown
	}
	return q, nil
}
