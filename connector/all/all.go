// Package all lists the connectors that the command has. Whoever embeds the library and wants fewer makes a list of his
// own.
package all

import (
	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/connector/postgres"
	"github.com/sluicehq/sluice/connector/sqlite"
)

// Drivers returns the built-in connectors.
func Drivers() []connector.Driver {
	return []connector.Driver{
		postgres.Driver(),
		sqlite.Driver(),
	}
}
