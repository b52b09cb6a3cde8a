package connectortest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var softChecks = []check[*sinkCheck]{
	{"soft_delete_keeps_the_row_with_its_time", checkSoftDelete},
	{"soft_deleted_key_that_comes_back_is_replaced", checkSoftReturn},
	{"soft_delete_keeps_the_old_row_of_a_changed_key", checkSoftMove},
	{"soft_delete_keeps_a_row_that_came_and_went", checkSoftPassing},
	{"soft_delete_keeps_what_a_truncate_empties", checkSoftTruncate},
	{"soft_deleted_row_completes_no_update", checkSoftMissing},
	{"soft_deleted_rows_survive_a_new_copy", checkSoftCopy},
	{"soft_deletes_refuse_a_column_of_their_name", checkSoftColumn},
}

// deletedOn is a commit time of the checks, on day n, and its text.
func deletedOn(n int) time.Time { return time.Date(2024, 2, n, 12, 30, 0, 123_456_000, time.UTC) }

func onDay(n int) string { return fmt.Sprintf("2024-02-%02d 12:30:00.123456+00", n) }

// softPlan returns where a table with soft deletes goes, with the number of its next copy.
func (c *sinkCheck) softPlan(name string) *connector.Target {
	c.Helper()
	if _, ok := c.sys.(SoftReader); !ok {
		c.Skip("the sink has no soft deletes")
	}
	t := c.source(name)
	target, err := c.sink.Plan(c.ctx, connector.Target{Table: t, Name: t.Name, SoftDelete: true})
	c.ok(err, "plan")
	target.Copy++
	return target
}

// softStored returns a destination with soft deletes that holds rows.
func (c *sinkCheck) softStored(name string, rows ...Row) *connector.Target {
	c.Helper()
	t := c.softPlan(name)
	c.copy(t, nil, rows...)
	return t
}

// softWrite writes changes of a transaction on day n.
func (c *sinkCheck) softWrite(t *connector.Target, distinct bool, n int, ops ...opRow) error {
	c.Helper()
	r := c.build(t, ops)
	defer r.Release()
	if r.Distinct = distinct; distinct {
		r.Deleted = make([]time.Time, r.Len())
		for i := range r.Deleted {
			if op := r.Op(i); op == connector.Delete || op == connector.Before {
				r.Deleted[i] = deletedOn(n)
			}
		}
	} else {
		r.Commits = []connector.Commit{{Rows: r.Len(), Position: "1", Time: deletedOn(n)}}
	}
	return c.writeRows(t, r)
}

func (c *sinkCheck) writeRows(t *connector.Target, r *connector.Rows) error {
	c.Helper()
	tx := c.begin(c.sink)
	if err := tx.Write(c.ctx, t, r); err != nil {
		c.ok(tx.Rollback(), "roll back")
		return err
	}
	return tx.Commit(c.ctx, nil)
}

// holdsSoft compares what readers see, the times of deletions included.
func (c *sinkCheck) holdsSoft(t *connector.Target, want ...Row) {
	c.Helper()
	rows, err := c.sys.(SoftReader).SoftRows(t.Name, t.SinkNames)
	c.ok(err, "read the destination")
	c.sameRows(marked(rows), marked(want), "rows of "+t.Name.String())
}

// marked puts the time of the deletion in front, where rowLine shows it whole.
func marked(rows []Row) []Row {
	out := make([]Row, len(rows))
	for i, row := range rows {
		at, values := row[len(row)-1], row[:len(row)-1]
		day, _, _ := strings.Cut(at, " ")
		out[i] = append(Row{day, strings.TrimPrefix(at, day)}, values...)
	}
	return out
}

// ended returns a row with the time of its deletion; day 0: it lives.
func ended(day int, row Row) Row {
	if day == 0 {
		return append(slices.Clone(row), Null)
	}
	return append(slices.Clone(row), onDay(day))
}

