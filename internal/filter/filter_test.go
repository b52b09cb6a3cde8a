package filter

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var orders = &schema.Table{
	Name: schema.Name{Schema: "public", Table: "orders"},
	Columns: []schema.Column{
		{Name: "id", Type: schema.Type{Kind: schema.Int64, Native: "bigint"}},
		{Name: "status", Type: schema.Type{Kind: schema.Text, Native: "text"}},
		{Name: "total", Type: schema.Type{Kind: schema.Numeric, Native: "numeric(10,2)"}},
		{Name: "mood", Type: schema.Type{Kind: schema.Enum, Native: "mood", Labels: []string{"sad", "happy"}}},
		{Name: "made", Type: schema.Type{Kind: schema.TimestampTZ, Native: "timestamp with time zone"}},
		{Name: "span", Type: schema.Type{Kind: schema.Interval, Native: "interval"}},
		{Name: "paid", Type: schema.Type{Kind: schema.Bool, Native: "boolean"}},
		{Name: "doc", Type: schema.Type{Kind: schema.JSON, Native: "jsonb"}},
		{Name: "double", Generated: "id * 2", Type: schema.Type{Kind: schema.Int64, Native: "bigint"}},
	},
}

func TestExpressionsThatDoNotFitTheColumnsAreRefusedWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		``:                               `at character 1: unexpected token EOF`,
		`id >`:                           `at character 4: unexpected token EOF`,
		`id = 1`:                         `at character 4: unexpected token Operator("=")`,
		`id > 1 and stauts == "open"`:    `at character 12: the table has no column stauts; did you mean "status"?`,
		`id > "many"`:                    `at character 6: "many" is no number`,
		`id == true`:                     `at character 7: id is of type bigint; expected a value of that type, in quotes unless it is a number, true or false`,
		`status > 1`:                     `at character 10: status is of type text; expected a value of that type, in quotes unless it is a number, true or false`,
		`status == id`:                   `at character 8: status and id cannot be compared: one is of type text, the other of type bigint`,
		`mood == "hapy"`:                 `at character 9: type mood has no label "hapy"; did you mean "happy"?`,
		`mood < "happy"`:                 `at character 6: mood has no order; only == and != are possible`,
		`made > "2024-01-01"`:            `at character 8: "2024-01-01" is not in the form of "2024-12-31 23:59:59+00:00", from year 0001 to 9999, to the microsecond`,
		`span > "1 day"`:                 `at character 8: values of type interval are not compared; only == nil and != nil are possible`,
		`status`:                         `at character 1: status is no condition: compare it with something`,
		`not status == "open"`:           `at character 1: not binds closer than a comparison; put what is behind it in parentheses`,
		`paid == "true"`:                 `at character 9: a bool is compared with true or false, without quotes`,
		`id in []`:                       `at character 7: the list is empty`,
		`id in [1, nil]`:                 `at character 11: nil equals nothing; write id == nil`,
		`1 in id`:                        `at character 6: id is no array`,
		`id < nil`:                       `at character 4: nil has no order; only == and != are possible`,
		`1 == 1`:                         `at character 3: neither side of == is a column`,
		`lower(status) == "open"`:        `at character 1: a filter has no functions`,
		`total * 2 > 10`:                 `at character 7: expected a column; a filter does not calculate`,
		`status matches "^o"`:            `at character 8: a filter has no regular expressions, which are not the same at every server; use contains, startsWith or endsWith`,
		`doc.total > 10`:                 `at character 13: doc is text, as the document writes it; put the number in quotes`,
		`status.x == "a"`:                `at character 8: status holds no JSON to look into`,
		`double > 2`:                     `at character 1: column double is generated, and so not in the log`,
		`id > 1 ? paid : paid`:           `at character 20: expected a condition: comparisons, in, contains, startsWith and endsWith, with and, or and not between them`,
		`let x = 1; x > 2`:               `at character 5: expected a condition: comparisons, in, contains, startsWith and endsWith, with and, or and not between them`,
		`id contains "1"`:                `at character 1: id is no text`,
		`status contains id`:             `at character 17: expected a text in quotes`,
		`$env["Status"] == "open"`:       `at character 6: the table has no column Status; did you mean "status"?`,
		"total > 1e99999999999":          `at character 21: invalid float literal: strconv.ParseFloat: parsing "1e99999999999": value out of range`,
		`made == "2024-01-01 00:00:00Z"`: "",
	} {
		_, err := Compile(text, orders)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", text, got, want)
		}
	}
}

func TestUnsentValuesLeaveARowUndecidedOnlyIfTheyDecide(t *testing.T) {
	b := array.NewRecordBuilder(memory.DefaultAllocator, orders.Arrow())
	defer b.Release()
	for c := range orders.Columns {
		b.Field(c).AppendNull()
	}
	b.Field(0).(*array.Int64Builder).AppendNull()
	for c := 1; c < len(orders.Columns); c++ {
		b.Field(c).AppendNull()
	}
	values := b.NewRecordBatch()
	defer values.Release()
	rows := &connector.Rows{Table: orders, Values: values, Unsent: make([][]byte, len(orders.Columns))}
	rows.Unsent[1] = []byte{1} // the first row's status
	for text, want := range map[string]Verdict{
		`status == "open"`:                   Undecided,
		`not (status == "open")`:             Undecided,
		`status == nil`:                      Undecided,
		`status == "open" or true`:           In,
		`status == "open" and false`:         Out,
		`status == "open" and id == 1`:       Out, // never true: the other side is NULL
		`status == "open" or id == 1`:        Undecided,
		`status in ["open"] and id == nil`:   Undecided,
		`status startsWith "o" or id == nil`: In,
	} {
		f, err := Compile(text, orders)
		if err != nil {
			t.Fatal(err)
		}
		verdicts := f.Judge(rows)
		if verdicts[0] != want {
			t.Errorf("%s: verdict %d, want %d", text, verdicts[0], want)
		}
		if verdicts[1] == Undecided {
			t.Errorf("%s: a row of which all was sent is undecided", text)
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{`id > 1 and status in ["a", 'b']`, `doc.a["b"][0] != nil`, "`raw` == status", `not (paid or -1.5e3 < total)`, `$env["id"] == 1`} {
		f.Add(seed)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, orders.Arrow())
	for c := range orders.Columns {
		b.Field(c).AppendNull()
		b.Field(c).AppendEmptyValue()
	}
	rows := &connector.Rows{Table: orders, Values: b.NewRecordBatch()}
	f.Fuzz(func(t *testing.T, text string) {
		if compiled, err := Compile(text, orders); err == nil {
			compiled.Judge(rows)
		}
	})
}
