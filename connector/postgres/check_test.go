package postgres

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// asRole is a connection string for another role.
func asRole(t testing.TB, connString, role string) string {
	t.Helper()
	u, err := url.Parse(connString)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(role)
	return u.String()
}

// checkSource returns what Check finds of the tables that can be mirrored, one finding a line.
func checkSource(t testing.TB, connString string, e connector.Env) []connector.Problem {
	t.Helper()
	src, err := OpenSource(t.Context(), &Config{URL: connString, Connections: 4}, e)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	all, err := src.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var able []*schema.Table
	for _, table := range all {
		if table.Refused == "" {
			able = append(able, table)
		}
	}
	ps, err := src.Check(t.Context(), able)
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

// told writes findings for comparison: faults, or all with the notes that every server of the tests gives left out.
func told(ps []connector.Problem, notes bool) string {
	var b strings.Builder
	for _, p := range ps {
		if p.Note && (!notes || strings.Contains(p.What, "max_slot_wal_keep_size") || strings.Contains(p.What, "idle_replication") || strings.HasPrefix(p.What, "server ")) {
			continue
		}
		fmt.Fprintf(&b, "%s| %s| %s\n", p.Table, p.What, p.Fix)
	}
	return b.String()
}

func wantTold(t testing.TB, ps []connector.Problem, notes bool, patterns ...string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(told(ps, notes), "\n"), "\n")
	if len(patterns) == 0 {
		patterns = []string{"^$"}
	}
	if len(lines) != len(patterns) {
		t.Fatalf("%d findings, want %d:\n%s", len(lines), len(patterns), strings.Join(lines, "\n"))
	}
	for i, p := range patterns {
		if !regexp.MustCompile(p).MatchString(lines[i]) {
			t.Errorf("finding %d is %q, want %q", i, lines[i], p)
		}
	}
}

func TestCheckNamesEachMissingRightWithTheStatementThatGivesIt(t *testing.T) {
	super := testServer.Database(t)
	testdb.Exec(t, super, `
		CREATE ROLE check_reader LOGIN; CREATE ROLE check_owner;
		CREATE SCHEMA closed; CREATE TABLE closed.a (id int PRIMARY KEY);
		CREATE TABLE owned (id int PRIMARY KEY); ALTER TABLE owned OWNER TO check_owner;
		CREATE TABLE hidden (id int PRIMARY KEY); ALTER TABLE hidden OWNER TO check_owner;
		ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; ALTER TABLE hidden FORCE ROW LEVEL SECURITY;
		CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts DEFAULT;
		ALTER TABLE parts OWNER TO check_reader`)
	t.Cleanup(func() {
		testdb.Exec(t, super, "DROP OWNED BY check_reader, check_owner; DROP ROLE check_reader, check_owner")
	})
	name := testdb.QueryText(t, super, "SELECT current_database()")
	role := asRole(t, super, "check_reader")
	e := connector.Env{Mirror: "m", ID: "one"}
	first := checkSource(t, role, e)
	wantTold(t, first, false,
		`^\| role "check_reader" may not replicate\| ALTER ROLE "check_reader" REPLICATION$`,
		`^\| role "check_reader" may not create publications in the database\| GRANT CREATE ON DATABASE "`+name+`" TO "check_reader"$`,
		`^closed.a\| only its owner "postgres" can publish it, .*\| GRANT "postgres" TO "check_reader"$`,
		`^public.hidden\| only its owner "check_owner" can publish it, .*\| GRANT "check_owner" TO "check_reader"$`,
		`^public.hidden\| row security hides rows .*\| ALTER ROLE "check_reader" BYPASSRLS$`,
		`^public.owned\| only its owner "check_owner" .*\| GRANT "check_owner" TO "check_reader"$`,
		`^public.parts\| role "check_reader" may not read it\| GRANT SELECT ON public.part TO "check_reader"$`)
	testdb.Exec(t, super, "ALTER TABLE closed.a OWNER TO check_reader")
	const use = `GRANT USAGE ON SCHEMA "closed" TO "check_reader"`
	if now := told(checkSource(t, role, e), false); !strings.Contains(now, `| role "check_reader" may not use schema "closed"| `+use+"\n") {
		t.Errorf("an owner who may not use the schema is not told so:\n%s", now)
	}
	for _, p := range append(first, connector.Problem{Fix: use}) {
		if !p.Note && p.Table != "closed.a" {
			testdb.Exec(t, super, p.Fix)
		}
	}
	wantTold(t, checkSource(t, role, e), false)
	wantRows(t, super, "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())", "0|0")
}

