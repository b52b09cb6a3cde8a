package testdb

import "testing"

var server *Postgres

func TestMain(m *testing.M) { Main(m, &server) }

func TestServerSurvivesKill(t *testing.T) {
	url := server.Database(t)
	Exec(t, url, "CREATE TABLE a (x int); INSERT INTO a VALUES (1), (NULL)")
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if got := QueryText(t, url, "SELECT x FROM a"); got != "1\n∅" {
		t.Errorf("after a crash: %q", got)
	}
}
