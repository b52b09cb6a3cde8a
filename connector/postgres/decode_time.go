package postgres

import (
	"bytes"
	"encoding/binary"
	"math"
)

// Units of the server's times (src/include/datatype/timestamp.h).
const (
	microsPerSecond = 1_000_000
	microsPerMinute = 60 * microsPerSecond
	microsPerHour   = 60 * microsPerMinute
	microsPerDay    = 24 * microsPerHour
)

// The texts that stand for the largest and the smallest value.
var (
	infinityText      = []byte("infinity")
	minusInfinityText = []byte("-infinity")
	beforeChrist      = []byte(" BC")
)

// parseDate reads DateStyle=ISO: days since 2000-01-01.
func parseDate(v []byte) (int32, bool) {
	switch {
	case bytes.Equal(v, infinityText):
		return math.MaxInt32, true
	case bytes.Equal(v, minusInfinityText):
		return math.MinInt32, true
	}
	v, bc := bytes.CutSuffix(v, beforeChrist)
	days, rest, ok := cutDate(v, bc)
	// The server's own limits lie inside; the ends stand for the infinities.
	if !ok || len(rest) != 0 || days <= math.MinInt32 || days >= math.MaxInt32 {
		return 0, false
	}
	return int32(days), true
}

// parseTimestamp reads DateStyle=ISO, with a time zone offset or without: microseconds since 2000-01-01, in UTC.
func parseTimestamp(v []byte) (int64, bool) {
	switch {
	case bytes.Equal(v, infinityText):
		return math.MaxInt64, true
	case bytes.Equal(v, minusInfinityText):
		return math.MinInt64, true
	}
	v, bc := bytes.CutSuffix(v, beforeChrist)
	days, rest, ok := cutDate(v, bc)
	if !ok || len(rest) == 0 || rest[0] != ' ' {
		return 0, false
	}
	micros, rest, ok := cutTime(rest[1:])
	if !ok {
		return 0, false
	}
	offset, ok := parseOffset(rest)
	// The server's limits are 4714 BC and 294276; what lies far beyond would overflow.
	const limit = math.MaxInt64/microsPerDay - 2
	if !ok || days < -limit || days > limit {
		return 0, false
	}
	return days*microsPerDay + micros - offset, true
}

// parseTime reads a time of day: microseconds since midnight, 24:00:00 included.
func parseTime(v []byte) (int64, bool) {
	micros, rest, ok := cutTime(v)
	return micros, ok && len(rest) == 0
}

// cutDate takes year-month-day off the front and returns it in days since 2000-01-01, by the Gregorian calendar for all
// years, as the server counts (date2j).
func cutDate(v []byte, bc bool) (days int64, rest []byte, ok bool) {
	year, v, ok := cutDigits(v, 4, 7)
	if !ok || len(v) < 6 || v[0] != '-' || v[3] != '-' {
		return 0, nil, false
	}
	month, _, ok1 := cutDigits(v[1:3], 2, 2)
	day, _, ok2 := cutDigits(v[4:6], 2, 2)
	if bc {
		year = 1 - year
	}
	if !ok1 || !ok2 || month < 1 || month > 12 || day < 1 || day > daysIn(month, year) {
		return 0, nil, false
	}
	return daysFromCivil(year, month, day), v[6:], true
}

