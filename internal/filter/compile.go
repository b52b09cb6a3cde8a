package filter

import (
	"fmt"
	"slices"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/nearest"
	"github.com/sluicehq/sluice/schema"
)

// maxText bounds an expression, in bytes: the parser recurses.
const maxText = 16 << 10

// Error says what is wrong with an expression, and where.
type Error struct {
	At   int // character, from 1
	Text string
}

// Error writes the place in front.
func (e *Error) Error() string { return fmt.Sprintf("at character %d: %s", e.At, e.Text) }

// Compile checks an expression against a table's columns. A fault is an [*Error].
func Compile(text string, t *schema.Table) (*Filter, error) {
	if len(text) > maxText {
		return nil, &Error{1, fmt.Sprintf("a filter has %d bytes at most", maxText)}
	}
	tree, err := parser.Parse(text)
	if err != nil {
		if e, ok := err.(*file.Error); ok {
			return nil, &Error{e.From + 1, e.Message}
		}
		return nil, &Error{1, err.Error()}
	}
	c := compiler{text: []rune(text), table: t, used: map[int]bool{}}
	root, err := c.condition(tree.Node)
	if err != nil {
		return nil, err
	}
	f := &Filter{text: text, root: root}
	for column := range t.Columns {
		if c.used[column] {
			f.columns = append(f.columns, column)
		}
	}
	return f, nil
}

type compiler struct {
	text  []rune
	table *schema.Table
	used  map[int]bool // columns
}

func fail(n ast.Node, format string, args ...any) error {
	return &Error{n.Location().From + 1, fmt.Sprintf(format, args...)}
}

// condition compiles what is true, false or NULL.
func (c *compiler) condition(n ast.Node) (condition, error) {
	switch n := n.(type) {
	case *ast.BoolNode:
		if n.Value {
			return constant(isTrue), nil
		}
		return constant(isFalse), nil
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			of, err := c.condition(n.Node)
			return negation{of}, err
		}
	case *ast.BinaryNode:
		return c.binary(n)
	case *ast.IdentifierNode, *ast.MemberNode:
		o, err := c.operand(n)
		if err != nil {
			return nil, err
		}
		if o.path != nil || classOf(o.typ) != bools {
			return nil, fail(n, "%s is no condition: compare it with something", o.name)
		}
		return test{left: o, bind: func(left, _ bound) func(int) bool { return left.values.(*array.Boolean).Value }}, nil
	case *ast.CallNode, *ast.BuiltinNode:
		return nil, fail(n, "a filter has no functions")
	}
	return nil, fail(n, "expected a condition: comparisons, in, contains, startsWith and endsWith, with and, or and not between them")
}

func (c *compiler) binary(n *ast.BinaryNode) (condition, error) {
	switch n.Operator {
	case "and", "&&", "or", "||":
		left, err := c.condition(n.Left)
		if err != nil {
			return nil, err
		}
		right, err := c.condition(n.Right)
		if n.Operator == "and" || n.Operator == "&&" {
			return both{left, right, &andOf}, err
		}
		return both{left, right, &orOf}, err
	case "==", "!=", "<", "<=", ">", ">=":
		return c.comparison(n)
	case "in":
		return c.membership(n)
	case "contains", "startsWith", "endsWith":
		return c.textTest(n)
	case "matches":
		return nil, fail(n, "a filter has no regular expressions, which are not the same at every server; use contains, startsWith or endsWith")
	}
	return nil, fail(n, "%s is not possible in a filter", n.Operator)
}

// holds is what an operator makes of an order.
var holds = map[string]func(order int) bool{
	"==": func(o int) bool { return o == 0 }, "!=": func(o int) bool { return o != 0 },
	"<": func(o int) bool { return o < 0 }, "<=": func(o int) bool { return o <= 0 },
	">": func(o int) bool { return o > 0 }, ">=": func(o int) bool { return o >= 0 },
}

