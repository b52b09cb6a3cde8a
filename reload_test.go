package sluice

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

func TestEverySettingIsTakenByARunningMirrorOrSaidToNeedARestart(t *testing.T) {
	keys := config.Keys()
	in := func(list []string, key string) bool {
		return slices.ContainsFunc(list, func(k string) bool { return key == k || strings.HasPrefix(key, k+".") })
	}
	for _, key := range keys {
		switch takes, needs := slices.Contains(taken, key), in(fixed, key); {
		case !takes && !needs:
			t.Errorf("%s: nobody has said whether a running mirror takes it: add it to taken, or to fixed", key)
		case takes && needs:
			t.Errorf("%s is in both lists", key)
		}
	}
	for _, key := range slices.Concat(taken, fixed) {
		if !slices.ContainsFunc(keys, func(k string) bool { return in([]string{key}, k) }) {
			t.Errorf("there is no setting %s", key)
		}
	}
}

// TestWhatARunningMirrorTakesChangesHowTablesAreMirrored changes each setting that is taken, by itself.
func TestWhatARunningMirrorTakesChangesHowTablesAreMirrored(t *testing.T) {
	const base = "tables: {include: [public.a, public.b], exclude: [public.x]}"
	own := func(setting string) string { return base + ", per_table: {public.a: {" + setting + "}}" }
	changed := map[string]string{
		"mirror.tables.include":               "tables: {include: [public.a], exclude: [public.x]}",
		"mirror.tables.exclude":               "tables: {include: [public.a, public.b], exclude: [public.b]}",
		"mirror.destination.schema":           base + ", destination: {schema: other}",
		"mirror.destination.table":            base + ", destination: {table: \"{table}_live\"}",
		"mirror.mode":                         base + ", mode: history",
		"mirror.deletes":                      base + ", deletes: soft",
		"mirror.existing":                     base + ", existing: merge",
		"mirror.without_primary_key":          base + ", without_primary_key: history",
		"mirror.schema_changes":               base + ", schema_changes: ignore",
		"mirror.dropped_columns":              base + ", dropped_columns: drop",
		"mirror.per_table.schema_changes":     own("schema_changes: pause"),
		"mirror.on_bad_row":                   base + ", on_bad_row: quarantine",
		"mirror.per_table.on_bad_row":         own("on_bad_row: quarantine"),
		"mirror.per_table.destination.schema": own("destination: {schema: other}"),
		"mirror.per_table.destination.table":  own("destination: {table: other}"),
		"mirror.per_table.mode":               own("mode: history"),
		"mirror.per_table.key":                own("key: [id]"),
		"mirror.per_table.columns":            own("columns: [id]"),
		"mirror.per_table.exclude_columns":    own("exclude_columns: [name]"),
		"mirror.per_table.filter":             own("filter: id > 1"),
		"mirror.per_table.deletes":            own("deletes: soft"),
		"mirror.per_table.existing":           own("existing: replace"),
	}
	with := func(block string) *Mirror {
		return load(t, "postgres://h/a", "postgres://h/b", "state: {path: /s}\nmirror: {spool: {path: /p}, "+block+"}\n")
	}
	is := with(base)
	untried := map[string]bool{} // by field of what a selection says of a table
	for f := range reflect.TypeFor[mirror.Settings]().Fields() {
		untried[f.Name] = f.Name != "Where"
	}
	for _, key := range taken {
		if changed[key] == "" {
			t.Errorf("%s is not tried", key)
			continue
		}
		next := with(changed[key])
		if diff := needRestart(is.file, next.file); len(diff) > 0 {
			t.Errorf("%s: said to need a restart: %v", key, diff)
		}
		if reflect.DeepEqual(chosen(is), chosen(next)) {
			t.Errorf("%s: no table is mirrored in another way", key)
		}
		before, after := reflect.ValueOf(chosen(is)["public.a"]), reflect.ValueOf(chosen(next)["public.a"])
		for name := range untried {
			if !reflect.DeepEqual(before.FieldByName(name).Interface(), after.FieldByName(name).Interface()) {
				untried[name] = false
			}
		}
	}
	for name, is := range untried {
		if is {
			t.Errorf("no setting that is taken changes %s, which is taken all the same", name)
		}
	}
	restart := with(base + ", on_gap: resync, apply: {batch_rows: 7}")
	if diff := needRestart(is.file, restart.file); !slices.Contains(diff, "mirror.on_gap") || !slices.Contains(diff, "mirror.apply.batch_rows") {
		t.Errorf("said to need a restart: %v", diff)
	}
}

