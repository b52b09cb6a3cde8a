package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// plainConfig has a setting of each kind that a connector may use.
type plainConfig struct {
	URL         string        `yaml:"url" required:"true" secret:"true" doc:"Where."`
	Connections int           `yaml:"connections" min:"2" max:"100" doc:"How many."`
	Slot        string        `yaml:"slot" side:"source" doc:"Which."`
	Wait        time.Duration `yaml:"wait" min:"1s" doc:"How long."`
	Fast        bool          `yaml:"fast" doc:"How."`
}

func (c *plainConfig) Validate() []connector.Problem {
	if c.URL != "" && !strings.HasPrefix(c.URL, "plain://") {
		return []connector.Problem{{Table: "url", What: "has another scheme", Fix: "begin it with plain://"}}
	}
	return nil
}

func testDrivers() []connector.Driver {
	source := func(context.Context, connector.Config, connector.Env) (connector.Source, error) { return nil, nil }
	sink := func(context.Context, connector.Config, connector.Env) (connector.Sink, error) { return nil, nil }
	newConfig := func() connector.Config { return &plainConfig{Connections: 8, Wait: 10 * time.Second} }
	return []connector.Driver{
		{Name: "plain", NewConfig: newConfig, Source: source, Sink: sink},
		{Name: "reader", NewConfig: newConfig, Source: source},
	}
}

// ignoreDriver leaves functions out of a comparison.
var ignoreDriver = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Driver" }, cmp.Ignore())

