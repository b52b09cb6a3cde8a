package postgres

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/sluicehq/sluice/schema"
)

// sinkType is what must be known of a type of the sink's server to write its values.
type sinkType struct {
	oid       uint32
	class     byte      // pg_type.typtype: b base, c composite, d domain, e enum, r range, m multirange
	receive   string    // name of the function that reads its binary form, "" if it has none
	delimiter byte      // between elements of an array of it
	elem      *sinkType // of an array
}

// resolveTypes returns the types that texts name, as far as they exist.
func (s *Sink) resolveTypes(ctx context.Context, texts []string) (map[string]sinkType, error) {
	found := map[string]sinkType{}
	var unknown []string
	s.mu.Lock()
	for _, text := range texts {
		if t, ok := s.types[text]; ok {
			found[text] = t
		} else {
			unknown = append(unknown, text)
		}
	}
	s.mu.Unlock()
	if len(unknown) == 0 {
		return found, nil
	}
	read, err := readTypes(ctx, s.query, unknown)
	if isState(err, "42601") && len(unknown) > 1 { // another system's type that is no type expression here
		for _, text := range unknown {
			one, err := s.resolveTypes(ctx, []string{text})
			if err != nil {
				return nil, err
			}
			maps.Copy(found, one)
		}
		return found, nil
	}
	if err != nil && !isState(err, "42601") {
		return nil, wrapError(err, sinkSystem, "look up types", schema.Name{})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range read {
		found[k], s.types[k] = v, v
	}
	return found, nil
}

// queryRows runs one statement and returns its rows' text, NULL as "".
type queryRows func(ctx context.Context, sql string) ([][]string, error)

// query runs one statement on a connection of its own.
func (s *Sink) query(ctx context.Context, sql string) ([][]string, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	return readRows(ctx, conn.Conn().PgConn(), sql)
}

func readTypes(ctx context.Context, query queryRows, texts []string) (map[string]sinkType, error) {
	literals := make([]string, len(texts))
	for i, text := range texts {
		literals[i] = quoteLiteral(text)
	}
	rows, err := query(ctx, `
		SELECT w.name, t.oid, t.typtype, `+receiverOf("p")+`, t.typdelim, e.oid, e.typtype, `+receiverOf("ep")+`, e.typdelim
		FROM unnest(ARRAY[`+strings.Join(literals, ", ")+`]::text[]) w(name)
		JOIN pg_catalog.pg_type t ON t.oid = pg_catalog.to_regtype(w.name)
		LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.typreceive
		LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
		LEFT JOIN pg_catalog.pg_proc ep ON ep.oid = e.typreceive`)
	if err != nil {
		return nil, err
	}
	found := map[string]sinkType{}
	for _, r := range rows {
		t, err := parseSinkType(r[1:5])
		if err != nil {
			return nil, err
		}
		if r[5] != "" {
			e, err := parseSinkType(r[5:9])
			if err != nil {
				return nil, err
			}
			t.elem = &e
		}
		found[r[0]] = t
	}
	return found, nil
}

// finiteIntervals stands for interval_recv before 17, which takes the two infinite intervals for large ones.
const finiteIntervals = "interval_recv before 17"

// receiverOf is the name of a receive function, a row of pg_proc.
func receiverOf(alias string) string {
	return "CASE WHEN " + alias + ".proname = 'interval_recv' AND pg_catalog.current_setting('server_version_num')::int < 170000 " +
		"THEN " + quoteLiteral(finiteIntervals) + " ELSE " + alias + ".proname END"
}

// parseSinkType reads oid, typtype, the receive function and typdelim.
func parseSinkType(r []string) (sinkType, error) {
	oid, err := strconv.ParseUint(r[0], 10, 32)
	if err != nil || r[1] == "" || r[3] == "" {
		return sinkType{}, fmt.Errorf("type with OID %q: its row in pg_type is not complete", r[0])
	}
	return sinkType{oid: uint32(oid), class: r[1][0], receive: r[2], delimiter: r[3][0]}, nil
}

// accepts reports whether the server's type s holds every value of the logical type t. Text is the server's own output
// form of any type without a logical twin, so its native type takes it.
func accepts(t schema.Type, s sinkType) bool {
	switch {
	case t.Kind == schema.Array:
		return s.elem != nil && accepts(*t.Elem, *s.elem)
	case t.Kind == schema.Text && t.Fields != nil:
		return s.class == 'c'
	case t.Kind == schema.Text:
		return s.class != 'p'
	}
	return binaryForms[s.receive][t.Kind] != nil
}

// userType returns the innermost type of t that is an enum or a composite, with which Create can make t; nil if none is.
func userType(t *schema.Type) *schema.Type {
	switch {
	case t.Kind == schema.Array:
		return userType(t.Elem)
	case t.Kind == schema.Enum && len(t.Labels) > 0, t.Kind == schema.Text && t.Fields != nil:
		if n, err := schema.ParseName(t.Native); err == nil && n.Schema != "" {
			return t
		}
	}
	return nil
}

// defaultType is the declaration that holds every value of a logical type, for columns whose native type this server
// does not have.
func defaultType(t schema.Type) string {
	switch t.Kind {
	case schema.Bool:
		return "boolean"
	case schema.Int8, schema.Int16:
		return "smallint"
	case schema.Int32:
		return "integer"
	case schema.Int64:
		return "bigint"
	case schema.Uint64:
		return "numeric(20,0)"
	case schema.Float32:
		return "real"
	case schema.Float64:
		return "double precision"
	case schema.Decimal:
		return fmt.Sprintf("numeric(%d,%d)", t.Precision, t.Scale)
	case schema.Numeric:
		return "numeric"
	case schema.Bytes:
		return "bytea"
	case schema.Date:
		return "date"
	case schema.Time:
		return "time without time zone"
	case schema.Timestamp:
		return "timestamp without time zone"
	case schema.TimestampTZ:
		return "timestamp with time zone"
	case schema.Interval:
		return "interval"
	case schema.UUID:
		return "uuid"
	case schema.JSON, schema.Document:
		return "json"
	case schema.Array:
		return defaultType(*t.Elem) + "[]"
	}
	return "text"
}

// typeText returns how a type that Create makes is written, e.g. "shop"."mood"[].
func typeText(t *schema.Type) string {
	if t.Kind == schema.Array {
		return typeText(t.Elem) + "[]"
	}
	n, err := schema.ParseName(t.Native)
	if err != nil {
		return "text" // userType asked first
	}
	return quoteName(n)
}
