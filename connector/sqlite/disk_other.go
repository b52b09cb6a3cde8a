//go:build !linux

package sqlite

import "math"

// readDisk knows nothing of this system's disks, and so finds no fault with them.
func readDisk(string) (free int64, network string, err error) { return math.MaxInt64, "", nil }