func mustPattern(t *testing.T, s string) Pattern {
	t.Helper()
	p, err := ParsePattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSmallestConfigHasTheDocumentedDefaults(t *testing.T) {
	f, err := Load(filepath.Join("testdata", "valid", "smallest.yaml"), testDrivers())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(filepath.Join("testdata", "valid"))
	if err != nil {
		t.Fatal(err)
	}
	want := &File{
		Path: filepath.Join("testdata", "valid", "smallest.yaml"), Dir: dir, Version: 1, Name: "shop",
		Source: Block{Type: "plain", Config: &plainConfig{URL: "plain://here", Connections: 8, Wait: 10 * time.Second}},
		Sink:   Block{Type: "plain", Config: &plainConfig{URL: "plain://there", Connections: 8, Wait: 10 * time.Second}},
		State:  State{Type: "sqlite", Path: filepath.Join(dir, ".sluice", "shop", "state.db")},
		Mirror: &Mirror{
			Tables:      Tables{Include: []Pattern{mustPattern(t, "*")}, NewTables: "follow", DiscoverInterval: Duration(5 * time.Minute)},
			Destination: Destination{Schema: "{schema}", Table: "{table}"},
			Mode:        "current", Deletes: "hard", Existing: "refuse", WithoutPrimaryKey: "refuse", SchemaChanges: "follow", DroppedColumns: "keep", DroppedPartitions: "keep",
			OnUnrepresentable: "error", OnBadRow: "pause", OnGap: "pause", OnTableError: "pause", MaxTableFailures: 3,
			RetryPaused: Duration(5 * time.Minute), RetainedLog: RetainedLog{Action: "warn"}, MaxRowBytes: 64 << 20,
			Snapshot: Snapshot{Concurrency: 4, ChunkRows: 100000, MaxAge: Duration(time.Hour)},
			Apply:    Apply{Concurrency: 8, BatchRows: 10000, BatchBytes: 16 << 20, BatchAge: Duration(time.Second)},
			Spool: Spool{
				Path: filepath.Join(dir, ".sluice", "shop", "spool"), Max: 10 << 30,
				DurableAfter: DurableAfter{Bytes: 1 << 30, Age: Duration(10 * time.Minute)},
			},
		},
	}
	if diff := cmp.Diff(want, f, ignoreDriver, cmp.AllowUnexported(Pattern{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	t.Setenv("PLAIN_URL", "plain://from-env")
	t.Setenv("CONNECTIONS", "12")
	f, err := Load(filepath.Join("testdata", "valid", "everything.yaml"), testDrivers())
	if err != nil {
		t.Fatal(err)
	}
	wantSource := &plainConfig{URL: "plain://from-env", Connections: 8, Slot: "s", Wait: 5 * time.Second, Fast: true}
	if diff := cmp.Diff(connector.Config(wantSource), f.Source.Config); diff != "" {
		t.Errorf("source: -want +got:\n%s", diff)
	}
	wantSink := &plainConfig{URL: "plain://from-a-file", Connections: 12, Wait: 10 * time.Second}
	if diff := cmp.Diff(connector.Config(wantSink), f.Sink.Config); diff != "" {
		t.Errorf("sink: -want +got:\n%s", diff)
	}
	if want := filepath.Join(f.Dir, "elsewhere", "state.db"); f.State.Path != want {
		t.Errorf("state.path = %s, want %s", f.State.Path, want)
	}
	m := newMirror()
	m.Tables = Tables{
		Include:   []Pattern{mustPattern(t, "shop.*"), mustPattern(t, `public."Odd.*"`)},
		Exclude:   []Pattern{mustPattern(t, "*.audit_?")},
		NewTables: Ignore,
	}
	m.Destination.Schema = "copy_{schema}"
	m.Existing = MergeExisting
	m.Mode, m.WithoutPrimaryKey, m.OnGap, m.OnTableError = History, HistoryKeyless, ResyncOnGap, FailOnError
	m.MaxTableFailures, m.RetryPaused = 5, Duration(90*time.Minute)
	m.Snapshot.Concurrency, m.Snapshot.ChunkRows = 2, 5000
	m.Apply = Apply{Concurrency: 3, BatchRows: 100, BatchBytes: 1_000_000, BatchAge: Duration(250 * time.Millisecond)}
	m.Spool.Path = filepath.Join(f.Dir, ".sluice", "shop_2-b", "spool")
	m.PerTable = map[schema.Name]*PerTable{
		{Schema: "public", Table: "orders"}:   {Destination: TableDestination{Table: "orders_live"}, Mode: Current, Deletes: SoftDeletes, Existing: ReplaceExisting},
		{Schema: "public", Table: "Odd.Name"}: {Mode: History},
		{Schema: "public", Table: "people"}: {
			Key: []string{"id"}, Columns: []string{"id", "name"}, ExcludeColumns: []string{"secret"},
		},
		{Table: "items"}: {},
	}
	if diff := cmp.Diff(m, f.Mirror, cmp.AllowUnexported(Pattern{}), cmpopts.IgnoreFields(PerTable{}, "Where")); diff != "" {
		t.Errorf("mirror: -want +got:\n%s", diff)
	}
}

func TestSettingsOfOneTableComeBeforeTheMirrors(t *testing.T) {
	m := newMirror()
	m.Destination.Schema = "copy_{schema}"
	m.PerTable = map[schema.Name]*PerTable{
		{Schema: "public", Table: "orders"}: {Destination: TableDestination{Table: "{table}_live"}, Mode: History},
		{Table: "items"}:                    {Destination: TableDestination{Schema: "x"}},
	}
	for _, c := range []struct {
		table, want schema.Name
		mode        Mode
	}{
		{schema.Name{Schema: "public", Table: "orders"}, schema.Name{Schema: "copy_public", Table: "orders_live"}, History},
		{schema.Name{Schema: "public", Table: "items"}, schema.Name{Schema: "x", Table: "items"}, Current},
		{schema.Name{Schema: "other", Table: "items"}, schema.Name{Schema: "copy_other", Table: "items"}, Current},
	} {
		if got := m.DestinationOf(c.table); got != c.want || m.ModeOf(c.table) != c.mode {
			t.Errorf("%v goes to %v as %v, want %v as %v", c.table, got, m.ModeOf(c.table), c.want, c.mode)
		}
	}
}

func TestSoftDeletesAreNotForHistories(t *testing.T) {
	m := newMirror()
	m.Deletes, m.Existing = SoftDeletes, MergeExisting
	m.PerTable = map[schema.Name]*PerTable{
		{Schema: "public", Table: "log"}:    {Mode: History},
		{Schema: "public", Table: "orders"}: {Deletes: HardDeletes, Existing: ReplaceExisting},
	}
	for _, c := range []struct {
		table    string
		deletes  Deletes
		existing Existing
	}{{"log", HardDeletes, MergeExisting}, {"orders", HardDeletes, ReplaceExisting}, {"items", SoftDeletes, MergeExisting}} {
		n := schema.Name{Schema: "public", Table: c.table}
		if d, e := m.DeletesOf(n), m.ExistingOf(n); d != c.deletes || e != c.existing {
			t.Errorf("%s has deletes %s and existing %s, want %s and %s", c.table, d, e, c.deletes, c.existing)
		}
	}
}

func TestFindingsNamePlaceExpectationAndNearestKey(t *testing.T) {
	const head = "version: 1\nname: shop\nsource: {type: plain, url: \"plain://a\"}\nsink: {type: plain, url: \"plain://b\"}\n"
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":                     {head + "mirror:\n  tabels: {}\n", `6:3: mirror.tabels: unknown key; did you mean "tables"?`},
		"unknown key without a neighbour": {head + "mirror: {}\nzzzzzzzz: 1\n", `6:1: zzzzzzzz: unknown key`},
		"duplicate key":                   {head + "mirror:\n  mode: current\n  mode: history\n", `7:3: mirror.mode: stands here a second time; the first is in line 6`},
		"bad enum":                        {head + "mirror: {mode: histroy}\n", `5:16: mirror.mode: "histroy" is not possible; expected current or history; did you mean "history"?`},
		"not available value":             {head + "mirror: {dropped_partitions: delete}\n", `5:30: mirror.dropped_partitions: delete is not available yet; expected keep`},
		"soft history":                    {head + "mirror: {mode: history, deletes: soft}\n", "5:9: mirror.deletes: soft goes with `mode: current` only; a history keeps every deletion"},
		"soft history of a table":         {head + "mirror: {per_table: {a.b: {mode: history, deletes: soft}}}\n", "5:22: mirror.per_table.a.b.deletes: soft goes with `mode: current` only; a history keeps every deletion"},
		"not available key":               {head + "mirror:\n  max_row_bytes: 1MiB\n", `6:3: mirror.max_row_bytes: is not available yet`},
		"not available per table":         {head + "mirror: {per_table: {a.b: {on_unrepresentable: clamp}}}\n", `5:48: mirror.per_table.a.b.on_unrepresentable: clamp is not available yet; expected error`},
		"no columns":                      {head + "mirror: {per_table: {a.b: {columns: []}}}\n", `5:22: mirror.per_table.a.b.columns: expected the names of columns`},
		"not available state":             {head + "mirror: {}\nstate: {type: postgres}\n", `6:15: state.type: postgres is not available yet; expected sqlite`},
		"number":                          {head + "mirror: {max_table_failures: many}\n", `5:30: mirror.max_table_failures: expected a whole number, found "many"`},
		"limit":                           {head + "mirror: {snapshot: {concurrency: 65}}\n", `5:34: mirror.snapshot.concurrency: expected a value from 1 to 64, found "65"`},
		"time span":                       {head + "mirror: {retry_paused: 5}\n", `5:24: mirror.retry_paused: expected a time span such as 250ms, 5m or 1h30m, or 0, found "5"`},
		"time span limit":                 {head + "mirror: {apply: {batch_age: 2m}}\n", `5:29: mirror.apply.batch_age: expected a value from 1ms to 1m, found "2m"`},
		"size":                            {head + "mirror: {apply: {batch_bytes: 1 lot}}\n", `5:31: mirror.apply.batch_bytes: expected a number of bytes such as 4096, 64MiB or 1GB, found "1 lot"`},
		"pattern":                         {head + "mirror: {tables: {include: [a, b.]}}\n", `5:32: mirror.tables.include[1]: a part is empty, found "b."`},
		"no list":                         {head + "mirror: {tables: {include: a}}\n", `5:28: mirror.tables.include: expected a list in brackets, found a single value`},
		"no value":                        {head + "mirror: {mode: }\n", `5:15: mirror.mode: expected a single value, found nothing`},
		"no keys":                         {head + "mirror: all\n", `5:9: mirror: expected keys and values, found a single value`},
		"template":                        {head + "mirror: {destination: {table: \"{tabel}\"}}\n", `5:31: mirror.destination.table: only {schema} and {table} may stand in braces, found "{tabel}"`},
		"glob in per_table":               {head + "mirror: {per_table: {\"a.*\": {}}}\n", `5:22: mirror.per_table.a.*: expected the exact name of a table; a * or ? that is part of it stands in double quotes`},
		"twins in per_table":              {head + "mirror: {per_table: {public.a: {}, a: {}}}\n", `5:36: mirror.per_table.a: the same table as public.a`},
		"anchor":                          {head + "mirror: &m {}\n", `5:9: mirror: anchors, aliases and tags are not used in config files`},
		"missing environment":             {head + "mirror: {mode: \"${env:SLUICE_TEST_UNSET}\"}\n", `5:16: mirror.mode: the environment variable SLUICE_TEST_UNSET is not set`},
		"missing file":                    {head + "mirror: {mode: \"${file:/nonexistent/x}\"}\n", `5:16: mirror.mode: open /nonexistent/x: no such file or directory`},
		"unknown reference":               {head + "mirror: {mode: \"${SLUICE}\"}\n", `5:16: mirror.mode: expected ${env:NAME} or ${file:PATH}; $${ stands for itself`},
		"wrong side":                      {strings.Replace(head, "b\"}", "b\", slot: x}", 1) + "mirror: {}\n", `4:39: sink.slot: belongs to a source, not to a sink`},
		"type of other side":              {strings.Replace(head, "sink: {type: plain", "sink: {type: reader", 1) + "mirror: {}\n", `4:14: sink.type: "reader" is no sink; expected plain`},
		"no such type":                    {strings.Replace(head, "source: {type: plain", "source: {type: plian", 1) + "mirror: {}\n", `3:16: source.type: "plian" is no source; expected plain or reader; did you mean "plain"?`},
		"missing in block":                {strings.Replace(head, ", url: \"plain://a\"", "", 1) + "mirror: {}\n", `3:9: source.url: is missing. Where.`},
		"validation by the connector":     {strings.Replace(head, "plain://a", "http://a", 1) + "mirror: {}\n", `3:28: source.url: has another scheme; begin it with plain://`},
		"name":                            {strings.Replace(head, "shop", "my shop", 1) + "mirror: {}\n", `2:7: name: expected letters, digits, - and _, 40 at most`},
		"no mirror":                       {head, `1:1: mirror: is missing. What is mirrored, and how. May be empty: every table, with the defaults.`},
		"newer version alone is told":     {"version: 2\nfuture: {}\n", `1:10: version: expected 1, the one version that this program knows`},
		"syntax":                          {"version: 1\nname: \"shop\n", `2:7: not valid YAML: could not find end character of double-quoted text`},
		"empty":                           {"# nothing\n", ` the file is empty; ` + "`sluice init` writes one to begin with"},
		"two documents":                   {head + "mirror: {}\n---\na: 1\n", `7:1: a second document begins here; a config file is one document`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "shop.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path, testDrivers())
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("error = %v, want an *Error", err)
			}
			if want := path + ":" + c.want; err.Error() != want {
				t.Errorf("got:\n%s\nwant:\n%s", err, want)
			}
		})
	}
}

func TestAllFindingsComeAtOnceInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.yaml")
	text := "mirror: {mode: x}\nversion: 1\nname: shop\nsink: {type: plain, url: \"plain://b\", conections: 9}\nstate: {pth: x}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path, testDrivers())
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatal(err)
	}
	var keys []string
	for _, f := range e.Findings {
		keys = append(keys, f.Key)
	}
	want := []string{"source", "mirror.mode", "sink.conections", "state.pth"}
	if diff := cmp.Diff(want, keys); diff != "" {
		t.Errorf("-want +got:\n%s\n%v", diff, err)
	}
}