func TestCheckNamesTablesWhoseWritesAPublicationBreaks(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, `
		CREATE TABLE fine (id int PRIMARY KEY); CREATE TABLE bare (id int);
		CREATE TABLE parts (id int) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts DEFAULT;
		CREATE PUBLICATION everything FOR ALL TABLES; CREATE PUBLICATION inserts FOR ALL TABLES WITH (publish = 'insert')`)
	broken := []string{
		`^public.bare\| publication "everything", of all tables, publishes .* fail at the source\| ALTER TABLE "public"."bare" .* ALTER PUBLICATION "everything" SET`,
		`^public.part\| publication "everything", of all tables, publishes `,
	}
	ps := checkSource(t, url, connector.Env{Mirror: "m", ID: "one"})
	wantTold(t, ps, true, append([]string{"only inserts and truncates of it are mirrored", "only inserts and truncates of it are mirrored"}, broken...)...)
	wantTold(t, ps, false) // not the mirror's business
	testdb.Exec(t, url, "ALTER PUBLICATION everything RENAME TO sluice_m")
	ps = checkSource(t, url, connector.Env{Mirror: "m", ID: "one"})
	wantTold(t, ps, false, `^\| publication "sluice_m" exists and was not made by this mirror\| if nothing needs it: DROP PUBLICATION "sluice_m"`,
		`^public.bare\| publication "sluice_m", of all tables`, `^public.part\|`)
	if _, err := testdb.TryQuery(url, "UPDATE bare SET id = 1"); err == nil {
		t.Error("the statement that is said to fail does not")
	}
}

