// Package crash kills, freezes and doubles the built command while many connections change its source, and compares both
// sides by value.
package crash

import (
	"flag"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

var (
	testServer *testdb.Postgres
	program    string // path of the built command
)

var (
	killsFlag       = flag.Int("kills", 50, "how often the process is killed while it mirrors into PostgreSQL")
	sqliteKillsFlag = flag.Int("sqlite-kills", 10, "likewise, into a SQLite file")
	seedFlag        = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of all random choices")
	durationFlag    = flag.Duration("duration", 0, "go on killing for at least so long")
	rateFlag        = flag.Int("rate", 300, "transactions a second of the writer")
)

// Commit timestamps tell which transactions a copy held, see compareSides.
func TestMain(m *testing.M) { process.Main(m, &program, &testServer, "track_commit_timestamp=on") }
