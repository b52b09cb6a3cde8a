package postgres

import (
	"context"
	"fmt"
	"strconv"

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
	read, err := s.readTypes(ctx, unknown)
	if isState(err, "42601") && len(unknown) > 1 { // another system's type that is no type expression here
		for _, text := range unknown {
			one, err := s.resolveTypes(ctx, []string{text})
			if err != nil {
				return nil, err
			}
			for k, v := range one {
				found[k] = v
			}
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

func (s *Sink) readTypes(ctx context.Context, texts []string) (map[string]sinkType, error) {
	rows, err := s.pool.Query(ctx, `
		SELECT w.name, t.oid, t.typtype::text, coalesce(p.proname::text, ''), t.typdelim::text,
		       coalesce(e.oid, 0), coalesce(e.typtype::text, ''), coalesce(ep.proname::text, ''), coalesce(e.typdelim::text, ',')
		FROM pg_catalog.unnest($1::pg_catalog.text[]) w(name)
		JOIN pg_catalog.pg_type t ON t.oid = pg_catalog.to_regtype(w.name)
		LEFT JOIN pg_catalog.pg_proc p ON p.oid = t.typreceive
		LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
		LEFT JOIN pg_catalog.pg_proc ep ON ep.oid = e.typreceive`, texts)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string]sinkType{}
	for rows.Next() {
		var name, class, delimiter, elemClass, elemDelimiter string
		var t, e sinkType
		if err := rows.Scan(&name, &t.oid, &class, &t.receive, &delimiter, &e.oid, &elemClass, &e.receive, &elemDelimiter); err != nil {
			return nil, err
		}
		t.class, t.delimiter = class[0], delimiter[0]
		if e.oid != 0 {
			e.class, e.delimiter = elemClass[0], elemDelimiter[0]
			t.elem = &e
		}
		found[name] = t
	}
	return found, rows.Err()
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

func formatOID(oid uint32) string { return strconv.FormatUint(uint64(oid), 10) }
