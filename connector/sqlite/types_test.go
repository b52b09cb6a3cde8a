package sqlite

import (
	"encoding/json"
	"math/big"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/schema"
)

func TestDecimalsKeepTheirScale(t *testing.T) {
	for _, c := range []struct {
		unscaled string
		scale    int32
		want     string
	}{
		{"150", 2, "1.50"}, {"-5", 3, "-0.005"}, {"0", 2, "0.00"}, {"12", 0, "12"}, {"12", -2, "1200"}, {"0", -2, "0"},
		{"-99999999999999999999999999999999999999", 38, "-0.99999999999999999999999999999999999999"},
	} {
		n, ok := new(big.Int).SetString(c.unscaled, 10)
		if got := string(appendDecimal(nil, n, c.scale)); !ok || got != c.want {
			t.Errorf("%s with scale %d is %q, want %q", c.unscaled, c.scale, got, c.want)
		}
	}
}

// FuzzArray writes an array of text under any shape: it is refused, or becomes JSON that holds each element once.
func FuzzArray(f *testing.F) {
	f.Add("[1:2][0:1]", "a\x00\"\\\n", uint8(4))
	f.Add("[-2147483648:2147483647]", "", uint8(1))
	f.Add("[1:2147483647][1:2147483647][1:2147483647]", "", uint8(0))
	f.Add("]", "é", uint8(3))
	f.Fuzz(func(t *testing.T, shape, text string, n uint8) {
		typ := schema.Type{Kind: schema.Array, Elem: &schema.Type{Kind: schema.Text}}
		b := array.NewBuilder(memory.DefaultAllocator, typ.Arrow()).(*array.StructBuilder)
		defer b.Release()
		b.Append(true)
		list := b.FieldBuilder(0).(*array.ListBuilder)
		list.Append(true)
		for range n {
			list.ValueBuilder().(*array.StringBuilder).Append(text)
		}
		b.FieldBuilder(1).(*array.StringBuilder).Append(shape)
		a := b.NewArray()
		defer a.Release()
		write, err := textColumn(typ, a)
		if err != nil {
			t.Fatal(err)
		}
		out, err := write(nil, 0)
		if err != nil {
			return
		}
		var value any
		if err := json.Unmarshal(out, &value); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if object, ok := value.(map[string]any); ok {
			value = object["values"]
		}
		if got := leaves(value); got != int(n) {
			t.Errorf("%s holds %d elements, want %d", out, got, n)
		}
	})
}

func leaves(value any) int {
	items, ok := value.([]any)
	if !ok {
		return 1
	}
	n := 0
	for _, item := range items {
		n += leaves(item)
	}
	return n
}