var mirrored = map[string]string{"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

func (c *compiler) comparison(n *ast.BinaryNode) (condition, error) {
	left, right, op := n.Left, n.Right, n.Operator
	if isConstant(left) {
		left, right, op = right, left, mirrored[op]
	}
	if isConstant(left) {
		return nil, fail(n, "neither side of %s is a column", n.Operator)
	}
	l, err := c.operand(left)
	if err != nil {
		return nil, err
	}
	if _, isNil := right.(*ast.NilNode); isNil {
		return nullComparison(n, l, op)
	}
	class := l.class()
	if op != "==" && op != "!=" && !class.hasOrder() {
		return nil, fail(n, "%s has no order; only == and != are possible", l.name)
	}
	if isConstant(right) {
		v, err := c.literal(right, l)
		if err != nil {
			return nil, err
		}
		return compare(l, nil, op, func(left, _ bound) order { return orderWith(class, v)(left) }), nil
	}
	r, err := c.operand(right)
	if err != nil {
		return nil, err
	}
	if !comparable(l, r) {
		return nil, fail(n, "%s and %s cannot be compared: one is of type %s, the other of type %s", l.name, r.name, l.typeName(), r.typeName())
	}
	return compare(l, r, op, orderBoth(class, r.class())), nil
}

func nullComparison(n ast.Node, o *operand, op string) (condition, error) {
	switch op {
	case "==":
		return nullTest{o}, nil
	case "!=":
		return negation{nullTest{o}}, nil
	}
	return nil, fail(n, "nil has no order; only == and != are possible")
}

func compare(l, r *operand, op string, with func(left, right bound) order) condition {
	is := holds[op]
	return test{left: l, right: r, bind: func(left, right bound) func(int) bool {
		order := with(left, right)
		return func(i int) bool { return is(order(i)) }
	}}
}

func comparable(l, r *operand) bool {
	a, b := l.class(), r.class()
	switch {
	case a == noClass || b == noClass:
		return false
	case a == enums && b == enums:
		return l.typ.Native == r.typ.Native
	}
	return a == b || a.isNumber() && b.isNumber()
}

// membership is a column in a list of constants, or a constant in an array column.
func (c *compiler) membership(n *ast.BinaryNode) (condition, error) {
	list, isList := n.Right.(*ast.ArrayNode)
	if !isList {
		return c.element(n)
	}
	o, err := c.operand(n.Left)
	if err != nil {
		return nil, err
	}
	var literals []literal
	for _, item := range list.Nodes {
		if _, isNil := item.(*ast.NilNode); isNil {
			return nil, fail(item, "nil equals nothing; write %s == nil", o.name)
		}
		if !isConstant(item) {
			return nil, fail(item, "expected a constant")
		}
		v, err := c.literal(item, o)
		if err != nil {
			return nil, err
		}
		literals = append(literals, v)
	}
	if len(literals) == 0 {
		return nil, fail(list, "the list is empty")
	}
	return test{left: o, bind: anyOf(o.class(), literals)}, nil
}

// anyOf tests for equality with one of some constants: those that are the same as bytes, or as integers, in one step.
func anyOf(c class, literals []literal) func(left, right bound) func(int) bool {
	if c == texts || c == enums {
		set := map[string]bool{}
		for _, v := range literals {
			set[v.text] = true
		}
		return func(left, _ bound) func(int) bool {
			value := left.text()
			return func(i int) bool { return set[value(i)] }
		}
	}
	return func(left, _ bound) func(int) bool {
		orders := make([]order, len(literals))
		for n, v := range literals {
			orders[n] = orderWith(c, v)(left)
		}
		return func(i int) bool {
			return slices.ContainsFunc(orders, func(o order) bool { return o(i) == 0 })
		}
	}
}

// element is a constant in an array column: true if an element equals it, else NULL if an element is NULL.
func (c *compiler) element(n *ast.BinaryNode) (condition, error) {
	if !isConstant(n.Left) {
		return nil, fail(n.Left, "expected a constant in front of in, or a list in brackets behind it")
	}
	o, err := c.operand(n.Right)
	if err != nil {
		return nil, err
	}
	if o.path != nil || o.typ.Kind != schema.Array {
		return nil, fail(n.Right, "%s is no array", o.name)
	}
	elem := &operand{name: "an element of " + o.name, typ: *o.typ.Elem}
	v, err := c.literal(n.Left, elem)
	if err != nil {
		return nil, err
	}
	return elementTest{o, orderWith(elem.class(), v)}, nil
}

type elementTest struct {
	of    *operand
	order func(bound) order
}

func (c elementTest) eval(r *connector.Rows, out []truth) {
	v := c.of.of(r)
	list := v.values.(*array.Struct).Field(0).(*array.List)
	elements := bound{values: list.ListValues(), padded: c.of.typ.Elem.Padded}
	order := c.order(elements)
	for i := range out {
		switch {
		case v.unsent(i):
			out[i] = anything
			continue
		case v.null(i):
			out[i] = isNull
			continue
		}
		out[i] = isFalse
		from, to := list.ValueOffsets(i)
		for e := int(from); e < int(to) && out[i] != isTrue; e++ {
			if elements.null(e) {
				out[i] = isNull
			} else if order(e) == 0 {
				out[i] = isTrue
			}
		}
	}
}

// textTest looks for a constant in a text.
func (c *compiler) textTest(n *ast.BinaryNode) (condition, error) {
	o, err := c.operand(n.Left)
	if err != nil {
		return nil, err
	}
	if o.class() != texts {
		return nil, fail(n.Left, "%s is no text", o.name)
	}
	s, ok := n.Right.(*ast.StringNode)
	if !ok {
		return nil, fail(n.Right, "expected a text in quotes")
	}
	has := map[string]func(s, part string) bool{"contains": strings.Contains, "startsWith": strings.HasPrefix, "endsWith": strings.HasSuffix}[n.Operator]
	return test{left: o, bind: func(left, _ bound) func(int) bool {
		value := left.text()
		return func(i int) bool { return has(value(i), s.Value) }
	}}, nil
}

// class is that of the type, of what a JSON document holds that of text.
func (o *operand) class() class {
	if o.path != nil {
		return texts
	}
	return classOf(o.typ)
}

func (o *operand) typeName() string {
	if o.path != nil {
		return "text"
	}
	return o.typ.Native
}

// operand compiles a column, by its name or as $env["its name"], or a path into a JSON column.
func (c *compiler) operand(n ast.Node) (*operand, error) {
	switch n := n.(type) {
	case *ast.IdentifierNode:
		return c.column(n, n.Value)
	case *ast.MemberNode:
		if env, ok := n.Node.(*ast.IdentifierNode); ok && env.Value == "$env" {
			name, ok := n.Property.(*ast.StringNode)
			if !ok {
				return nil, fail(n.Property, "expected the name of a column in quotes")
			}
			return c.column(n.Property, name.Value)
		}
		return c.member(n)
	case *ast.CallNode, *ast.BuiltinNode:
		return nil, fail(n, "a filter has no functions")
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			return nil, fail(n, "%s binds closer than a comparison; put what is behind it in parentheses", n.Operator)
		}
		return nil, fail(n, "expected a column; a filter does not calculate")
	case *ast.BinaryNode:
		return nil, fail(n, "expected a column; a filter does not calculate")
	}
	return nil, fail(n, "expected a column")
}

