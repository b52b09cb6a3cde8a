package apply

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/filter"
	"github.com/sluicehq/sluice/schema"
)

// VersionError says that changes were written under another version of their table than the one that the destination's
// rows are stored under. They can be applied after Follow or Ignore.
type VersionError struct {
	Table  *schema.Table    // the version of the changes
	Commit connector.Commit // the first of them
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("changes of table %s are of another version of it", e.Table.Name)
}

// Follow goes on under another version of the table. The sink's entry is at already.
func (t *Table) Follow(target *connector.Target, keep *filter.Filter, at Checkpoint) error {
	decoder, err := t.log.Decoder(target.Table)
	if err != nil {
		return err
	}
	t.target, t.keep, t.decoder, t.at = target, keep, decoder, at
	t.reads, t.from = target.Table, nil
	return nil
}

// Ignore goes on with changes of another version without a change of the destination: columns that it does not know are
// left out, and those that are gone get NULL. From the next batch on the checkpoint says so. It fails if a key or the values
// of a column cannot be stored as they are.
func (t *Table) Ignore(v *schema.Table) error {
	known := t.target.Table
	from := make([]int, len(known.Columns))
	for i := range known.Columns {
		c := &known.Columns[i]
		from[i] = v.Same(c)
		if from[i] < 0 || v.Columns[from[i]].Generated != c.Generated {
			from[i] = -1
			continue
		}
		if is := v.Columns[from[i]].Type; is.Kind != c.Type.Kind || !schema.Widens(is, c.Type) {
			return fmt.Errorf("the type of column %q is %s now, which the destination's column of type %s does not hold", c.Name, is.Native, c.Type.Native)
		}
	}
	if d := schema.Compare(known, v); d.Key {
		return fmt.Errorf("the key is another one: %s", d.String())
	}
	decoder, err := t.log.Decoder(v)
	if err != nil {
		return err
	}
	t.decoder, t.reads, t.from = decoder, v, from
	return nil
}

// understands reports whether changes of a version are read as they are to be.
func (t *Table) understands(v *schema.Table) bool {
	if v == t.reads {
		return true
	}
	if v.Describe() != t.reads.Describe() {
		return false
	}
	t.reads = v
	return true
}

// decode decodes changes of the version that is understood.
func (t *Table) decode(f *connector.Frames) (*connector.Rows, error) {
	rows, err := t.decoder.Decode(f)
	if err != nil || t.from == nil {
		return rows, err
	}
	defer rows.Release()
	return project(rows, t.target.Table, t.from, t.alloc), nil
}

// project makes rows of the version that the destination knows of rows of the one that is ignored.
func project(rows *connector.Rows, known *schema.Table, from []int, alloc memory.Allocator) *connector.Rows {
	out := &connector.Rows{Table: known, Ops: rows.Ops, Commits: rows.Commits, Distinct: rows.Distinct}
	pick := func(maps [][]byte) [][]byte {
		if maps == nil {
			return nil
		}
		picked := make([][]byte, len(from))
		for i, c := range from {
			if c >= 0 {
				picked[i] = maps[c]
			}
		}
		return picked
	}
	out.Unsent, out.Absent = pick(rows.Unsent), pick(rows.Absent)
	arrays := make([]arrow.Array, len(from))
	for i, c := range from {
		if c >= 0 {
			arrays[i] = rows.Values.Column(c)
			arrays[i].Retain()
		} else {
			arrays[i] = array.MakeArrayOfNull(alloc, known.Columns[i].Type.Arrow(), rows.Len())
		}
	}
	out.Values = array.NewRecordBatch(known.Arrow(), arrays, int64(rows.Len()))
	for _, a := range arrays {
		a.Release()
	}
	return out
}
