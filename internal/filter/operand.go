package filter

import (
	"encoding/json"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// operand is a column, or what a JSON column holds under a path.
type operand struct {
	column int
	name   string
	typ    schema.Type
	path   []step // in a JSON column; nil: the column itself
}

// step is a key of an object, or an index of an array.
type step struct {
	key   string
	index int // -1: key
}

// bound is an operand over the rows of a batch.
type bound struct {
	values arrow.Array
	rows   *connector.Rows // nil: the values are those of an array's elements, all sent
	column int
	padded bool      // blanks at the end of a text mean nothing
	texts  []*string // of a path: by row, nil for NULL
}

func (o *operand) of(r *connector.Rows) bound {
	b := bound{values: r.Values.Column(o.column), rows: r, column: o.column, padded: o.typ.Padded}
	if o.path != nil {
		b.texts = pathTexts(b.values, o.path)
	}
	return b
}

func (b bound) unsent(i int) bool { return b.rows != nil && b.rows.IsUnsent(b.column, i) }

func (b bound) null(i int) bool {
	if b.texts != nil {
		return b.texts[i] == nil
	}
	return b.values.IsNull(i) || b.rows != nil && b.rows.IsAbsent(b.column, i)
}

// text returns a function that gives the text of a row that is not NULL, of a column that is stored as text, or of a path.
func (b bound) text() func(i int) string {
	if b.texts != nil {
		return func(i int) string { return *b.texts[i] }
	}
	value := b.values.(*array.String).Value
	if b.padded {
		return func(i int) string { return strings.TrimRight(value(i), " ") }
	}
	return value
}

// pathTexts returns what each document holds under a path: a string without its quotes, anything else as it is written. A
// JSON null, and a path that leads nowhere, is NULL.
func pathTexts(values arrow.Array, path []step) []*string {
	docs := values.(*array.String)
	texts := make([]*string, docs.Len())
	for i := range texts {
		if docs.IsNull(i) {
			continue
		}
		if text, ok := follow(docs.Value(i), path); ok {
			texts[i] = &text
		}
	}
	return texts
}

func follow(doc string, path []step) (string, bool) {
	at := json.RawMessage(doc)
	for _, s := range path {
		if s.index >= 0 {
			var list []json.RawMessage
			if json.Unmarshal(at, &list) != nil || s.index >= len(list) {
				return "", false
			}
			at = list[s.index]
			continue
		}
		var object map[string]json.RawMessage // of equal keys the last counts, as at the server
		if json.Unmarshal(at, &object) != nil {
			return "", false
		}
		var ok bool
		if at, ok = object[s.key]; !ok {
			return "", false
		}
	}
	switch {
	case string(at) == "null":
		return "", false
	case len(at) > 0 && at[0] == '"':
		var text string
		err := json.Unmarshal(at, &text)
		return text, err == nil
	}
	return string(at), true
}
