package sqlite

import (
	"errors"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/schema"
)

// maxDimensions is how many an array may have (PostgreSQL: MAXDIM).
const maxDimensions = 6

// arrayWriter writes the values of an array column as JSON; see schema.Array for their storage. An array is a JSON array,
// nested as deep as it has dimensions. One whose subscripts do not begin at 1 is an object,
//
//	{"lower":[0],"values":[10,20]}
//
// with the lower bound of each dimension.
type arrayWriter struct {
	lists  *array.List
	values arrow.Array
	shapes *array.String
	elem   appendValue
}

func bindArray(t schema.Type, a *array.Struct) (*arrayWriter, error) {
	if a.NumField() != 2 || t.Elem == nil {
		return nil, wrongStorage(t, a)
	}
	lists, ok := a.Field(0).(*array.List)
	shapes, ok2 := a.Field(1).(*array.String)
	if !ok || !ok2 {
		return nil, wrongStorage(t, a)
	}
	w := &arrayWriter{lists: lists, values: lists.ListValues(), shapes: shapes}
	var err error
	w.elem, err = jsonColumn(*t.Elem, w.values)
	return w, err
}

// dimension is one subscript of a shape: its lowest value and how many it has.
type dimension struct{ lower, length int64 }

// parseShape reads dimensions as PostgreSQL writes them in front of an array, both bounds included: [1:2][0:4].
func parseShape(s string) ([]dimension, error) {
	bad := errors.New("an array's shape is not of the form [lower:upper]")
	var dims []dimension
	for s != "" {
		inside, rest, ok := strings.Cut(s, "]")
		lower, upper, ok2 := strings.Cut(strings.TrimPrefix(inside, "["), ":")
		if !ok || !ok2 || s[0] != '[' || len(dims) == maxDimensions {
			return nil, bad
		}
		l, err := strconv.ParseInt(lower, 10, 32)
		u, err2 := strconv.ParseInt(upper, 10, 32)
		if err != nil || err2 != nil || u < l {
			return nil, bad
		}
		dims, s = append(dims, dimension{l, u - l + 1}), rest
	}
	if dims == nil {
		return nil, bad
	}
	return dims, nil
}

// shape returns the dimensions of row i, none for an empty array, and the range of its elements in values.
func (w *arrayWriter) shape(i int) (dims []dimension, first, end int, err error) {
	f, e := w.lists.ValueOffsets(i)
	first, end = int(f), int(e)
	if w.shapes.IsNull(i) {
		if end > first {
			dims = []dimension{{1, int64(end - first)}}
		}
		return dims, first, end, nil
	}
	dims, err = parseShape(w.shapes.Value(i))
	n := int64(1)
	for _, d := range dims {
		if n *= d.length; n > int64(end-first) { // before it overflows
			break
		}
	}
	if err == nil && n != int64(end-first) {
		err = errors.New("an array's shape does not fit its number of elements")
	}
	return dims, first, end, err
}

// append writes the array of row i.
func (w *arrayWriter) append(dst []byte, i int) ([]byte, error) {
	dims, first, end, err := w.shape(i)
	if err != nil {
		return dst, err
	}
	if len(dims) == 0 {
		return append(dst, '[', ']'), nil
	}
	shifted := false
	for _, d := range dims {
		shifted = shifted || d.lower != 1
	}
	if shifted {
		dst = append(dst, `{"lower":[`...)
		for n, d := range dims {
			if n > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, d.lower, 10)
		}
		dst = append(dst, `],"values":`...)
	}
	if dst, err = w.appendNested(dst, dims, first, end); err == nil && shifted {
		dst = append(dst, '}')
	}
	return dst, err
}

// appendNested writes the elements first to end. A bracket opens and closes wherever their number, counted from the first,
// is a multiple of the elements that it holds.
func (w *arrayWriter) appendNested(dst []byte, dims []dimension, first, end int) (_ []byte, err error) {
	holds := make([]int, len(dims))
	for d, n := len(dims)-1, 1; d >= 0; d-- {
		n *= int(dims[d].length)
		holds[d] = n
	}
	for j := first; j < end; j++ {
		if j > first {
			dst = append(dst, ',')
		}
		for _, n := range holds {
			if (j-first)%n == 0 {
				dst = append(dst, '[')
			}
		}
		if w.values.IsNull(j) {
			dst = append(dst, "null"...)
		} else if dst, err = w.elem(dst, j); err != nil {
			return dst, err
		}
		for _, n := range holds {
			if (j-first+1)%n == 0 {
				dst = append(dst, ']')
			}
		}
	}
	return dst, nil
}