func daysIn(month, year int64) int64 {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// daysFromCivil counts from 2000-01-01. Its year begins in March, so that a leap day is the last day of one.
func daysFromCivil(year, month, day int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := year / 400
	if year < 0 {
		era = (year - 399) / 400
	}
	yearOfEra := year - era*400
	dayOfYear := (153*(month-3)+2)/5 + day - 1
	dayOfEra := yearOfEra*365 + yearOfEra/4 - yearOfEra/100 + dayOfYear
	const daysPerEra, daysTo2000 = 146_097, 730_425 // from March 1st of the year 0
	return era*daysPerEra + dayOfEra - daysTo2000
}

// cutTime takes HH:MM:SS and an optional fraction off the front.
func cutTime(v []byte) (micros int64, rest []byte, ok bool) {
	if len(v) < 8 {
		return 0, nil, false
	}
	hour, _, ok := cutDigits(v[:2], 2, 2)
	if !ok || hour > 24 {
		return 0, nil, false
	}
	micros, rest, ok = cutMinutes(v[2:])
	micros += hour * microsPerHour
	return micros, rest, ok && micros <= microsPerDay
}

// cutMinutes takes :MM:SS and an optional fraction of up to six digits off the front.
func cutMinutes(v []byte) (micros int64, rest []byte, ok bool) {
	if len(v) < 6 || v[0] != ':' || v[3] != ':' {
		return 0, nil, false
	}
	minute, _, ok1 := cutDigits(v[1:3], 2, 2)
	second, _, ok2 := cutDigits(v[4:6], 2, 2)
	if !ok1 || !ok2 || minute > 59 || second > 60 {
		return 0, nil, false
	}
	micros, v = minute*microsPerMinute+second*microsPerSecond, v[6:]
	if len(v) == 0 || v[0] != '.' {
		return micros, v, true
	}
	fraction, rest, ok := cutDigits(v[1:], 1, 6)
	for n := len(v) - 1 - len(rest); n < 6; n++ {
		fraction *= 10
	}
	return micros + fraction, rest, ok
}

// parseOffset reads +HH[:MM[:SS]], or nothing.
func parseOffset(v []byte) (int64, bool) {
	if len(v) == 0 {
		return 0, true
	}
	if len(v)%3 != 0 || len(v) > 9 || v[0] != '+' && v[0] != '-' {
		return 0, false
	}
	var micros int64
	unit := int64(microsPerHour)
	for i := 0; i < len(v); i += 3 {
		n, _, ok := cutDigits(v[i+1:i+3], 2, 2)
		if !ok || i > 0 && v[i] != ':' {
			return 0, false
		}
		micros += n * unit
		unit /= 60
	}
	if v[0] == '-' {
		micros = -micros
	}
	return micros, true
}

// cutDigits takes a run of at least low and at most high digits off the front.
func cutDigits(v []byte, low, high int) (n int64, rest []byte, ok bool) {
	i := 0
	for i < len(v) && i < high && v[i] >= '0' && v[i] <= '9' {
		n = n*10 + int64(v[i]-'0')
		i++
	}
	return n, v[i:], i >= low
}

// parseInterval reads IntervalStyle=postgres (EncodeInterval in datetime.c), such as "-1 years +2 mons -3 days
// +04:05:06.7", into the form of interval_send. Version 17 has infinite intervals: all three parts at their ends.
func parseInterval(v []byte) (out [16]byte, ok bool) {
	switch {
	case bytes.Equal(v, infinityText):
		return laterThanAll, true
	case bytes.Equal(v, minusInfinityText):
		return earlierThanAll, true
	case len(v) == 0:
		return out, false
	}
	var micros, days, months int64
	for len(v) > 0 {
		word, rest, _ := bytes.Cut(v, []byte(" "))
		if bytes.IndexByte(word, ':') >= 0 {
			if micros, ok = parseSignedTime(word); !ok || len(rest) != 0 {
				return out, false
			}
			break
		}
		n, ok := parseInt(bytes.TrimPrefix(word, []byte("+")))
		if !ok || n < math.MinInt32 || n > math.MaxInt32 {
			return out, false
		}
		word, v, _ = bytes.Cut(rest, []byte(" "))
		switch string(bytes.TrimSuffix(word, []byte("s"))) {
		case "year":
			months += 12 * n
		case "mon":
			months += n
		case "day":
			days += n
		default:
			return out, false
		}
	}
	if days != int64(int32(days)) || months != int64(int32(months)) {
		return out, false
	}
	return intervalBytes(micros, int32(days), int32(months)), true
}

func intervalBytes(micros int64, days, months int32) (out [16]byte) {
	binary.BigEndian.PutUint64(out[:], uint64(micros))
	binary.BigEndian.PutUint32(out[8:], uint32(days))
	binary.BigEndian.PutUint32(out[12:], uint32(months))
	return out
}

// parseSignedTime reads the time of an interval; its hours have two digits or more.
func parseSignedTime(v []byte) (int64, bool) {
	negative := v[0] == '-'
	if negative || v[0] == '+' {
		v = v[1:]
	}
	hours, rest, ok := cutDigits(v, 2, 10)
	if !ok {
		return 0, false
	}
	micros, rest, ok := cutMinutes(rest)
	if !ok || len(rest) != 0 || hours > math.MaxInt64/microsPerHour {
		return 0, false
	}
	// Counted downward, since the smallest value has no positive counterpart.
	total := -hours*microsPerHour - micros
	if total > 0 || !negative && total == math.MinInt64 {
		return 0, false
	}
	if negative {
		return total, true
	}
	return -total, true
}