// chosen returns how some tables are mirrored, keyless ones among them.
func chosen(m *Mirror) map[string]mirror.Settings {
	all := map[string]mirror.Settings{}
	for _, table := range []schema.Table{
		{Name: schema.Name{Schema: "public", Table: "a"}, Key: []int{0}},
		{Name: schema.Name{Schema: "public", Table: "b"}},
	} {
		if s, selected := m.selects(&table); selected {
			s.Where = nil
			all[table.Name.String()] = s
		}
	}
	return all
}

func TestSettingsOfTablesAreTakenWhileTheMirrorRuns(t *testing.T) {
	o := &operated{t: t, source: server.Database(t), sink: server.Database(t), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	testdb.Exec(t, o.source, `
		CREATE TABLE soft (id bigint PRIMARY KEY, name text); CREATE TABLE same (id bigint PRIMARY KEY, name text);
		INSERT INTO soft VALUES (1, 'a'), (2, 'b'); INSERT INTO same VALUES (1, 'a')`)
	const discover = "mirror: {tables: {discover_interval: 100ms}"
	o.Mirror = load(t, o.source, o.sink, discover+"}\n")
	reloads := make(chan struct{})
	stop := o.followReloading(reloads)
	defer stop()
	await := func(table string, p mirror.Phase, reason string) {
		t.Helper()
		testdb.Eventually(t, func() error {
			for _, is := range o.status().Tables {
				if is.Name.Table == table && is.Phase == string(p) && strings.Contains(is.Reason, reason) {
					return nil
				}
			}
			return fmt.Errorf("%s is not %s because of %q: %+v", table, p, reason, o.status().Tables)
		})
	}
	await("soft", mirror.Streaming, "")
	await("same", mirror.Streaming, "")

	text, err := os.ReadFile(o.file.Path)
	if err != nil {
		t.Fatal(err)
	}
	soft := strings.Replace(string(text), discover, discover+", deletes: soft, per_table: {public.same: {deletes: hard}}", 1)
	if err := os.WriteFile(o.file.Path, []byte(soft), 0o600); err != nil {
		t.Fatal(err)
	}
	reloads <- struct{}{}
	await("soft", mirror.Paused, "config_changed")
	await("same", mirror.Streaming, "")
	testdb.Exec(t, o.source, "CREATE TABLE late (id bigint PRIMARY KEY); INSERT INTO late VALUES (1), (2)")
	await("late", mirror.Streaming, "")
	if _, err := o.Resync(t.Context(), []string{"public.soft"}, CommandOptions{Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	testdb.Exec(t, o.source, "DELETE FROM soft WHERE id = 1; DELETE FROM late WHERE id = 1; DELETE FROM same")
	testdb.Eventually(t, func() error {
		for _, table := range []string{"soft", "late"} {
			if got := testdb.QueryText(t, o.sink, "SELECT string_agg(id::text, ',') FROM "+table+" WHERE _sluice_deleted_at IS NOT NULL"); got != "1" {
				return fmt.Errorf("deleted rows of %s: %q", table, got)
			}
		}
		if n := testdb.QueryText(t, o.sink, "SELECT count(*) FROM same"); n != "0" {
			return errors.New("the row of a table with hard deletes is still there")
		}
		return nil
	})
}
