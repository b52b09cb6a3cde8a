package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDifferencesNameKeysAndNoValues(t *testing.T) {
	load := func(text string) *File {
		t.Helper()
		path := filepath.Join(t.TempDir(), "m.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Load(path, testDrivers())
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const text = "version: 1\nname: shop\nsource: {type: plain, url: plain://secret1}\nsink: {type: plain, url: plain://secret2}\nstate: {path: /s}\nmirror: {spool: {path: /p}, tables: {include: [a]}}\n"
	is := load(text)
	if d := Differences(is, load(text)); d != nil {
		t.Errorf("of the same file: %v", d)
	}
	changed := strings.NewReplacer("secret1", "secret3", "[a]", "[b]", "spool: {path: /p}", "spool: {path: /p}, apply: {batch_rows: 7}, per_table: {a: {mode: history, filter: id > 1}, b: {filter: id > 1}}").Replace(text)
	want := []string{"source", "mirror.tables.include", "mirror.apply.batch_rows", "mirror.per_table.filter", "mirror.per_table.mode"}
	if diff := cmp.Diff(want, Differences(is, load(changed))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestKeysAreThoseOfTheSettings(t *testing.T) {
	keys := Keys()
	for _, want := range []string{"version", "sink", "mirror.tables.include", "mirror.destination.schema", "mirror.per_table.destination.table", "mirror.per_table.key"} {
		if !slices.Contains(keys, want) {
			t.Errorf("%s is not among %v", want, keys)
		}
	}
	for _, wrong := range []string{"mirror", "mirror.per_table", "mirror.per_table.destination"} {
		if slices.Contains(keys, wrong) {
			t.Errorf("%s is a group of settings", wrong)
		}
	}
}
