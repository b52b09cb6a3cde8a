package postgres

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow/array"
)

// Signs and the limit of the scale in numeric_send's form (numeric.c).
const (
	numericPositive    = 0x0000
	numericNegative    = 0x4000
	numericNaN         = 0xC000
	numericInfinity    = 0xD000
	numericNegInfinity = 0xF000
	numericScaleMax    = 0x3FFF
	numericBase        = 10_000 // a digit holds four decimal ones
)

// decodeNumeric reads numeric_send and writes the text that numeric_out gives.
func decodeNumeric(b *array.BinaryBuilder) columnDecoder {
	var scratch []byte
	return func(v []byte) error {
		var ok bool
		if scratch, ok = appendNumeric(scratch[:0], v); !ok {
			return errForm
		}
		b.Append(scratch)
		return nil
	}
}

// appendNumeric follows get_str_from_var in numeric.c.
func appendNumeric(out, v []byte) ([]byte, bool) {
	if len(v) < 8 {
		return out, false
	}
	count, weight := int(binary.BigEndian.Uint16(v)), int(int16(binary.BigEndian.Uint16(v[2:])))
	sign, scale := binary.BigEndian.Uint16(v[4:]), int(binary.BigEndian.Uint16(v[6:]))
	digits := v[8:]
	if len(digits) != 2*count || scale > numericScaleMax {
		return out, false
	}
	switch sign {
	case numericNaN:
		return append(out, "NaN"...), true
	case numericInfinity:
		return append(out, "Infinity"...), true
	case numericNegInfinity:
		return append(out, "-Infinity"...), true
	case numericNegative:
		out = append(out, '-')
	case numericPositive:
	default:
		return out, false
	}
	ok := true
	digit := func(i int) uint16 { // the digits beyond both ends are zeros and not sent
		if i < 0 || i >= count {
			return 0
		}
		d := binary.BigEndian.Uint16(digits[2*i:])
		ok = ok && d < numericBase
		return d
	}
	if weight < 0 {
		out = append(out, '0')
	} else {
		out = appendFirstDigit(out, digit(0))
		for i := 1; i <= weight; i++ {
			out = appendDigit(out, digit(i))
		}
	}
	if scale > 0 {
		out = append(out, '.')
		end := len(out) + scale
		for i := weight + 1; len(out) < end; i++ {
			out = appendDigit(out, digit(i))
		}
		out = out[:end]
	}
	return out, ok
}

// appendFirstDigit leaves out leading zeros.
func appendFirstDigit(out []byte, d uint16) []byte {
	switch {
	case d >= 1000:
		return appendDigit(out, d)
	case d >= 100:
		return append(out, byte('0'+d/100), byte('0'+d/10%10), byte('0'+d%10))
	case d >= 10:
		return append(out, byte('0'+d/10), byte('0'+d%10))
	}
	return append(out, byte('0'+d))
}

func appendDigit(out []byte, d uint16) []byte {
	return append(out, byte('0'+d/1000%10), byte('0'+d/100%10), byte('0'+d/10%10), byte('0'+d%10))
}

func decodeNumericText(b *array.BinaryBuilder) columnDecoder {
	return func(v []byte) error {
		if !isNumeric(v) {
			return errForm
		}
		b.Append(v)
		return nil
	}
}

// isNumeric reports whether v is what numeric_out writes: plain digits, never an exponent, or a special value.
func isNumeric(v []byte) bool {
	switch string(v) {
	case "NaN", "Infinity", "-Infinity":
		return true
	}
	if len(v) > 0 && v[0] == '-' {
		v = v[1:]
	}
	_, rest, ok := skipDigits(v)
	if !ok || len(rest) == 0 {
		return ok
	}
	_, rest, ok = skipDigits(rest[1:])
	return ok && len(rest) == 0 && v[len(v)-1] != '.'
}

// skipDigits splits v behind its leading digits; ok: there is one, and a point or nothing follows.
func skipDigits(v []byte) (digits, rest []byte, ok bool) {
	i := 0
	for i < len(v) && v[i] >= '0' && v[i] <= '9' {
		i++
	}
	return v[:i], v[i:], i > 0 && (i == len(v) || v[i] == '.')
}