func TestCheckTellsWhatBecameOfSlotAndPublications(t *testing.T) {
	url := testServer.Database(t)
	testdb.Exec(t, url, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
	e := connector.Env{Mirror: "check_slot", ID: "one"}
	src, err := OpenSource(t.Context(), &Config{URL: url, Connections: 4}, e)
	must(t, err)
	defer src.Close()
	st, err := src.Stream(t.Context(), "", nil)
	must(t, err)
	_, err = st.Add(t.Context(), discover(t, src)["public.a"])
	must(t, err)
	wantTold(t, checkSource(t, url, e), true,
		`^\| replication slot "sluice_check_slot" keeps \d+\.\d MiB of log and is in use by pid \d+ \(application "sluice check_slot"\)\| $`,
		`^public.b\| it is not in publication "sluice_check_slot" yet`)
	other := connector.Env{Mirror: "check_slot", ID: "two"}
	wantTold(t, checkSource(t, url, other), false, `publication "sluice_check_slot" exists and was not made by this mirror`,
		`publication "sluice_check_slot_insert" exists and was not`, `replication slot "sluice_check_slot" .* exists and was not`)
	wantTold(t, checkSource(t, url, connector.Env{Mirror: "check_slot"}), false)
	must(t, st.Close())
	testdb.Eventually(t, func() error {
		if testdb.QueryText(t, url, "SELECT active FROM pg_replication_slots WHERE slot_name = 'sluice_check_slot'") != "f" {
			return fmt.Errorf("the slot is still in use")
		}
		return nil
	})
	testdb.Exec(t, url, "ALTER TABLE a DROP CONSTRAINT a_pkey; ALTER PUBLICATION sluice_check_slot_insert SET (publish = 'insert')")
	wantTold(t, checkSource(t, url, e), false, `publication "sluice_check_slot_insert" was altered`,
		`^public.a\| publication "sluice_check_slot" publishes its updates and deletes, and it has no replica identity`)
	testdb.Exec(t, url, "DROP PUBLICATION sluice_check_slot_insert; SELECT pg_drop_replication_slot('sluice_check_slot')")
	wantTold(t, checkSource(t, url, e), false, `publication "sluice_check_slot_insert" was dropped`, `replication slot "sluice_check_slot" was dropped`,
		`^public.a\|`)
	testdb.Exec(t, url, "DROP PUBLICATION sluice_check_slot")
	testdb.Exec(t, url, "SELECT pg_create_logical_replication_slot('sluice_check_slot', 'test_decoding')")
	wantTold(t, checkSource(t, url, e), false, `replication slot "sluice_check_slot" \(logical, plugin "test_decoding".* exists and was not made`)
}

func TestCheckNamesWhatTheServerLacks(t *testing.T) {
	small, err := testdb.StartPostgres("wal_level=replica", "max_replication_slots=1", "max_wal_senders=0", "wal_level=replica",
		"max_slot_wal_keep_size=1GB", "synchronous_commit=off")
	must(t, err)
	defer small.Remove()
	url := small.URL("postgres")
	testdb.Exec(t, url, `SELECT pg_create_physical_replication_slot('forgotten'); CREATE ROLE late; ALTER ROLE late SET synchronous_commit = off`)
	ps := checkSource(t, url, connector.Env{Mirror: "m", ID: "one"})
	wantTold(t, ps, true,
		`wal_level is replica, not logical\| ALTER SYSTEM SET wal_level = logical, then restart the server`,
		`all 1 replication slots are taken\| ALTER SYSTEM SET max_replication_slots = 2, .* nobody uses forgotten$`,
		`all 0 replication connections \(max_wal_senders\) are taken\| ALTER SYSTEM SET max_wal_senders = 1`,
		`synchronous_commit is off for role late:`, `synchronous_commit is off for this role:`)
	for _, p := range ps {
		if strings.Contains(p.What, "max_slot_wal_keep_size") {
			t.Errorf("a limit that is set is called missing: %+v", p)
		}
	}
}

func TestSinkCheckNamesEachMissingRightWithTheStatementThatGivesIt(t *testing.T) {
	super := testServer.Database(t)
	testdb.Exec(t, super, `
		CREATE ROLE sink_writer LOGIN; CREATE SCHEMA closed; CREATE TABLE public.theirs (id int PRIMARY KEY);
		REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT CREATE, USAGE ON SCHEMA public TO sink_writer`)
	t.Cleanup(func() { testdb.Exec(t, super, "DROP OWNED BY sink_writer; DROP ROLE sink_writer") })
	check := func(id string) []connector.Problem {
		s, err := OpenSink(t.Context(), &Config{URL: asRole(t, super, "sink_writer"), Connections: 4}, connector.Env{Mirror: "m", ID: id})
		must(t, err)
		defer s.Close()
		var ts []*schema.Table
		for _, n := range []schema.Name{{Schema: "closed", Table: "a"}, {Schema: "absent", Table: "a"}, {Table: "theirs"}} {
			ts = append(ts, &schema.Table{Name: n})
		}
		ps, err := s.Check(t.Context(), ts)
		must(t, err)
		return ps
	}
	ps := check("")
	wantTold(t, ps, true,
		`^\| role "sink_writer" may not make tables in schema "closed"\| GRANT CREATE, USAGE ON SCHEMA "closed" TO "sink_writer"$`,
		`^\| role "sink_writer" may not make the schemas that are missing\| GRANT CREATE ON DATABASE `,
		`^public.theirs\| role "sink_writer" does not own it\| ALTER TABLE "public"."theirs" OWNER TO "sink_writer"; or`)
	for _, p := range ps {
		fix, _, _ := strings.Cut(p.Fix, "; or")
		testdb.Exec(t, super, fix)
	}
	wantTold(t, check(""), true)
	s := openTestSink(t, super)
	wantTold(t, check(""), true, `role "sink_writer" may not use the tables of the schema sluice\| GRANT USAGE, CREATE ON SCHEMA sluice`)
	testdb.Exec(t, super, check("")[0].Fix)
	wantTold(t, check(""), true, `a mirror named "m" writes here already, and this one was never run`)
	wantTold(t, check("other"), true, `another mirror named "m" already writes here\| give this mirror another name`)
	wantTold(t, check(s.claim.id), true)
}

func TestRemovedMirrorLeavesOnlyItsDestinations(t *testing.T) {
	url := testServer.Database(t)
	s := openTestSink(t, url)
	other, err := OpenSink(t.Context(), &Config{URL: url, Connections: 4}, connector.Env{Mirror: "n"})
	must(t, err)
	defer other.Close()
	_, err = other.Claim(t.Context(), "n", "")
	must(t, err)
	stored(t, other, connector.Target{Table: plain("theirs")}, inserts("1|a|b")...)
	target := stored(t, s, connector.Target{Table: plain("ours")}, inserts("1|a|b")...)
	target.Copy++
	load(t, s, target, inserts("2|a|b")...) // a copy that will not be ready
	must(t, s.Remove(t.Context()))
	wantRows(t, url, "SELECT (SELECT count(*) FROM ours), (SELECT count(*) FROM theirs)", "1|1")
	wantRows(t, url, `SELECT (SELECT string_agg(name, ',') FROM sluice.mirror), (SELECT string_agg("table", ',') FROM sluice.owner)`, "n|theirs")
	wantRows(t, url, "SELECT count(*) FROM pg_class WHERE relname LIKE 'copy\\_%'", "0")
	must(t, other.Remove(t.Context()))
	wantRows(t, url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'sluice'", "0")
	again, err := OpenSink(t.Context(), &Config{URL: url, Connections: 4}, connector.Env{Mirror: "m"})
	must(t, err)
	defer again.Close()
	_, err = again.Claim(t.Context(), "m", "")
	must(t, err)
	testdb.Exec(t, url, "CREATE TABLE sluice.of_somebody (id int)")
	must(t, again.Remove(t.Context()))
	wantRows(t, url, "SELECT count(*) FROM sluice.mirror", "0")
}

func TestMeasureTellsBytesOfLogBehindAPosition(t *testing.T) {
	src, url := openTestSource(t, "CREATE TABLE a (id int)")
	head, err := src.Head(t.Context(), "")
	must(t, err)
	testdb.Exec(t, url, "INSERT INTO a SELECT generate_series(1, 10000)")
	bytes, clock, err := src.Measure(t.Context(), "", []connector.Positions{head, {"": "1/00000001/00000000/00000000"}, nil})
	must(t, err)
	if bytes[0] < 100_000 || bytes[1] != -1 || bytes[2] != -1 || clock.IsZero() {
		t.Errorf("measured %v at %v", bytes, clock)
	}
}
