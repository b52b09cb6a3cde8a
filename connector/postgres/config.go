package postgres

import "github.com/sluicehq/sluice/connector"

// Config is the block `type: postgres` of a source or a sink.
type Config struct {
	URL         string `yaml:"url" secret:"true" doc:"Connection string, URL or key=value form; libpq's variables, password file and TLS rules apply."`
	Connections int    `yaml:"connections" min:"2" max:"100" doc:"Connections held at most, beside the replication connection."`
	Slot        string `yaml:"slot" side:"source" doc:"Replication slot; by default sluice_ and the mirror's name."`
	Publication string `yaml:"publication" side:"source" doc:"Publication; by default sluice_ and the mirror's name."`
}

// NewConfig returns a Config with its defaults set.
func NewConfig() connector.Config { return &Config{Connections: 8} }

// Validate reports what is wrong with the settings as written, without a connection.
func (c *Config) Validate() []connector.Problem {
	var ps []connector.Problem
	if c.URL == "" {
		ps = append(ps, connector.Problem{Table: "url", What: "is missing", Fix: `url: "postgres://user@host/database"`})
	}
	return ps
}
