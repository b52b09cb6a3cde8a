package cases

import (
	"bytes"
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/internal/testdb"
)

// copyOut returns the rows of a query in the text form of COPY: tabs between the columns, \N for NULL.
func copyOut(t *testing.T, url, query string) string {
	t.Helper()
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, testdb.FixedOutput).ReadAll(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := conn.CopyTo(ctx, &b, "COPY ("+query+") TO STDOUT"); err != nil {
		t.Fatalf("%v, in %s", err, query)
	}
	return b.String()
}
