package postgres

import (
	"regexp"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
)

// Config is the block `type: postgres` of a source or a sink.
type Config struct {
	URL         string `yaml:"url" secret:"true" doc:"Connection string, URL or key=value form; libpq's variables, password file and TLS rules apply."`
	Connections int    `yaml:"connections" min:"2" max:"100" doc:"Connections held at most, beside the replication connection."`
	Slot        string `yaml:"slot" side:"source" doc:"Replication slot; by default sluice_ and the mirror's name. Where a publication is given it ends with a hash of the mirror's id."`
	Publication string `yaml:"publication" side:"source" doc:"Publication; by default sluice_ and the mirror's name. One that exists and that no mirror has made is used as it is."`
}

// What is said of a URL that cannot be parsed. The parser's own error quotes it, with the password in some spellings.
const (
	unreadableURL = "cannot be read as a connection string, or names a file that cannot be read"
	readableURL   = `write postgres://user@host:5432/database?option=value, with %-codes for special characters in a password`
)

// NewConfig returns a Config with its defaults set.
func NewConfig() connector.Config { return &Config{Connections: 8} }

// slotForm is what a slot may be called (server: ReplicationSlotValidateName, NAMEDATALEN-1 characters).
var slotForm = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// Validate reports what is wrong with the settings as written, without a connection. It shows nothing of the URL.
func (c *Config) Validate() []connector.Problem {
	var ps []connector.Problem
	if c.URL == "" {
		ps = append(ps, connector.Problem{Table: "url", What: "is missing", Fix: `url: "postgres://user@host/database"`})
	} else if _, err := pgconn.ParseConfig(c.URL); err != nil {
		ps = append(ps, connector.Problem{Table: "url", What: unreadableURL, Fix: readableURL})
	}
	if c.Slot != "" && !slotForm.MatchString(c.Slot) {
		ps = append(ps, connector.Problem{Table: "slot", What: "is no name for a slot", Fix: "use small letters, digits and _, 63 at most"})
	}
	if len(c.Publication) > maxNameLength {
		ps = append(ps, connector.Problem{Table: "publication", What: "is longer than the server's limit", Fix: "use 63 bytes at most"})
	}
	return ps
}
