package postgres

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/sluicehq/sluice/schema"
)

// maxDimensions is the server's MAXDIM (src/include/c.h).
const maxDimensions = 6

// arrayShape is an array's dimensions.
type arrayShape struct {
	count      int
	dimensions [maxDimensions]struct{ lower, length int64 }
}

// append writes the shape as array_out does: [1:2][0:3].
func (s *arrayShape) append(out []byte) []byte {
	for _, d := range s.dimensions[:s.count] {
		out = append(out, '[')
		out = strconv.AppendInt(out, d.lower, 10)
		out = append(out, ':')
		out = strconv.AppendInt(out, d.lower+d.length-1, 10)
		out = append(out, ']')
	}
	return out
}

// isPlain reports whether the values alone say it all: one dimension counted from 1, or no value.
func (s *arrayShape) isPlain() bool {
	return s.count == 0 || s.count == 1 && s.dimensions[0].lower == 1
}

// newArrayDecoder reads arrays into the storage that schema.Array describes: all values in one list, and the shape where
// it is not the usual one.
func newArrayDecoder(t schema.Type, wire wireForm, b *array.StructBuilder) columnDecoder {
	list, shapes := b.FieldBuilder(0).(*array.ListBuilder), b.FieldBuilder(1).(*array.StringBuilder)
	values := list.ValueBuilder()
	decode := newColumnDecoder(*t.Elem, wire, values)
	var scratch []byte
	return func(v []byte) error {
		b.Append(true)
		list.Append(true)
		var s arrayShape
		var err error
		if wire == wireText {
			s, scratch, err = parseArray(v, scratch, decode, values.AppendNull)
		} else {
			s, err = parseBinaryArray(v, decode, values.AppendNull)
		}
		if err != nil {
			return err
		}
		if s.isPlain() {
			shapes.AppendNull()
			return nil
		}
		scratch = s.append(scratch[:0])
		shapes.BinaryBuilder.Append(scratch)
		return nil
	}
}

// parseBinaryArray reads array_send: the number of dimensions, a flag, the element type, each dimension's length and
// lower bound, and each value behind its length, -1 for NULL.
func parseBinaryArray(v []byte, value columnDecoder, null func()) (arrayShape, error) {
	var s arrayShape
	if len(v) < 12 {
		return s, errForm
	}
	count := binary.BigEndian.Uint32(v)
	v = v[12:]
	if count > maxDimensions || len(v) < int(8*count) {
		return s, errForm
	}
	s.count = int(count)
	total := int64(min(count, 1))
	for i := range s.count {
		d := &s.dimensions[i]
		d.length = int64(int32(binary.BigEndian.Uint32(v)))
		d.lower = int64(int32(binary.BigEndian.Uint32(v[4:])))
		v = v[8:]
		if d.length < 1 || d.length > math.MaxInt32 || total*d.length > math.MaxInt32 {
			return s, errForm
		}
		total *= d.length
	}
	for range total {
		if len(v) < 4 {
			return s, errForm
		}
		size := int32(binary.BigEndian.Uint32(v))
		v = v[4:]
		if size == -1 {
			null()
			continue
		}
		if size < 0 || int(size) > len(v) {
			return s, errForm
		}
		if err := value(v[:size]); err != nil {
			return s, err
		}
		v = v[size:]
	}
	if len(v) != 0 {
		return s, errForm
	}
	return s, nil
}

// arrayParser reads array_out with commas between values (arrayfuncs.c; documentation, section "Array Input and Output
// Syntax"). Only what the server writes is taken: no blanks outside quotes.
type arrayParser struct {
	text    []byte
	scratch []byte // a value without its backslashes
	value   columnDecoder
	null    func()

	shape    arrayShape
	explicit bool // the text began with its dimensions
	depth    int
	counts   [maxDimensions]int64 // items so far in the open braces of each depth
	closed   [maxDimensions]bool  // braces of this depth were closed before, and their length is known
}

func parseArray(text, scratch []byte, value columnDecoder, null func()) (arrayShape, []byte, error) {
	p := arrayParser{text: text, scratch: scratch, value: value, null: null}
	err := p.parse()
	return p.shape, p.scratch, err
}