// eachWay runs a check with rows as a set and with rows one by one, and with sets of the size at which a sink may change
// its method: many more rows, which are deleted on the day before.
func (c *sinkCheck) eachWay(do func(distinct bool, t *connector.Target, more func(ops ...opRow) []opRow)) {
	for _, way := range []string{"set", "rows", "large_set"} {
		t := c.softStored("items_"+way, numbered(1, 4)...)
		more := func(ops ...opRow) []opRow { return ops }
		if way == "large_set" {
			more = func(ops ...opRow) []opRow {
				for i := range 1000 {
					ops = append(ops, gone(fmt.Sprint(100_000+i)))
				}
				return ops
			}
		}
		do(way != "rows", t, more)
	}
}

func checkSoftDelete(c *sinkCheck) {
	c.eachWay(func(distinct bool, t *connector.Target, more func(...opRow) []opRow) {
		c.ok(c.softWrite(t, distinct, 3, more(gone("1"), gone("77"), alter("2", "two", Null, "b"))...), "delete")
		c.ok(c.softWrite(t, distinct, 5, more(gone("1"), gone("4"))...), "delete again")
		c.holdsSoft(t, ended(3, numbered(1, 1)[0]), ended(0, Row{"2", "two", Null, "b"}), ended(0, numbered(3, 1)[0]), ended(5, numbered(4, 1)[0]))
	})
}

func checkSoftReturn(c *sinkCheck) {
	c.eachWay(func(distinct bool, t *connector.Target, more func(...opRow) []opRow) {
		c.ok(c.softWrite(t, distinct, 3, more(gone("1"), gone("2"))...), "delete")
		c.ok(c.softWrite(t, distinct, 4, more(put("1", "new", "n", Null))...), "insert")
		c.holdsSoft(t, ended(0, Row{"1", "new", "n", Null}), ended(3, numbered(2, 1)[0]), ended(0, numbered(3, 1)[0]), ended(0, numbered(4, 1)[0]))
		c.ok(c.softWrite(t, distinct, 6, more(gone("1"))...), "delete again")
		c.holdsSoft(t, ended(6, Row{"1", "new", "n", Null}), ended(3, numbered(2, 1)[0]), ended(0, numbered(3, 1)[0]), ended(0, numbered(4, 1)[0]))
	})
}

func checkSoftMove(c *sinkCheck) {
	c.eachWay(func(distinct bool, t *connector.Target, more func(...opRow) []opRow) {
		c.ok(c.softWrite(t, distinct, 3, more(
			was("1"), alter("10", "moved", Null, Unsent), was("2"), alter("20", "whole", Null, "b"), was("3"), alter("3", "stays", Null, Unsent))...), "change keys")
		c.holdsSoft(t, ended(3, numbered(1, 1)[0]), ended(0, Row{"10", "moved", Null, "big 1"}), ended(3, numbered(2, 1)[0]),
			ended(0, Row{"20", "whole", Null, "b"}), ended(0, Row{"3", "stays", Null, "big 3"}), ended(0, numbered(4, 1)[0]))
		c.ok(c.softWrite(t, distinct, 4, more(was("10"), alter("1", "back", Null, Unsent))...), "change a key back")
		c.holdsSoft(t, ended(0, Row{"1", "back", Null, "big 1"}), ended(4, Row{"10", "moved", Null, "big 1"}), ended(3, numbered(2, 1)[0]),
			ended(0, Row{"20", "whole", Null, "b"}), ended(0, Row{"3", "stays", Null, "big 3"}), ended(0, numbered(4, 1)[0]))
	})
}

// checkSoftPassing writes rows that came, or changed, and went within one batch.
func checkSoftPassing(c *sinkCheck) {
	for _, large := range []bool{false, true} {
		t := c.softStored(fmt.Sprintf("items_%t", large), numbered(1, 3)...)
		ops := []opRow{
			put("9", "came and went", Null, "b"), alter("1", "changed and went", Null, Unsent), was("2"), alter("20", "moved and went", Null, Unsent)}
		days := []int{3, 4, 5, 6}
		for i := range 1000 {
			if large {
				ops, days = append(ops, gone(fmt.Sprint(100_000+i))), append(days, 7)
			}
		}
		r := c.build(t, ops)
		r.Distinct = true
		for _, day := range days {
			r.Deleted = append(r.Deleted, deletedOn(day))
		}
		err := c.writeRows(t, r)
		r.Release()
		c.ok(err, "write a set of changes")
		c.holdsSoft(t, ended(3, Row{"9", "came and went", Null, "b"}), ended(4, Row{"1", "changed and went", Null, "big 1"}),
			ended(5, numbered(2, 1)[0]), ended(6, Row{"20", "moved and went", Null, "big 2"}), ended(0, numbered(3, 1)[0]))
	}
}