func (c *compiler) column(at ast.Node, name string) (*operand, error) {
	i := c.table.Column(name)
	if i < 0 {
		var names []string
		for _, col := range c.table.Columns {
			names = append(names, col.Name)
		}
		return nil, fail(at, "the table has no column %s%s", name, nearest.Hint(name, names))
	}
	if c.table.Columns[i].Generated != "" {
		return nil, fail(at, "column %s is generated, and so not in the log", name)
	}
	c.used[i] = true
	return &operand{column: i, name: name, typ: c.table.Columns[i].Type}, nil
}

func (c *compiler) member(n *ast.MemberNode) (*operand, error) {
	of, err := c.operand(n.Node)
	if err != nil {
		return nil, err
	}
	if of.typ.Kind != schema.JSON {
		return nil, fail(n, "%s holds no JSON to look into", of.name)
	}
	s := step{index: -1}
	switch p := n.Property.(type) {
	case *ast.StringNode:
		s.key = p.Value
	case *ast.IntegerNode:
		if s.index = p.Value; s.index < 0 {
			return nil, fail(p, "an array begins at 0")
		}
	default:
		return nil, fail(n.Property, "expected a key in quotes, or a number")
	}
	next := *of
	next.path = append(slices.Clone(of.path), s)
	return &next, nil
}

func isConstant(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.StringNode, *ast.BytesNode, *ast.IntegerNode, *ast.FloatNode:
		return true
	case *ast.UnaryNode:
		return (n.Operator == "-" || n.Operator == "+") && isConstant(n.Node)
	}
	return false
}

// literal reads a constant as a value of the type that it is compared with. Numbers are read from the expression's own
// text: the parser has rounded them.
func (c *compiler) literal(n ast.Node, with *operand) (literal, error) {
	class := with.class()
	switch n := n.(type) {
	case *ast.StringNode:
		if with.path != nil {
			return literal{text: n.Value}, nil
		}
		v, err := parseText(n.Value, with.typ)
		if err != nil {
			return v, fail(n, "%v", err)
		}
		return v, nil
	case *ast.BoolNode:
		if class == bools {
			v := literal{}
			if n.Value {
				v.integer = 1
			}
			return v, nil
		}
	case *ast.BytesNode:
		if class == binaries {
			return literal{text: string(n.Value)}, nil
		}
	case *ast.UnaryNode, *ast.IntegerNode, *ast.FloatNode:
		if class.isNumber() {
			return c.number(n)
		}
		if class == texts && with.path != nil {
			return literal{}, fail(n, "%s is text, as the document writes it; put the number in quotes", with.name)
		}
	}
	if class == noClass {
		return literal{}, fail(n, "%s is of type %s, whose values are not compared; only == nil and != nil are possible", with.name, with.typeName())
	}
	return literal{}, fail(n, "%s is of type %s; expected a value of that type, in quotes unless it is a number, true or false", with.name, with.typeName())
}

func (c *compiler) number(n ast.Node) (literal, error) {
	sign, digits := "", n
	for {
		u, ok := digits.(*ast.UnaryNode)
		if !ok {
			break
		}
		if u.Operator == "-" {
			sign += "-"
		}
		digits = u.Node
	}
	if _, ok := digits.(*ast.IntegerNode); !ok {
		if _, ok := digits.(*ast.FloatNode); !ok {
			return literal{}, fail(digits, "expected a number")
		}
	}
	at := digits.Location()
	v, err := parseNumber(strings.ReplaceAll(sign, "--", "") + string(c.text[at.From:at.To]))
	if err != nil {
		return v, fail(digits, "%v", err)
	}
	return v, nil
}
