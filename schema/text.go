package schema

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strconv"
)

// The Append functions write the text of values that are stored as numbers, byte for byte as PostgreSQL prints them with
// DateStyle ISO, IntervalStyle postgres and TimeZone UTC (src/backend/utils/adt/datetime.c, EncodeDateTime and
// EncodeInterval).

const (
	microsPerSecond = 1_000_000
	microsPerMinute = 60 * microsPerSecond
	microsPerHour   = 60 * microsPerMinute
	microsPerDay    = 24 * microsPerHour
)

// AppendDate writes a [Date].
func AppendDate(dst []byte, days int32) []byte {
	switch days {
	case math.MaxInt32:
		return append(dst, "infinity"...)
	case math.MinInt32:
		return append(dst, "-infinity"...)
	}
	dst, era := appendDay(dst, int64(days))
	return append(dst, era...)
}

// AppendTime writes a [Time], microseconds since midnight.
func AppendTime(dst []byte, us int64) []byte {
	dst = appendPadded(dst, us/microsPerHour)
	dst = appendPadded(append(dst, ':'), us%microsPerHour/microsPerMinute)
	us %= microsPerMinute
	dst = appendPadded(append(dst, ':'), us/microsPerSecond)
	us %= microsPerSecond
	if us == 0 {
		return dst
	}
	dst = append(dst, '.')
	for unit := int64(microsPerSecond / 10); us > 0; unit /= 10 {
		dst = append(dst, '0'+byte(us/unit))
		us %= unit
	}
	return dst
}

// AppendTimestamp writes a [Timestamp].
func AppendTimestamp(dst []byte, us int64) []byte { return appendTimestamp(dst, us, "") }

// AppendTimestampTZ writes a [TimestampTZ], in UTC.
func AppendTimestampTZ(dst []byte, us int64) []byte { return appendTimestamp(dst, us, "+00") }

func appendTimestamp(dst []byte, us int64, zone string) []byte {
	switch us {
	case math.MaxInt64:
		return append(dst, "infinity"...)
	case math.MinInt64:
		return append(dst, "-infinity"...)
	}
	day, clock := us/microsPerDay, us%microsPerDay
	if clock < 0 {
		day, clock = day-1, clock+microsPerDay
	}
	dst, era := appendDay(dst, day)
	dst = AppendTime(append(dst, ' '), clock)
	return append(append(dst, zone...), era...)
}

// appendDay writes a day counted from 2000-01-01 of the proleptic Gregorian calendar, and returns what marks a year before
// 1, to be put at the end. Days are taken apart in spans of 400 years that begin on March 1, so that a leap day is the last
// of its year.
func appendDay(dst []byte, day int64) ([]byte, string) {
	const (
		daysPerSpan = 146_097
		to2000      = 730_425 // days from 0000-03-01
	)
	day += to2000
	span := day / daysPerSpan
	if day < 0 {
		span = (day - daysPerSpan + 1) / daysPerSpan
	}
	inSpan := day - span*daysPerSpan
	year := (inSpan - inSpan/1460 + inSpan/36_524 - inSpan/146_096) / 365
	inYear := inSpan - (365*year + year/4 - year/100)
	month := (5*inYear + 2) / 153 // 0 is March
	dayOfMonth := inYear - (153*month+2)/5 + 1
	year += span * 400
	if month += 3; month > 12 {
		month, year = month-12, year+1
	}
	era := ""
	if year <= 0 {
		year, era = 1-year, " BC"
	}
	for n := int64(1000); n > year && n > 1; n /= 10 {
		dst = append(dst, '0')
	}
	dst = strconv.AppendInt(dst, year, 10)
	dst = appendPadded(append(dst, '-'), month)
	return appendPadded(append(dst, '-'), dayOfMonth), era
}

// appendPadded writes a number with two digits at least.
func appendPadded(dst []byte, v int64) []byte {
	if v < 10 {
		dst = append(dst, '0')
	}
	return strconv.AppendInt(dst, v, 10)
}

// AppendInterval writes an [Interval] in its storage of 16 bytes.
func AppendInterval(dst, v []byte) ([]byte, error) {
	if len(v) != 16 {
		return dst, errors.New("an interval is not 16 bytes long")
	}
	us := int64(binary.BigEndian.Uint64(v))
	days, months := int32(binary.BigEndian.Uint32(v[8:])), int32(binary.BigEndian.Uint32(v[12:]))
	switch {
	case us == math.MaxInt64 && days == math.MaxInt32 && months == math.MaxInt32:
		return append(dst, "infinity"...), nil
	case us == math.MinInt64 && days == math.MinInt32 && months == math.MinInt32:
		return append(dst, "-infinity"...), nil
	}
	start, negative := len(dst), false
	for _, part := range []struct {
		n    int32
		unit string
	}{{months / 12, " year"}, {months % 12, " mon"}, {days, " day"}} {
		if part.n == 0 {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ' ')
		}
		if negative && part.n > 0 { // a sign only where the part before has another one
			dst = append(dst, '+')
		}
		dst = append(strconv.AppendInt(dst, int64(part.n), 10), part.unit...)
		if part.n != 1 {
			dst = append(dst, 's')
		}
		negative = part.n < 0
	}
	if us == 0 && len(dst) > start {
		return dst, nil
	}
	if len(dst) > start {
		dst = append(dst, ' ')
	}
	switch {
	case us == math.MinInt64: // has no positive twin
		return append(dst, "-2562047788:00:54.775808"...), nil
	case us < 0:
		dst, us = append(dst, '-'), -us
	case negative:
		dst = append(dst, '+')
	}
	return AppendTime(dst, us), nil
}

// AppendUUID writes a [UUID] in its storage of 16 bytes.
func AppendUUID(dst, v []byte) ([]byte, error) {
	if len(v) != 16 {
		return dst, errors.New("a uuid is not 16 bytes long")
	}
	for i := range v {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, v[i:i+1])
	}
	return dst, nil
}
