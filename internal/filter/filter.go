// Package filter decides which rows of a table are mirrored. A filter is an expression in the syntax of expr-lang; it is
// parsed by that library and evaluated by us, on whole columns, by the rules of SQL: a comparison with NULL is neither
// true nor false, and only rows for which the whole is true are in. Numbers are compared exactly, text byte by byte.
//
// To read it: truth (here), compile, operand, order, literal.
package filter

import (
	"github.com/sluicehq/sluice/connector"
)

// Filter is a compiled expression, for one version of a table. It is safe for concurrent use.
type Filter struct {
	text    string
	root    condition
	columns []int
}

// String returns the expression.
func (f *Filter) String() string { return f.text }

// Columns returns the columns that the expression looks at, indexes into the table's, ascending.
func (f *Filter) Columns() []int { return f.columns }

// Verdict is whether a row is mirrored.
type Verdict uint8

// The verdicts.
const (
	Out       Verdict = iota // the expression is false, or NULL
	In                       // it is true
	Undecided                // it depends on a value that the source left unsent
)

// Judge returns the verdict on each row. What a row does is not looked at.
func (f *Filter) Judge(r *connector.Rows) []Verdict {
	values := make([]truth, r.Len())
	f.root.eval(r, values)
	verdicts := make([]Verdict, len(values))
	for i, v := range values {
		verdicts[i] = verdictOf[v]
	}
	return verdicts
}

// truth is the set of the values that a condition may have: one of them is what it has, several where values that were
// not sent decide.
type truth uint8

const (
	isFalse truth = 1 << iota
	isNull
	isTrue

	anything = isFalse | isNull | isTrue
	truths   = anything + 1 // number of sets
)

var (
	andOf, orOf [truths][truths]truth
	notOf       [truths]truth
	verdictOf   [truths]Verdict
)

// The tables are made from the rules for single values: false < NULL < true, "and" is the least and "or" the greatest.
func init() {
	single := []truth{isFalse, isNull, isTrue}
	for a := range andOf {
		for b := range andOf[a] {
			for _, x := range single {
				for _, y := range single {
					if truth(a)&x != 0 && truth(b)&y != 0 {
						andOf[a][b] |= min(x, y)
						orOf[a][b] |= max(x, y)
					}
				}
			}
		}
		t := truth(a)
		notOf[a] = t&isNull | t&isFalse<<2 | t&isTrue>>2
		switch {
		case t == isTrue:
			verdictOf[a] = In
		case t&isTrue != 0:
			verdictOf[a] = Undecided
		}
	}
}

// condition is a part of an expression that is true, false or NULL.
type condition interface {
	// eval puts the value for each row into out.
	eval(r *connector.Rows, out []truth)
}

// both is "and" or "or", by its table.
type both struct {
	left, right condition
	table       *[truths][truths]truth
}

func (c both) eval(r *connector.Rows, out []truth) {
	c.left.eval(r, out)
	right := make([]truth, len(out))
	c.right.eval(r, right)
	for i := range out {
		out[i] = c.table[out[i]][right[i]]
	}
}

type negation struct{ of condition }

func (c negation) eval(r *connector.Rows, out []truth) {
	c.of.eval(r, out)
	for i := range out {
		out[i] = notOf[out[i]]
	}
}

// constant is true or false for all rows.
type constant truth

func (c constant) eval(_ *connector.Rows, out []truth) {
	for i := range out {
		out[i] = truth(c)
	}
}

// test is a condition on one or two operands. Where one of them is NULL it is NULL.
type test struct {
	left, right *operand // right is nil where the test needs no second column
	bind        func(left, right bound) func(i int) bool
}

func (c test) eval(r *connector.Rows, out []truth) {
	left := c.left.of(r)
	var right bound
	if c.right != nil {
		right = c.right.of(r)
	}
	holds := c.bind(left, right)
	for i := range out {
		switch {
		case left.unsent(i) || c.right != nil && right.unsent(i):
			out[i] = anything
		case left.null(i) || c.right != nil && right.null(i):
			out[i] = isNull
		case holds(i):
			out[i] = isTrue
		default:
			out[i] = isFalse
		}
	}
}

// nullTest is true where its operand is NULL, and false elsewhere.
type nullTest struct{ of *operand }

func (c nullTest) eval(r *connector.Rows, out []truth) {
	v := c.of.of(r)
	for i := range out {
		switch {
		case v.unsent(i):
			out[i] = isTrue | isFalse
		case v.null(i):
			out[i] = isTrue
		default:
			out[i] = isFalse
		}
	}
}
