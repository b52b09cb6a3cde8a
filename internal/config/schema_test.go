package config

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := Schema(testDrivers())
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// asJSON turns YAML into what a JSON Schema is applied to.
func asJSON(t *testing.T, text []byte) any {
	t.Helper()
	b, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestSchemaAcceptsWhatTheLoaderAccepts(t *testing.T) {
	s := compile(t)
	files, err := filepath.Glob(filepath.Join("testdata", "valid", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(asJSON(t, text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestSchemaRefusesWhatTheLoaderRefuses(t *testing.T) {
	s := compile(t)
	const head = "version: 1\nname: shop\nsource: {type: plain, url: a}\nsink: {type: plain, url: b}\n"
	for name, text := range map[string]string{
		"unknown key":       head + "mirror: {tabels: {}}",
		"unknown in block":  "version: 1\nname: shop\nsource: {type: plain, url: a, x: 1}\nsink: {type: plain, url: b}\nmirror: {}",
		"source's key":      "version: 1\nname: shop\nsource: {type: plain, url: a}\nsink: {type: plain, url: b, slot: s}\nmirror: {}",
		"no sink of a type": "version: 1\nname: shop\nsource: {type: plain, url: a}\nsink: {type: reader, url: b}\nmirror: {}",
		"enum":              head + "mirror: {mode: x}",
		"not available":     head + "mirror: {dropped_partitions: delete}",
		"limit":             head + "mirror: {snapshot: {concurrency: 65}}",
		"time span":         head + "mirror: {retry_paused: 5}",
		"size":              head + "mirror: {apply: {batch_bytes: lots}}",
		"nothing required":  "version: 1",
	} {
		if s.Validate(asJSON(t, []byte(text))) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSchemaExplainsEverySetting(t *testing.T) {
	text, err := Schema(testDrivers())
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Description          string
		Properties           map[string]json.RawMessage
		AnyOf, OneOf         []json.RawMessage
		AdditionalProperties json.RawMessage
	}
	var walk func(path string, raw json.RawMessage)
	walk = func(path string, raw json.RawMessage) {
		var n node
		if json.Unmarshal(raw, &n) != nil {
			return // true or false
		}
		for key, property := range n.Properties {
			var p node
			if err := json.Unmarshal(property, &p); err != nil || p.Description == "" {
				t.Errorf("%s.%s has no description", path, key)
			}
			walk(path+"."+key, property)
		}
		for _, alternative := range append(n.AnyOf, n.OneOf...) {
			walk(path, alternative)
		}
		if n.AdditionalProperties != nil {
			walk(path, n.AdditionalProperties)
		}
	}
	walk("", text)
}
