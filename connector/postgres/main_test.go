package postgres

import (
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
)

var testServer *testdb.Postgres

func TestMain(m *testing.M) { testdb.Main(m, &testServer) }

func TestServerIdentityIsRead(t *testing.T) {
	url := testServer.Database(t)
	src, err := OpenSource(t.Context(), &Config{URL: url, Connections: 2}, connector.Env{Mirror: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if s := src.server; s.system == 0 || s.timeline != 1 || s.version < minVersion {
		t.Errorf("server = %+v", s)
	}
}
