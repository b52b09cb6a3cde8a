// Command sluice mirrors databases.
package main

import (
	"context"
	"os"

	"github.com/sluicehq/sluice/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}
