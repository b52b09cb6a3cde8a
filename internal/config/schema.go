package config

import (
	"encoding/json"
	"reflect"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Schema returns the JSON Schema (draft 2020-12) of config files, made of the same declarations as the checks.
func Schema(drivers []connector.Driver) ([]byte, error) {
	s := objectSchema(reflect.ValueOf(newFile()).Elem(), "", drivers)
	s.Version = jsonschema.Version
	s.Title = "Sluice config"
	return json.MarshalIndent(s, "", "  ")
}

// schemaOwner is a value with a form of its own.
type schemaOwner interface{ jsonSchema() *jsonschema.Schema }

// reference is the form in which any value may come from outside the file.
const reference = `\$\{(env|file):`

// objectSchema describes the settings of a struct that holds its defaults.
func objectSchema(v reflect.Value, side string, drivers []connector.Driver) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: jsonschema.NewProperties(), AdditionalProperties: jsonschema.FalseSchema}
	for _, f := range fieldsOf(v.Type()) {
		if !f.on(side) {
			continue
		}
		property := settingSchema(&f, v.Field(f.index), drivers)
		property.Description = f.doc
		if f.defaultOnly {
			property.Description += " Not available yet."
		}
		s.Properties.Set(f.key, property)
		if f.required {
			s.Required = append(s.Required, f.key)
		}
	}
	return s
}

func settingSchema(f *field, v reflect.Value, drivers []connector.Driver) *jsonschema.Schema {
	switch x := v.Interface().(type) {
	case Block:
		return blockSchema(f.side, drivers)
	case map[schema.Name]*PerTable:
		own := objectSchema(reflect.ValueOf(&PerTable{}).Elem(), "", drivers)
		return &jsonschema.Schema{Type: "object", AdditionalProperties: nullable(own)}
	case *Mirror:
		return nullable(objectSchema(reflect.ValueOf(x).Elem(), "", drivers))
	}
	if v.Kind() == reflect.Struct && !hasOwnForm(v) {
		return nullable(objectSchema(v, "", drivers))
	}
	if v.Kind() == reflect.Slice {
		item := reflect.New(v.Type().Elem()).Elem()
		s := &jsonschema.Schema{Type: "array", Items: scalarSchema(f, item)}
		if v.Len() > 0 {
			s.Default = texts(v)
		}
		return s
	}
	s := scalarSchema(f, v)
	if !v.IsZero() {
		s.Default = defaultOf(v)
	}
	return s
}

// nullable allows a key with nothing behind it, which stands for the defaults.
func nullable(s *jsonschema.Schema) *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Type: "null"}}}
}

func hasOwnForm(v reflect.Value) bool {
	_, ok := v.Interface().(schemaOwner)
	return ok
}

// blockSchema has one alternative for each connector; their type keys exclude each other.
func blockSchema(side string, drivers []connector.Driver) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	for _, dr := range drivers {
		if side == "source" && dr.Source == nil || side == "sink" && dr.Sink == nil {
			continue
		}
		one := objectSchema(reflect.ValueOf(dr.NewConfig()).Elem(), side, drivers)
		one.Properties.Set("type", &jsonschema.Schema{Const: dr.Name, Description: "The kind of system."})
		one.Required = append(one.Required, "type")
		s.OneOf = append(s.OneOf, one)
	}
	return s
}

// scalarSchema describes a single value. All but free text may also be a reference, whose text is checked later.
func scalarSchema(f *field, v reflect.Value) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	switch owner, ok := v.Interface().(schemaOwner); {
	case ok:
		s = owner.jsonSchema()
	case v.Type() == reflect.TypeFor[time.Duration]():
		s = Duration(0).jsonSchema()
	case len(f.enum) > 0:
		for _, value := range f.available() {
			s.Enum = append(s.Enum, value)
		}
	case v.Kind() == reflect.Bool:
		s.Type = "boolean"
	case v.Kind() == reflect.String:
		s.Type = "string"
	default:
		s.Type, s.Minimum, s.Maximum = "integer", json.Number(f.min), json.Number(f.max)
	}
	if s.Type == "string" {
		return s
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{s, {Type: "string", Pattern: reference}}}
}

func texts(list reflect.Value) []any {
	var values []any
	for i := range list.Len() {
		values = append(values, defaultOf(list.Index(i)))
	}
	return values
}

// defaultOf returns a value as it would stand in a file.
func defaultOf(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case time.Duration:
		return Duration(x).String()
	case interface{ String() string }:
		return x.String()
	}
	return v.Interface()
}