func (p *arrayParser) parse() error {
	if err := p.parseBounds(); err != nil {
		return err
	}
	if string(p.text) == "{}" && !p.explicit {
		return nil
	}
	if len(p.text) == 0 || p.text[0] != '{' {
		return errForm
	}
	for {
		if err := p.parseItem(); err != nil { // down to one value
			return err
		}
		for len(p.text) > 0 && p.text[0] == '}' {
			p.text = p.text[1:]
			if err := p.close(); err != nil {
				return err
			}
			if p.depth == 0 {
				return p.end()
			}
		}
		if len(p.text) == 0 || p.text[0] != ',' {
			return errForm
		}
		p.text = p.text[1:]
	}
}

// parseBounds takes [lower:upper]...= off the front, if it is there.
func (p *arrayParser) parseBounds() error {
	if len(p.text) == 0 || p.text[0] != '[' {
		return nil
	}
	bounds, rest, ok := bytes.Cut(p.text, []byte("="))
	if !ok {
		return errForm
	}
	p.explicit, p.text = true, rest
	for len(bounds) > 0 {
		var lower, upper []byte
		lower, bounds, ok = bytes.Cut(bounds[1:], []byte(":"))
		if !ok || p.shape.count == maxDimensions {
			return errForm
		}
		upper, bounds, ok = bytes.Cut(bounds, []byte("]"))
		l, ok1 := parseInt(lower)
		u, ok2 := parseInt(upper)
		if !ok || !ok1 || !ok2 || l < math.MinInt32 || u > math.MaxInt32 || u < l || len(bounds) > 0 && bounds[0] != '[' {
			return errForm
		}
		d := &p.shape.dimensions[p.shape.count]
		d.lower, d.length = l, u-l+1
		p.closed[p.shape.count] = true
		p.shape.count++
	}
	return nil
}

// parseItem opens braces as they come and reads the value behind them, all values at one depth.
func (p *arrayParser) parseItem() error {
	for len(p.text) > 0 && p.text[0] == '{' {
		if p.depth == maxDimensions {
			return errForm
		}
		p.counts[p.depth] = 0
		p.depth++
		p.text = p.text[1:]
	}
	if p.shape.count == 0 {
		p.shape.count = p.depth
	}
	if p.depth != p.shape.count {
		return errForm
	}
	p.counts[p.depth-1]++
	if len(p.text) > 0 && p.text[0] == '"' {
		return p.parseQuoted()
	}
	end := bytes.IndexAny(p.text, `,}{"\`)
	if end <= 0 || p.text[end] != ',' && p.text[end] != '}' {
		return errForm
	}
	v := p.text[:end]
	p.text = p.text[end:]
	if string(v) == "NULL" {
		p.null()
		return nil
	}
	return p.value(v)
}

func (p *arrayParser) parseQuoted() error {
	p.text = p.text[1:]
	p.scratch = p.scratch[:0]
	for {
		i := bytes.IndexAny(p.text, `"\`)
		if i < 0 {
			return errForm
		}
		if p.text[i] == '"' {
			v := p.text[:i]
			if len(p.scratch) > 0 {
				p.scratch = append(p.scratch, v...)
				v = p.scratch
			}
			p.text = p.text[i+1:]
			return p.value(v)
		}
		if i+1 == len(p.text) {
			return errForm
		}
		p.scratch = append(append(p.scratch, p.text[:i]...), p.text[i+1])
		p.text = p.text[i+2:]
	}
}

// close ends the innermost braces: all braces of one depth hold equally many items.
func (p *arrayParser) close() error {
	p.depth--
	d := &p.shape.dimensions[p.depth]
	if !p.closed[p.depth] {
		p.closed[p.depth] = true
		d.lower, d.length = 1, p.counts[p.depth]
	}
	if d.length != p.counts[p.depth] {
		return errForm
	}
	if p.depth > 0 {
		p.counts[p.depth-1]++
	}
	return nil
}

func (p *arrayParser) end() error {
	if len(p.text) != 0 {
		return errForm
	}
	return nil
}