func TestMissingFileIsAConfigError(t *testing.T) {
	_, err := Load("testdata/none.yaml", testDrivers())
	if _, ok := errors.AsType[*Error](err); !ok || err.Error() != "testdata/none.yaml: no such file or directory" {
		t.Errorf("error = %v", err)
	}
}

func TestSecretsAndInterpolatedValuesStayOutOfErrors(t *testing.T) {
	t.Setenv("SLUICE_TEST_SECRET", "hunter2")
	const head = "version: 1\nname: shop\nmirror: {MIRROR}\nsource: {type: plain, url: \"URL\"}\nsink: {type: plain, url: \"plain://b\"}\n"
	for name, text := range map[string]string{
		"secret":                  strings.NewReplacer("URL", "hunter2", "MIRROR", "").Replace(head),
		"secret with a reference": strings.NewReplacer("URL", "x ${env:SLUICE_TEST_SECRET} ${env:SLUICE_TEST_UNSET}", "MIRROR", "").Replace(head),
		"number":                  strings.NewReplacer("URL", "plain://", "MIRROR", `max_table_failures: "${env:SLUICE_TEST_SECRET}"`).Replace(head),
		"enum":                    strings.NewReplacer("URL", "plain://", "MIRROR", `mode: "${env:SLUICE_TEST_SECRET}"`).Replace(head),
		"pattern":                 strings.NewReplacer("URL", "plain://", "MIRROR", `tables: {include: ["${env:SLUICE_TEST_SECRET}.a.b"]}`).Replace(head),
		"template":                strings.NewReplacer("URL", "plain://", "MIRROR", `destination: {table: "{${env:SLUICE_TEST_SECRET}"}`).Replace(head),
		"type":                    strings.NewReplacer("type: plain, url: \"URL\"", `type: "${env:SLUICE_TEST_SECRET}"`, "MIRROR", "").Replace(head),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "shop.yaml")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(path, testDrivers()); err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error = %v", err)
			}
		})
	}
}

