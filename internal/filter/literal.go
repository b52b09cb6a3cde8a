package filter

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluicehq/sluice/internal/nearest"
	"github.com/sluicehq/sluice/schema"
)

// literal is a constant in the form of the column's type that it is compared with.
type literal struct {
	text    string  // of text, an enum and bytes; of a number its plain digits
	integer int64   // of dates and times, and of a number that is whole
	whole   bool    // a number that is whole and small enough for integer
	float   float64 // of a number
}

// parseNumber reads digits with a point, a sign and an exponent, and the names of the values that are not finite.
func parseNumber(s string) (literal, error) {
	text, err := plainDigits(strings.ReplaceAll(s, "_", ""))
	if err != nil {
		return literal{}, err
	}
	l := literal{text: text}
	l.float, _ = strconv.ParseFloat(text, 64) // beyond all floats it is an infinity
	if negative, whole, fraction := splitDecimal(text); rankOf(text) == finite && fraction == "" {
		if negative {
			whole = "-" + whole
		}
		if whole == "" {
			whole = "0"
		}
		l.integer, err = strconv.ParseInt(whole, 10, 64)
		l.whole = err == nil
	}
	return l, nil
}

// maxExponent bounds the digits that an exponent stands for; no server's decimals are larger.
const maxExponent = 20_000

// plainDigits writes a number without an exponent.
func plainDigits(s string) (string, error) {
	bad := fmt.Errorf("%q is no number", s)
	if rankOf(s) != finite {
		return s, nil
	}
	mantissa, exponent, has := strings.Cut(strings.ToLower(s), "e")
	shift := 0
	if has {
		var err error
		if shift, err = strconv.Atoi(exponent); err != nil || shift > maxExponent || shift < -maxExponent {
			return "", bad
		}
	}
	unsigned, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(unsigned, ".")
	if whole+fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return "", bad
	}
	digits := whole + fraction
	point := len(whole) + shift
	if point < 0 {
		digits, point = strings.Repeat("0", -point)+digits, 0
	}
	if point > len(digits) {
		digits += strings.Repeat("0", point-len(digits))
	}
	text := digits[:point]
	if text == "" {
		text = "0"
	}
	if point < len(digits) {
		text += "." + digits[point:]
	}
	if negative {
		text = "-" + text
	}
	return text, nil
}

// parseText reads a constant in quotes as a value of a type.
func parseText(s string, t schema.Type) (literal, error) {
	switch classOf(t) {
	case integers, exacts, floats:
		return parseNumber(s)
	case texts:
		if t.Padded {
			s = strings.TrimRight(s, " ")
		}
		return literal{text: s}, nil
	case enums:
		for _, label := range t.Labels {
			if label == s {
				return literal{text: s}, nil
			}
		}
		return literal{}, fmt.Errorf("type %s has no label %q%s", t.Native, s, nearest.Hint(s, t.Labels))
	case binaries:
		digits, ok := strings.CutPrefix(s, `\x`)
		b, err := hex.DecodeString(digits)
		if !ok || err != nil {
			return literal{}, fmt.Errorf(`bytes are written in hexadecimal digits: "\\xdeadbeef"`)
		}
		return literal{text: string(b)}, nil
	case uuids:
		b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
		if err != nil || len(b) != 16 {
			return literal{}, fmt.Errorf("%q is no uuid", s)
		}
		return literal{text: string(b)}, nil
	case bools:
		return literal{}, fmt.Errorf("a bool is compared with true or false, without quotes")
	case dates, times, timestamps, timestampsTZ:
		return parseMoment(s, t.Kind)
	}
	return literal{}, fmt.Errorf("values of type %s are not compared; only == nil and != nil are possible", t.Native)
}

// year2000 is where dates and timestamps are counted from.
var year2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

const dayMicros = 86_400_000_000

// parseMoment reads a date or a time in ISO form. Fractions of a second end at microseconds, and a moment with a time zone
// must say which.
func parseMoment(s string, kind schema.Kind) (literal, error) {
	if kind != schema.Time {
		low, high := int64(math.MinInt64), int64(math.MaxInt64)
		if kind == schema.Date {
			low, high = math.MinInt32, math.MaxInt32
		}
		switch s {
		case "infinity":
			return literal{integer: high}, nil
		case "-infinity":
			return literal{integer: low}, nil
		}
	}
	form := map[schema.Kind]struct{ layouts, example string }{
		schema.Date:        {"2006-01-02", "2024-12-31"},
		schema.Time:        {"15:04:05|15:04", "23:59:59.5"},
		schema.Timestamp:   {"2006-01-02 15:04:05|2006-01-02T15:04:05|2006-01-02 15:04|2006-01-02", "2024-12-31 23:59:59"},
		schema.TimestampTZ: {"2006-01-02 15:04:05Z07:00|2006-01-02T15:04:05Z07:00|2006-01-02 15:04:05Z07", "2024-12-31 23:59:59+00:00"},
	}[kind]
	if kind == schema.Time && s == "24:00:00" {
		return literal{integer: dayMicros}, nil
	}
	for layout := range strings.SplitSeq(form.layouts, "|") {
		at, err := time.Parse(layout, s)
		if err != nil || at.Nanosecond()%1000 != 0 {
			continue
		}
		switch kind {
		case schema.Time:
			midnight := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC)
			return literal{integer: at.Sub(midnight).Microseconds()}, nil
		case schema.Date:
			return literal{integer: (at.Unix() - year2000.Unix()) / 86_400}, nil
		}
		return literal{integer: (at.Unix()-year2000.Unix())*1_000_000 + int64(at.Nanosecond())/1000}, nil
	}
	return literal{}, fmt.Errorf("%q is not in the form of %q, from year 0001 to 9999, to the microsecond", s, form.example)
}
