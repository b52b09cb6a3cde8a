package schema

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestTimesAreWrittenAsPostgreSQLPrintsThem(t *testing.T) {
	interval := func(months, days int32, us int64) []byte {
		v := binary.BigEndian.AppendUint64(nil, uint64(us))
		v = binary.BigEndian.AppendUint32(v, uint32(days))
		return binary.BigEndian.AppendUint32(v, uint32(months))
	}
	intervalText := func(v []byte) string {
		text, err := AppendInterval(nil, v)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	for _, c := range []struct{ got, want string }{
		{string(AppendDate(nil, 0)), "2000-01-01"},
		{string(AppendDate(nil, 59)), "2000-02-29"},
		{string(AppendDate(nil, -730_119)), "0001-01-01"},
		{string(AppendDate(nil, -730_120)), "0001-12-31 BC"},
		{string(AppendDate(nil, -2_451_545)), "4714-11-24 BC"},
		{string(AppendDate(nil, 2_145_031_948)), "5874897-12-31"},
		{string(AppendDate(nil, math.MinInt32)), "-infinity"},
		{string(AppendTime(nil, 86_400_000_000)), "24:00:00"},
		{string(AppendTime(nil, 10)), "00:00:00.00001"},
		{string(AppendTimestamp(nil, -1)), "1999-12-31 23:59:59.999999"},
		{string(AppendTimestamp(nil, math.MaxInt64)), "infinity"},
		{string(AppendTimestampTZ(nil, -211_813_488_000_000_000)), "4714-11-24 00:00:00+00 BC"},
		{string(AppendTimestampTZ(nil, 9_223_371_331_199_999_999)), "294276-12-31 23:59:59.999999+00"},
		{intervalText(interval(0, 0, 0)), "00:00:00"},
		{intervalText(interval(-13, 1, -1_500_000)), "-1 years -1 mons +1 day -00:00:01.5"},
		{intervalText(interval(14, -3, 1)), "1 year 2 mons -3 days +00:00:00.000001"},
		{intervalText(interval(0, 0, math.MinInt64)), "-2562047788:00:54.775808"},
		{intervalText(interval(math.MaxInt32, math.MaxInt32, math.MaxInt64)), "infinity"},
		{intervalText(interval(math.MinInt32, math.MinInt32, math.MinInt64)), "-infinity"},
	} {
		if c.got != c.want {
			t.Errorf("written %q, want %q", c.got, c.want)
		}
	}
}
