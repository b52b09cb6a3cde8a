package config

import (
	"reflect"
	"slices"
	"strings"
)

// field is the declaration of one setting.
type field struct {
	index            int
	key, doc         string
	required, secret bool
	min, max         string
	enum             []string
	later            []string // values not available yet
	defaultOnly      bool     // no other value is available yet
	side             string
}

// fieldsOf reads the declarations of a struct. A field without a key is no setting.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		key := tag.Get("yaml")
		if key == "" || key == "-" {
			continue
		}
		f := field{
			index: i, key: key, doc: tag.Get("doc"), min: tag.Get("min"), max: tag.Get("max"), side: tag.Get("side"),
			required: tag.Get("required") == "true", secret: tag.Get("secret") == "true",
		}
		if enum := tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, "|")
		}
		switch later := tag.Get("later"); later {
		case "":
		case "*":
			f.defaultOnly = true
		default:
			f.later = strings.Split(later, "|")
		}
		fields = append(fields, f)
	}
	return fields
}

// available returns the values that may be set now.
func (f *field) available() []string {
	return slices.DeleteFunc(slices.Clone(f.enum), func(v string) bool { return slices.Contains(f.later, v) })
}

func keysOf(fields []field, side string) []string {
	var keys []string
	for i := range fields {
		if fields[i].on(side) {
			keys = append(keys, fields[i].key)
		}
	}
	return keys
}

// on reports whether the setting belongs to this end; outside a connector's block all do.
func (f *field) on(side string) bool { return f.side == "" || side == "" || f.side == side }
