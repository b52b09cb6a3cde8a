package sqlite

import "github.com/sluicehq/sluice/connector"

// Config is the block `type: sqlite` of a sink.
type Config struct {
	Path string `yaml:"path" doc:"The database file, relative to the folder of the config file. It is made if it does not exist."`
}

// NewConfig returns a Config with its defaults set.
func NewConfig() connector.Config { return &Config{} }

// Validate reports what is wrong with the settings as written; it does not look at the file.
func (c *Config) Validate() []connector.Problem {
	if c.Path == "" {
		return []connector.Problem{{Table: "path", What: "is missing", Fix: "path: shop.db"}}
	}
	return nil
}
