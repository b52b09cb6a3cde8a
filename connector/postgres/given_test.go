package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// newGivenFixture makes a database with the tables and the publication "theirs" that sql creates, and a source on it whose
// role may replicate and read, and nothing else.
func newGivenFixture(t *testing.T, sql string) *streamFixture {
	t.Helper()
	f := newStreamFixture(t, sql)
	role := "reader_of_" + f.mirror
	f.exec("CREATE ROLE " + role + ` LOGIN REPLICATION; GRANT SELECT ON ALL TABLES IN SCHEMA public TO ` + role + `;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO ` + role)
	t.Cleanup(func() { testdb.Exec(t, f.url, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	f.source = f.openGiven(asRole(t, f.url, role))
	return f
}

func (f *streamFixture) openGiven(url string) *Source {
	f.t.Helper()
	s, err := OpenSource(f.t.Context(), &Config{URL: url, Connections: 4, Publication: "theirs"}, connector.Env{Mirror: f.mirror, ID: "id-" + f.mirror})
	must(f.t, err)
	f.t.Cleanup(func() { s.Close() })
	return s
}

// reopen begins anew with the settings of the source, as a new process would.
func (f *streamFixture) reopen() {
	f.t.Helper()
	f.source = f.openGiven(f.source.config.URL)
}

// publicationsText is all that the catalog has of publications.
func publicationsText(t *testing.T, url string) string {
	t.Helper()
	sql := `SELECT (SELECT string_agg(p::text || coalesce(obj_description(p.oid, 'pg_publication'), ''), ';' ORDER BY p.oid) FROM pg_publication p),
		(SELECT string_agg(r::text, ';' ORDER BY r.oid) FROM pg_publication_rel r)`
	return strings.Join(testdb.Query(t, url, sql)[0], "|")
}

func (f *streamFixture) refusal(table string) string {
	f.t.Helper()
	return discover(f.t, f.source)["public."+table].Refused
}

func TestReaderWithFewRightsUsesAGivenPublicationAndLeavesIt(t *testing.T) {
	for form, what := range map[string]string{"tables": "FOR TABLE a, parts", "all tables": "FOR ALL TABLES", "schema": "FOR TABLES IN SCHEMA public"} {
		t.Run(form, func(t *testing.T) {
			if form == "schema" && testServer.Version(t) < 150000 {
				t.Skip("publications of schemas come with 15")
			}
			f := newGivenFixture(t, `CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (0, 'old');
				CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parts DEFAULT;
				CREATE PUBLICATION theirs `+what+` WITH (publish_via_partition_root = true)`)
			before := publicationsText(t, f.url)
			wantTold(t, checkGiven(t, f), true,
				`^\| publication "theirs" was made by somebody else: it is used as it is, never altered and never dropped\| $`)
			st := f.stream(nil)
			f.add(st, "a", "parts")
			snap, err := f.source.Snapshot(t.Context(), f.table("a"))
			must(t, err)
			must(t, snap.Close())
			f.exec("INSERT INTO a VALUES (1, 'x'); UPDATE a SET v = 'y'; DELETE FROM a WHERE id = 0; INSERT INTO parts VALUES (7); TRUNCATE parts")
			events := f.upTo(st, f.head())
			f.expectRows(events, "a", "IN(1,x)", "UN(0,y)", "UN(1,y)", "DK(0,<n>)")
			f.expectRows(events, "parts", "IN(7)", "T")
			must(t, st.Drop(t.Context(), f.table("parts").ID))
			must(t, st.Close())

			f.reopen()
			f.exec("INSERT INTO a VALUES (2, 'z')")
			again := f.stream(lastProgress(events))
			if at := f.add(again, "a"); at[""] != lastProgress(events)[""] {
				t.Errorf("a table that was published all the time comes from %s only, not from %s", at, lastProgress(events))
			}
			if rows := f.rowsText(f.upTo(again, f.head()), "a"); len(rows) == 0 || rows[len(rows)-1] != "IN(2,z)" {
				t.Errorf("rows of a: %v", rows)
			}
			must(t, again.Close())

			must(t, f.source.Remove(t.Context()))
			must(t, f.source.Remove(t.Context()))
			if got := f.slotColumn("count(*)"); got != "0" {
				t.Errorf("%s slots are left", got)
			}
			if after := publicationsText(t, f.url); after != before {
				t.Errorf("publications were\n%s\nand are\n%s", before, after)
			}
		})
	}
}

// checkGiven returns what Check finds of the tables that can be mirrored.
func checkGiven(t *testing.T, f *streamFixture) []connector.Problem {
	t.Helper()
	var able []*schema.Table
	for _, table := range discover(t, f.source) {
		if table.Refused == "" {
			able = append(able, table)
		}
	}
	ps, err := f.source.Check(t.Context(), able)
	must(t, err)
	return ps
}

func TestGivenPublicationThatLacksSomethingRefusesTheTableWithTheStatement(t *testing.T) {
	for _, c := range []struct {
		name, sql   string
		from        int // version
		why, remedy string
	}{
		{name: "not in it", sql: "CREATE PUBLICATION theirs FOR TABLE other", why: `it is not in publication "theirs"`,
			remedy: `ALTER PUBLICATION "theirs" ADD TABLE "public"."t"`},
		{name: "no deletes", sql: "CREATE PUBLICATION theirs FOR TABLE t WITH (publish = 'insert, update, truncate')",
			why: `publication "theirs" does not publish every kind of change`, remedy: `ALTER PUBLICATION "theirs" SET (publish = 'insert, update, delete, truncate')`},
		{name: "inserts only", sql: "CREATE PUBLICATION theirs FOR ALL TABLES WITH (publish = 'insert, truncate')",
			why: `publication "theirs" publishes inserts and truncates only`, remedy: `ALTER PUBLICATION "theirs" SET (publish = 'insert, update, delete, truncate')`},
		{name: "row filter", from: 150000, sql: "CREATE PUBLICATION theirs FOR TABLE t WHERE (id > 5)",
			why: `it has a row filter or a column list in publication "theirs"`, remedy: `BEGIN; ALTER PUBLICATION "theirs" DROP TABLE "public"."t"; ALTER PUBLICATION "theirs" ADD TABLE "public"."t"; COMMIT`},
		{name: "column list", from: 150000, sql: "CREATE PUBLICATION theirs FOR TABLE t (id)",
			why: `it has a row filter or a column list in publication "theirs"`, remedy: `BEGIN; ALTER PUBLICATION "theirs" DROP TABLE "public"."t"; ALTER PUBLICATION "theirs" ADD TABLE "public"."t"; COMMIT`},
		{name: "leaves", sql: "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF t DEFAULT; CREATE PUBLICATION theirs FOR ALL TABLES",
			why: `publication "theirs" does not publish its partitions' changes as its own`, remedy: `ALTER PUBLICATION "theirs" SET (publish_via_partition_root = true)`},
		{name: "generated columns", from: 180000, sql: "ALTER TABLE t ADD g int GENERATED ALWAYS AS (id + 1) STORED; CREATE PUBLICATION theirs FOR TABLE t WITH (publish_generated_columns = stored)",
			why: `publication "theirs" publishes its generated columns`, remedy: `ALTER PUBLICATION "theirs" SET (publish_generated_columns = none)`},
		{name: "no identity", sql: "ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE PUBLICATION theirs FOR ALL TABLES",
			why: `publication "theirs" publishes its updates and deletes, and it has no usable replica identity: its UPDATE and DELETE statements fail`, remedy: `ALTER TABLE "public"."t" ADD PRIMARY KEY (...), or ALTER TABLE "public"."t" REPLICA IDENTITY FULL`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testServer.Version(t) < c.from {
				t.Skipf("servers before %d do not know that", c.from)
			}
			f := newGivenFixture(t, "CREATE TABLE other (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY, v int); "+c.sql)
			why, remedy, _ := strings.Cut(f.refusal("t"), "; ")
			if !strings.HasPrefix(why, c.why) || !strings.HasPrefix(remedy, c.remedy) {
				t.Errorf("refused for %q with the remedy %q", why, remedy)
			}
			st := f.stream(nil)
			asItWas := f.table("t")
			_, err := st.Add(t.Context(), asItWas)
			expectKind(t, err, connector.TableFault, c.why, c.remedy)
			if strings.HasPrefix(c.remedy, "ALTER TABLE") {
				remedy = "ALTER TABLE t REPLICA IDENTITY FULL"
			}
			for statement := range strings.SplitSeq(remedy, "; ") {
				if statement != "BEGIN" && statement != "COMMIT" {
					f.exec(statement)
				}
			}
			if now := f.refusal("t"); now != "" {
				t.Errorf("refused behind its remedy: %s", now)
			}
			f.add(st, "t")
			f.exec("INSERT INTO t (id, v) VALUES (1, 2)")
			f.expectRows(f.upTo(st, f.head()), "t", "IN(1,2)")
		})
	}
}

func TestInsertOnlyGivenPublicationServesTablesWithoutIdentity(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE bare (v int); CREATE PUBLICATION theirs FOR ALL TABLES WITH (publish = 'insert, truncate')")
	st := f.stream(nil)
	f.add(st, "bare")
	f.exec("INSERT INTO bare VALUES (1); UPDATE bare SET v = 2; TRUNCATE bare")
	f.expectRows(f.upTo(st, f.head()), "bare", "IN(1)", "T")
}

func TestNewTableOfAGivenPublicationOfAllTablesIsToldAtOnce(t *testing.T) {
	f := newGivenFixture(t, "CREATE PUBLICATION theirs FOR ALL TABLES")
	st := f.stream(nil)
	f.exec("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)")
	var told []string
	for _, e := range f.upTo(st, f.head()) {
		if u, ok := e.(*connector.Unselected); ok {
			told = append(told, u.Name.String())
		}
	}
	if len(told) != 1 || told[0] != "public.late" {
		t.Errorf("told of %v", told)
	}
	if why := f.refusal("late"); why != "" {
		t.Errorf("refused: %s", why)
	}
}

func TestTableThatWasTakenOutMeanwhileComesOnlyFromWhenItWasPutBack(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE PUBLICATION theirs FOR TABLE a, b")
	st := f.stream(nil)
	f.add(st, "a", "b")
	at := lastProgress(f.upTo(st, f.head()))
	must(t, st.Close())
	f.exec("ALTER PUBLICATION theirs DROP TABLE a")
	f.reopen()
	again := f.stream(at)
	_, err := again.Add(t.Context(), f.table("a"))
	expectKind(t, err, connector.TableFault, "it is not in publication")
	f.exec("ALTER PUBLICATION theirs ADD TABLE a")
	from := f.add(again, "a")
	if order, err := f.source.Compare(from[""], at[""]); err != nil || order <= 0 {
		t.Errorf("it comes from %s, as if it had been published since %s (%v)", from, at, err)
	}
	if from := f.add(again, "b"); from[""] != at[""] {
		t.Errorf("the other table comes from %s, not from %s", from, at)
	}
}

func TestGivenPublicationThatIsGoneIsAGapAndIsNotMadeAnew(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION theirs FOR TABLE a")
	st := f.stream(nil)
	f.add(st, "a")
	at := lastProgress(f.upTo(st, f.head()))
	f.exec("DROP PUBLICATION theirs; INSERT INTO a VALUES (1)")
	var err error
	for err == nil {
		_, err = st.Next(t.Context())
	}
	expectKind(t, err, connector.Gap, "publication", "on_gap: resync")
	must(t, st.Close())

	super := f.openGiven(f.url) // it has the right to make one
	_, err = super.Stream(t.Context(), "", at)
	expectKind(t, err, connector.Gap, `publication "theirs" does not exist`)
	_, err = super.Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, `publication "theirs", which was given to this mirror, does not exist any more`, `CREATE PUBLICATION "theirs" FOR TABLE`)
	f.source = super
	wantTold(t, checkGiven(t, f), false, `publication "theirs", which was given to this mirror, does not exist any more`)
	if got := testdb.QueryText(t, f.url, "SELECT count(*) FROM pg_publication"); got != "0" {
		t.Errorf("publications: %s", got)
	}

	f.exec("CREATE PUBLICATION theirs FOR TABLE a")
	f.reopen()
	resumed := f.stream(at)
	f.add(resumed, "a")
	for err = nil; err == nil; {
		_, err = resumed.Next(t.Context())
	}
	expectKind(t, err, connector.Gap, "publication")
	must(t, resumed.Close())
	fresh := f.stream(nil) // takes over the slot, which is known as ours
	f.add(fresh, "a")
	f.exec("INSERT INTO a VALUES (2)")
	f.expectRows(f.upTo(fresh, f.head()), "a", "IN(2)")
}

func TestPublicationIsGivenOnlyIfItIsNamedAndBearsNoMirrorsMark(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	named := func(id string) *Source {
		s, err := OpenSource(t.Context(), &Config{URL: f.url, Connections: 4, Publication: "theirs"}, connector.Env{Mirror: f.mirror, ID: id})
		must(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	own := named("one")
	f.source = own
	wantTold(t, checkGiven(t, f), true, `^\| publication "theirs" does not exist: a run makes it, as this mirror's own`)
	st, err := own.Stream(t.Context(), "", nil)
	must(t, err)
	must(t, st.Close())
	if got := testdb.QueryText(t, f.url, "SELECT string_agg(pubname, ',' ORDER BY pubname) FROM pg_publication"); got != "theirs,theirs_insert" {
		t.Errorf("publications: %s", got)
	}
	_, err = named("two").Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, `publication "theirs" exists and was not made by this mirror`)
	f.exec("COMMENT ON PUBLICATION theirs IS NULL") // the other one still tells whose it was
	_, err = named("one").Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, `publication "theirs" exists and was not made by this mirror`)
	must(t, own.dropPublications(t.Context(), publications{{name: "theirs_insert", exists: true, ours: true}}))

	unnamed := f.open(f.url)
	f.exec("CREATE PUBLICATION " + unnamed.publicationName(fullPublication))
	_, err = f.open(f.url).Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, "exists and was not made by this mirror")
	f.exec("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database() AND NOT active")
}

