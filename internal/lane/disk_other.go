//go:build !linux && !darwin && !freebsd

package lane

import "math"

// diskSpace knows nothing here: the spool's own limits alone count.
func diskSpace(string) (free, total int64, err error) { return math.MaxInt64, math.MaxInt64, nil }
