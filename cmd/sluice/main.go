// Command sluice mirrors databases.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"github.com/sluicehq/sluice/internal/cli"
)

// softMemory is the size in bytes beyond which the runtime collects garbage more eagerly, rather than let the heap double.
// With the program's own pages it stays below 150 MiB, which is to hold whatever the number of rows. What is in use may go
// beyond it (large rows, many tables). GOMEMLIMIT sets another one.
const softMemory = 120 << 20

func main() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemory)
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