func TestWriterFromBeforeATableWasPutIntoTheGivenPublicationIsWaitedFor(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION theirs")
	st := f.stream(nil)
	conn, err := pgx.Connect(t.Context(), f.url)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), "BEGIN; INSERT INTO a VALUES (1)")
	must(t, err)
	f.exec("ALTER PUBLICATION theirs ADD TABLE a")
	f.add(st, "a")
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = f.source.Snapshot(short, f.table("a"))
	expectKind(t, err, connector.Conflict, fmt.Sprintf("pid %d", conn.PgConn().PID()))
	_, err = conn.Exec(t.Context(), "INSERT INTO a VALUES (2); COMMIT")
	must(t, err)
	snap, err := f.source.Snapshot(t.Context(), f.table("a"))
	must(t, err)
	must(t, snap.Close())
}

func TestCheckTellsOfTheSlotThatWasUsedBeforeThePublicationWasGiven(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION theirs FOR TABLE a")
	former := f.source.baseSlotName()
	f.exec("SELECT pg_create_logical_replication_slot('" + former + "', 'pgoutput')")
	wantTold(t, checkGiven(t, f), true, "was made by somebody else", `replication slot "`+former+`" exists and is not used by this mirror.*pg_drop_replication_slot\('`+former+`'\)`)
	f.exec("SELECT pg_drop_replication_slot('" + former + "')")
}