func checkSoftTruncate(c *sinkCheck) {
	t := c.softStored("items", numbered(1, 3)...)
	c.ok(c.softWrite(t, false, 2, gone("1")), "delete")
	c.ok(c.softWrite(t, false, 4, put("5", "a", Null, "b"), opRow{op: connector.Truncate}, put("2", "new", Null, "b")), "truncate")
	c.holdsSoft(t, ended(2, numbered(1, 1)[0]), ended(0, Row{"2", "new", Null, "b"}), ended(4, numbered(3, 1)[0]), ended(4, Row{"5", "a", Null, "b"}))
}

func checkSoftMissing(c *sinkCheck) {
	c.eachWay(func(distinct bool, t *connector.Target, more func(...opRow) []opRow) {
		c.ok(c.softWrite(t, distinct, 3, gone("1")), "delete")
		for _, ops := range [][]opRow{
			{put("5", "a", Null, "b"), alter("1", "x", Null, Unsent)},
			{was("1"), alter("7", "x", Null, Unsent)},
		} {
			err := c.softWrite(t, distinct, 4, more(ops...)...)
			c.kind(err, connector.BadRow, "take a value from a deleted row")
			if e, ok := err.(*connector.Error); !ok || e.Row != 1 {
				c.Errorf("%v does not name row 1", err)
			}
		}
		c.holdsSoft(t, ended(3, numbered(1, 1)[0]), ended(0, numbered(2, 1)[0]), ended(0, numbered(3, 1)[0]), ended(0, numbered(4, 1)[0]))
	})
}

// checkSoftCopy makes a second copy: of rows 1 and 2 deleted before it only 2 is back, and 3 was deleted unseen.
func checkSoftCopy(c *sinkCheck) {
	t := c.softStored("items", numbered(1, 5)...)
	c.ok(c.softWrite(t, true, 3, gone("1"), gone("2")), "delete")
	next := c.softPlan("items")
	if next.Copy != t.Copy+1 {
		c.Fatalf("the second copy is number %d", next.Copy)
	}
	began := time.Now().Add(-time.Second)
	c.copy(next, nil, numbered(2, 1)[0], numbered(4, 1)[0], Row{"5", "new", Null, "b"}, numbered(6, 1)[0])
	rows, err := c.sys.(SoftReader).SoftRows(next.Name, next.SinkNames)
	c.ok(err, "read the destination")
	for i, row := range rows {
		if row[0] != "3" {
			continue
		}
		at, err := time.Parse("2006-01-02 15:04:05.999999-07", row[4])
		if err != nil || at.Before(began) || at.After(time.Now().Add(time.Second)) {
			c.Errorf("the row that the copy lacks was deleted at %s, %v; want the time of the copy", row[4], err)
		}
		rows[i] = ended(9, row[:4])
	}
	c.sameRows(marked(rows), marked([]Row{ended(3, numbered(1, 1)[0]), ended(0, numbered(2, 1)[0]), ended(9, numbered(3, 1)[0]), ended(0, numbered(4, 1)[0]),
		ended(0, Row{"5", "new", Null, "b"}), ended(0, numbered(6, 1)[0])}), "rows after a second copy")
	c.ok(c.softWrite(next, true, 7, gone("3"), gone("4"), put("1", "again", Null, "b")), "write")
	c.holds(next, Row{"1", "again", Null, "b"}, numbered(2, 1)[0], numbered(3, 1)[0], numbered(4, 1)[0], Row{"5", "new", Null, "b"}, numbered(6, 1)[0])
}

func checkSoftColumn(c *sinkCheck) {
	c.softPlan("items")
	t := c.source("named")
	t.Columns = append(t.Columns, schema.Column{Number: 5, Name: connector.DeletedAt, Type: schema.Type{Kind: schema.Text, Native: "text"}})
	_, err := c.sink.Plan(c.ctx, connector.Target{Table: t, Name: t.Name, SoftDelete: true})
	c.kind(err, connector.TableFault, "plan a table with a column "+connector.DeletedAt)
}
