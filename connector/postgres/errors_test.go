package postgres

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

func TestErrorsShowNoValueOfARow(t *testing.T) {
	for _, pg := range []*pgconn.PgError{
		{Code: "22P02", Message: `invalid input syntax for type integer: "sec"ret"`},
		{Code: "22003", Message: `value "secret" is out of range for type integer`},
		{Code: "23505", Message: `duplicate key value violates unique constraint "t_pkey"`, Detail: "Key (id)=(secret) already exists."},
	} {
		err := wrapError(pg, sinkSystem, "write rows", schema.Name{Schema: "public", Table: "t"})
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "ret\"") {
			t.Errorf("%s: %s", pg.Code, err)
		}
		if kind := connector.KindOf(err); kind != connector.Constraint {
			t.Errorf("%s is of kind %s", pg.Code, kind)
		}
	}
}

func TestNamesTakenAtTheSameMomentAreAConflict(t *testing.T) {
	pg := &pgconn.PgError{Code: "23505", SchemaName: "pg_catalog", TableName: "pg_type", ConstraintName: "pg_type_typname_nsp_index"}
	if kind := connector.KindOf(wrapError(pg, sinkSystem, "exchange the table", schema.Name{})); kind != connector.Conflict {
		t.Errorf("kind %s", kind)
	}
}

func TestReadOnlyServerIsNoFaultOfATable(t *testing.T) {
	err := wrapError(&pgconn.PgError{Code: "25006"}, sinkSystem, "write rows", schema.Name{Schema: "public", Table: "t"})
	if kind := connector.KindOf(err); kind != connector.Unavailable {
		t.Errorf("kind %s, at which the engine pauses the table", kind)
	}
}

func TestHostThatDoesNotAnswerIsUnavailable(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := &Config{URL: "postgres://u@" + silent.Addr().String() + "/d?sslmode=disable&connect_timeout=1", Connections: 2}
	_, pooled := OpenSource(t.Context(), c, connector.Env{Mirror: "m"})
	_, direct := connectReplication(t.Context(), c, "m")
	for name, err := range map[string]error{"pool": pooled, "replication": direct} {
		if connector.KindOf(err) != connector.Unavailable || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: kind %s: %v", name, connector.KindOf(err), err)
		}
	}
}