func TestNameThatIsMistypedIsToldToARoleThatMayMakeNoPublication(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION there FOR TABLE a")
	_, err := f.source.Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, `publication "theirs" does not exist`, "under another name")
}

func TestSlotOfAnotherMirrorIsNotTakenForOursWhereThePublicationIsGiven(t *testing.T) {
	f := newGivenFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION theirs FOR TABLE a")
	f.stream(nil)
	other, err := OpenSource(t.Context(), f.source.config, connector.Env{Mirror: f.mirror, ID: "another"})
	must(t, err)
	defer other.Close()
	must(t, other.Remove(t.Context()))
	if got := f.slotColumn("count(*)"); got != "1" {
		t.Error("the slot of another mirror of the same name is gone")
	}
}

func TestCheckNamesEveryTableThatTheGivenPublicationBreaks(t *testing.T) {
	f := newGivenFixture(t, `CREATE TABLE a (id int PRIMARY KEY); CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.bare (v int);
		CREATE PUBLICATION theirs FOR ALL TABLES`)
	wantTold(t, checkGiven(t, f), false,
		`^elsewhere.bare\| publication "theirs", of all tables, publishes .* fail at the source\| ALTER TABLE "elsewhere"."bare" ADD PRIMARY KEY \(...\), or ALTER TABLE "elsewhere"."bare" REPLICA IDENTITY FULL$`)
}