func TestEscapedReferenceStandsForItself(t *testing.T) {
	d := &decoder{}
	if got, ok := d.interpolate("a$${env:X} $${", place{}); !ok || got != "a${env:X} ${" {
		t.Errorf("got %q, %v", got, ok)
	}
}

// FuzzLoad checks that no text crashes the loader, and that a refusal always says something at a place in the text.
func FuzzLoad(f *testing.F) {
	for _, name := range []string{"smallest.yaml", "everything.yaml"} {
		text, err := os.ReadFile(filepath.Join("testdata", "valid", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("version: 1\n<<: {a: 1}\n? [a]\n: b\nname: !!str x\nsource: *x\nsink: {type: plain, url: ${env:A}${file:b}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d := &decoder{
			path: "f.yaml", dir: "/", drivers: testDrivers(),
			lookupEnv: func(string) (string, bool) { return "value", true },
			readFile:  func(string, int64) ([]byte, error) { return []byte("value\n"), nil },
		}
		file, err := d.load(text)
		if err == nil {
			if file.Name == "" || file.Source.Config == nil || file.Sink.Config == nil || file.Mirror == nil {
				t.Errorf("accepted without what is required: %+v", file)
			}
			return
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || len(e.Findings) == 0 {
			t.Fatalf("error = %#v", err)
		}
		for _, finding := range e.Findings {
			if finding.Text == "" {
				t.Errorf("a finding without text: %+v", finding)
			}
		}
	})
}

func TestSettingsOfATableThatIsNotThereAreTold(t *testing.T) {
	m := newMirror()
	m.Tables.Exclude = []Pattern{mustPattern(t, "public.audit")}
	for name, where := range map[string]string{"orders": "shop.yaml:7:5", "public.itms": "shop.yaml:8:5", "public.audit": "shop.yaml:9:5"} {
		n, err := schema.ParseName(name)
		if err != nil {
			t.Fatal(err)
		}
		if m.PerTable == nil {
			m.PerTable = map[schema.Name]*PerTable{}
		}
		m.PerTable[n] = &PerTable{Where: map[string]string{"": where}}
	}
	got := m.Unused([]schema.Name{{Schema: "public", Table: "orders"}, {Schema: "public", Table: "items"}, {Schema: "public", Table: "audit"}})
	want := []string{
		"shop.yaml:9:5: per_table: table public.audit is not selected by `mirror.tables`",
		`shop.yaml:8:5: per_table: the source has no table public.itms; did you mean "public.items"?`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
