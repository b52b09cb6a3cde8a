package postgres

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/schema"
)

// streamFixture is a database with a mirror's source on it.
type streamFixture struct {
	t      testing.TB
	url    string
	mirror string
	source *Source
}

// newStreamFixture makes a database with the tables that sql creates. Slots are the server's, so the mirror is named
// after the database.
func newStreamFixture(t testing.TB, sql string) *streamFixture {
	t.Helper()
	f := &streamFixture{t: t, url: testServer.Database(t)}
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	f.mirror = strings.TrimPrefix(u.Path, "/")
	testdb.Exec(t, f.url, sql)
	f.source = f.open(f.url)
	return f
}

func (f *streamFixture) open(url string) *Source {
	f.t.Helper()
	s, err := OpenSource(f.t.Context(), &Config{URL: url, Connections: 4}, connector.Env{Mirror: f.mirror, ID: "id-" + f.mirror})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { s.Close() })
	return s
}

func (f *streamFixture) exec(sql string) { f.t.Helper(); testdb.Exec(f.t, f.url, sql) }

// stream opens a stream and closes it at the end of the test.
func (f *streamFixture) stream(from connector.Positions) *stream {
	f.t.Helper()
	st, err := f.source.Stream(f.t.Context(), "", from)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { st.Close() })
	return st.(*stream)
}

func (f *streamFixture) table(name string) *schema.Table {
	f.t.Helper()
	oid, err := strconv.ParseUint(testdb.QueryText(f.t, f.url, "SELECT '"+name+"'::regclass::oid"), 10, 32)
	if err != nil {
		f.t.Fatal(err)
	}
	t, err := f.source.table(f.t.Context(), uint32(oid))
	if err != nil {
		f.t.Fatal(err)
	}
	return t
}

func (f *streamFixture) add(st connector.Stream, names ...string) connector.Positions {
	f.t.Helper()
	var at connector.Positions
	for _, name := range names {
		var err error
		if at, err = st.Add(f.t.Context(), f.table(name)); err != nil {
			f.t.Fatal(err)
		}
	}
	return at
}

func (f *streamFixture) head() connector.Positions {
	f.t.Helper()
	at, err := f.source.Head(f.t.Context(), "")
	if err != nil {
		f.t.Fatal(err)
	}
	return at
}

func (f *streamFixture) next(st connector.Stream) connector.Event {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	e, err := st.Next(ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// upTo returns the events until the stream has passed a position.
func (f *streamFixture) upTo(st connector.Stream, end connector.Positions) []connector.Event {
	f.t.Helper()
	var events []connector.Event
	for {
		e := f.next(st)
		events = append(events, e)
		if p, ok := e.(*connector.Progress); ok {
			if c, err := f.source.Compare(p.UpTo[""], end[""]); err != nil {
				f.t.Fatal(err)
			} else if c >= 0 {
				return events
			}
		}
	}
}

func lastProgress(events []connector.Event) connector.Positions {
	return events[len(events)-1].(*connector.Progress).UpTo
}

// framesOf splits a Frames and checks that its Commits cover it.
func framesOf(t testing.TB, f *connector.Frames) [][]byte {
	t.Helper()
	var ms [][]byte
	for data := f.Data; len(data) > 0; {
		n := binary.BigEndian.Uint32(data)
		ms = append(ms, data[4:4+n])
		data = data[4+n:]
	}
	rows := 0
	for _, c := range f.Commits {
		rows += c.Rows
	}
	if rows != len(ms) {
		t.Errorf("commits cover %d rows of %d", rows, len(ms))
	}
	return ms
}

// rowText writes a row message as its type and values: I(1,a), U[K(1),N(2,a)].
func rowText(m []byte) string {
	if m[0] == messageTruncate {
		return "T"
	}
	var tuples []string
	for b := m[5:]; len(b) > 0; {
		kind, n := b[0], binary.BigEndian.Uint16(b[1:])
		b = b[3:]
		values := make([]string, n)
		for i := range values {
			switch b[0] {
			case 't':
				size := binary.BigEndian.Uint32(b[1:])
				values[i] = string(b[5 : 5+size])
				b = b[5+size:]
			default: // null, unchanged
				values[i] = "<" + string(b[0]) + ">"
				b = b[1:]
			}
		}
		tuples = append(tuples, string(kind)+"("+strings.Join(values, ",")+")")
	}
	return string(m[0]) + strings.Join(tuples, "")
}

// rowsText writes all rows of a table among events, SchemaChanges as "change".
func (f *streamFixture) rowsText(events []connector.Event, table string) []string {
	f.t.Helper()
	var text []string
	for _, e := range events {
		switch e := e.(type) {
		case *connector.Frames:
			if e.Table.Name.Table == table {
				for _, m := range framesOf(f.t, e) {
					if e.Table.Refused != "" {
						text = append(text, "unreadable")
						continue
					}
					text = append(text, rowText(m))
				}
			}
		case *connector.SchemaChange:
			if e.Table.Name.Table == table {
				text = append(text, fmt.Sprintf("change to %d columns, rewrote %v", len(e.Table.Columns), e.Rewrote))
			}
		}
	}
	return text
}

func (f *streamFixture) expectRows(events []connector.Event, table string, want ...string) {
	f.t.Helper()
	if got := f.rowsText(events, table); !slices.Equal(got, want) {
		f.t.Errorf("rows of %s:\n got %v\nwant %v", table, got, want)
	}
}

func (f *streamFixture) slotColumn(column string) string {
	f.t.Helper()
	return testdb.QueryText(f.t, f.url, "SELECT "+column+" FROM pg_replication_slots WHERE slot_name = '"+f.source.slotName()+"'")
}

func (f *streamFixture) published(table string) string {
	f.t.Helper()
	return testdb.QueryText(f.t, f.url, "SELECT coalesce(string_agg(pubname, ',' ORDER BY pubname), '') FROM pg_publication_tables WHERE tablename = '"+table+"'")
}

// expectKind checks the kind of an error and that its text holds all of parts.
func expectKind(t testing.TB, err error, kind connector.Kind, parts ...string) {
	t.Helper()
	if err == nil || connector.KindOf(err) != kind {
		t.Fatalf("error is %s: %v; want %s", connector.KindOf(err), err, kind)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func TestChangesComeInCommitOrder(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a VALUES (1, 'x'), (2, 'y'); INSERT INTO b VALUES (1)")
	f.exec("UPDATE a SET v = 'z' WHERE id = 1")
	f.exec("UPDATE a SET id = 3 WHERE id = 2")
	f.exec("DELETE FROM a WHERE id = 3; TRUNCATE a, b")
	events := f.upTo(st, f.head())
	f.expectRows(events, "a", "IN(1,x)", "IN(2,y)", "UN(1,z)", "UK(2,<n>)N(3,y)", "DK(3,<n>)", "T")
	f.expectRows(events, "b")
	checkPositions(t, f, events)
}

// checkPositions checks that every commit is greater than the ones before it and not greater than the Progress after it.
func checkPositions(t *testing.T, f *streamFixture, events []connector.Event) {
	t.Helper()
	compare := func(a, b connector.Position) int {
		c, err := f.source.Compare(a, b)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	last := map[string]connector.Commit{}
	var end connector.Position
	for _, e := range events {
		switch e := e.(type) {
		case *connector.Frames:
			for _, c := range e.Commits {
				name := e.Table.Name.Table
				if before, ok := last[name]; ok && (compare(c.Position, before.Position) < 0 ||
					c.Position == before.Position && c.First != before.First+int64(before.Rows)) {
					t.Errorf("commit %+v after %+v", c, before)
				}
				if end != "" && compare(c.Position, end) <= 0 {
					t.Errorf("commit at %s after progress to %s", c.Position, end)
				}
				last[name] = c
			}
		case *connector.Progress:
			if end != "" && compare(e.UpTo[""], end) <= 0 {
				t.Errorf("progress from %s to %s", end, e.UpTo[""])
			}
			end = e.UpTo[""]
		}
	}
	for name, c := range last {
		if compare(c.Position, end) > 0 {
			t.Errorf("%s: commit at %s is beyond the last progress %s", name, c.Position, end)
		}
	}
}

func TestPublicationsAreMadeBeforeTheSlot(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a VALUES (1)")
	at := f.upTo(st, f.head())
	f.expectRows(at, "a", "IN(1)")
	// A slot made first fails to decode what stands before the publication.
	f.exec("SELECT pg_create_logical_replication_slot('early_" + f.mirror + "', 'pgoutput')")
	f.exec("INSERT INTO a VALUES (2); CREATE PUBLICATION late FOR TABLE a")
	early := f.open(f.url)
	early.config.Slot, early.config.Publication = "early_"+f.mirror, "late"
	f.exec("COMMENT ON PUBLICATION late IS '" + early.publicationMark() + "'; CREATE PUBLICATION late_insert WITH (publish = 'insert,truncate', publish_via_partition_root = true);" +
		"COMMENT ON PUBLICATION late_insert IS '" + early.publicationMark() + "'; ALTER PUBLICATION late SET (publish_via_partition_root = true)")
	broken, err := early.Stream(t.Context(), "", f.head())
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	for err == nil {
		_, err = broken.Next(t.Context())
	}
	expectKind(t, err, connector.Gap, "publication", "late", "does not exist", "new slot")
}

func TestLeftoverOfAKilledStartIsTakenOver(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	first := f.stream(nil) // still connected, as after a kill that the server has not noticed
	f.add(first, "a")
	f.exec("INSERT INTO a VALUES (1)")
	second := f.stream(nil)
	f.add(second, "a")
	f.exec("INSERT INTO a VALUES (2)")
	f.expectRows(f.upTo(second, f.head()), "a", "IN(2)")
	if _, err := first.Next(t.Context()); connector.KindOf(err) != connector.Unavailable {
		for err == nil {
			_, err = first.Next(t.Context())
		}
		expectKind(t, err, connector.Unavailable)
	}
}

func TestForeignSlotAndPublicationAreRefusedAndStay(t *testing.T) {
	f := newStreamFixture(t, "")
	f.exec("SELECT pg_create_logical_replication_slot('" + f.source.slotName() + "', 'pgoutput')")
	_, err := f.source.Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, f.source.slotName(), "pg_drop_replication_slot")
	expectKind(t, f.source.Remove(t.Context()), connector.Setup, f.source.slotName())
	if got := f.slotColumn("count(*)"); got != "1" {
		t.Error("the foreign slot is gone")
	}
	f.exec("SELECT pg_drop_replication_slot('" + f.source.slotName() + "'); CREATE PUBLICATION " + f.source.publicationName(insertPublication))
	_, err = f.source.Stream(t.Context(), "", nil)
	expectKind(t, err, connector.Setup, f.source.publicationName(insertPublication), "DROP PUBLICATION")
	if got := testdb.QueryText(t, f.url, "SELECT count(*) FROM pg_publication"); got != "1" {
		t.Errorf("%s publications", got)
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	f := newStreamFixture(t, "")
	f.stream(nil).Close()
	if err := f.source.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := f.slotColumn("count(*)") + testdb.QueryText(t, f.url, "SELECT count(*) FROM pg_publication"); got != "00" {
		t.Errorf("slots and publications left: %s", got)
	}
	if err := f.source.Remove(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestApplicationsWritesNeverFailForLackOfAnIdentity(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE bare (id int, v int); INSERT INTO bare VALUES (1, 1)")
	st := f.stream(nil)
	f.add(st, "bare")
	f.exec("UPDATE bare SET v = 2; INSERT INTO bare VALUES (2, 2); DELETE FROM bare WHERE id = 1")
	f.expectRows(f.upTo(st, f.head()), "bare", "IN(2,2)")
	if got := f.published("bare"); got != f.source.publicationName(insertPublication) {
		t.Errorf("published by %q", got)
	}
}

func TestLostIdentityTakesTheTableOut(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int CONSTRAINT pk PRIMARY KEY, v int); INSERT INTO a VALUES (1, 1)")
	st := f.stream(nil)
	f.add(st, "a")
	keyed := f.table("a")
	f.exec("ALTER TABLE a DROP CONSTRAINT pk")
	_, err := st.Add(t.Context(), keyed)
	expectKind(t, err, connector.TableFault, "replica identity", "REPLICA IDENTITY FULL")
	f.exec("UPDATE a SET v = 2") // fails as long as the table is published
}

func TestEachReplicaIdentityFindsItsPublication(t *testing.T) {
	f := newStreamFixture(t, `
		CREATE TABLE pk (id int PRIMARY KEY);
		CREATE TABLE full_keyless (v int); ALTER TABLE full_keyless REPLICA IDENTITY FULL;
		CREATE TABLE by_index (id int NOT NULL, v int); CREATE UNIQUE INDEX by_index_i ON by_index (id); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_i;
		CREATE TABLE index_gone (id int NOT NULL); CREATE UNIQUE INDEX index_gone_i ON index_gone (id); ALTER TABLE index_gone REPLICA IDENTITY USING INDEX index_gone_i; DROP INDEX index_gone_i;
		CREATE TABLE nothing (v int); ALTER TABLE nothing REPLICA IDENTITY NOTHING;
		CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
		CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
		CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
		CREATE TABLE mixed (id int, v int) PARTITION BY RANGE (id);
		CREATE TABLE mixed_1 PARTITION OF mixed FOR VALUES FROM (0) TO (10); ALTER TABLE mixed_1 REPLICA IDENTITY FULL;
		CREATE TABLE mixed_2 PARTITION OF mixed FOR VALUES FROM (10) TO (20);
		CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, v int) PARTITION BY RANGE (id); ALTER TABLE late REPLICA IDENTITY FULL;
		CREATE TABLE late_1 PARTITION OF late FOR VALUES FROM (0) TO (10); ALTER TABLE late_1 REPLICA IDENTITY FULL;
		CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (v int) INHERITS (parent)`)
	st := f.stream(nil)
	full, insert := f.source.publicationName(fullPublication), f.source.publicationName(insertPublication)
	for name, want := range map[string]string{
		"pk": full, "full_keyless": full, "by_index": full, "parts": full, "parent": full,
		"index_gone": insert, "nothing": insert, "mixed": insert, "deferred": insert, "late": insert,
	} {
		f.add(st, name)
		if got := f.published(name); got != want {
			t.Errorf("%s is published by %q, want %q", name, got, want)
		}
	}
	if got := f.published("child"); got != "" {
		t.Errorf("the child of an added table is published by %q", got)
	}
	f.exec("INSERT INTO parts VALUES (1, 1), (11, 1); UPDATE parts SET v = 2; UPDATE parts SET id = 12 WHERE id = 1")
	f.exec("INSERT INTO mixed VALUES (1, 1), (11, 1); UPDATE mixed SET v = 2; DELETE FROM mixed")
	f.exec("CREATE TABLE late_2 PARTITION OF late FOR VALUES FROM (10) TO (20); INSERT INTO late VALUES (11, 1); UPDATE late SET v = 2")
	f.exec("INSERT INTO full_keyless VALUES (1); UPDATE full_keyless SET v = 2; DELETE FROM full_keyless")
	f.exec("INSERT INTO by_index VALUES (1, 1); UPDATE by_index SET id = 2; DELETE FROM by_index")
	events := f.upTo(st, f.head())
	f.expectRows(events, "parts", "IN(1,1)", "IN(11,1)", "UN(1,2)", "UN(11,2)", "DK(1,<n>)", "IN(12,2)")
	f.expectRows(events, "mixed", "IN(1,1)", "IN(11,1)")
	f.expectRows(events, "full_keyless", "IN(1)", "UO(1)N(2)", "DO(2)")
	f.expectRows(events, "by_index", "IN(1,1)", "UK(1,<n>)N(2,1)", "DK(2,<n>)")
}

func TestTableMovesBetweenPublications(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int NOT NULL)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("ALTER TABLE a ADD PRIMARY KEY (id)")
	f.add(st, "a")
	if got := f.published("a"); got != f.source.publicationName(fullPublication) {
		t.Errorf("published by %q", got)
	}
	if err := st.Drop(t.Context(), f.table("a").ID); err != nil || f.published("a") != "" {
		t.Errorf("after Drop: %v, published by %q", err, f.published("a"))
	}
	gone := f.table("a").ID
	f.exec("DROP TABLE a")
	if err := st.Drop(t.Context(), gone); err != nil {
		t.Errorf("Drop of a table that is gone: %v", err)
	}
}

func TestForeignPublicationsAreLeftAlone(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE PUBLICATION other FOR TABLE a")
	st := f.stream(nil)
	f.add(st, "a")
	if err := st.Drop(t.Context(), f.table("a").ID); err != nil {
		t.Fatal(err)
	}
	if got := f.published("a"); got != "other" {
		t.Errorf("published by %q", got)
	}
}

func TestLargeTransactionComesInPieces(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a", "b")
	const rows = 30_000
	f.exec(fmt.Sprintf("BEGIN; INSERT INTO a SELECT g, repeat('x', 200) FROM generate_series(1, %d) g; INSERT INTO b VALUES (1); COMMIT", rows))
	events := f.upTo(st, f.head())
	pieces, next := 0, int64(0)
	for _, e := range events {
		fr, ok := e.(*connector.Frames)
		if !ok || fr.Table.Name.Table != "a" {
			continue
		}
		pieces++
		if len(fr.Data) > flushBytes+1000 {
			t.Errorf("a piece of %d bytes", len(fr.Data))
		}
		for i, m := range framesOf(t, fr) {
			if want := fmt.Sprintf("IN(%d,", next+int64(i)+1); !strings.HasPrefix(rowText(m), want) {
				t.Fatalf("row %s, want %s", rowText(m), want)
			}
		}
		if len(fr.Commits) != 1 || fr.Commits[0].First != next {
			t.Fatalf("commits %+v, want one from %d", fr.Commits, next)
		}
		next += int64(fr.Commits[0].Rows)
	}
	if next != rows || pieces < 6 {
		t.Errorf("%d rows in %d pieces", next, pieces)
	}
	f.expectRows(events, "b", "IN(1)")
	checkPositions(t, f, events)
}

func TestLogIsReleasedOnlyUpToTheAck(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a VALUES (1)")
	first := lastProgress(f.upTo(st, f.head()))
	f.exec("INSERT INTO a VALUES (2)")
	f.upTo(st, f.head())
	if err := st.Ack(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	p, _ := parsePosition(first[""])
	testdb.Eventually(t, func() error {
		if got, _ := ParseLSN(f.slotColumn("confirmed_flush_lsn")); got != p.lsn {
			return fmt.Errorf("slot stands at %s, acknowledged is %s", got, p.lsn)
		}
		return nil
	})
	st.Close()
	again := f.stream(first)
	f.add(again, "a")
	f.expectRows(f.upTo(again, f.head()), "a", "IN(2)")
}

func TestServerIsAnsweredWhileNobodyReads(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY, v text)")
	f.source = f.open(f.url + "&wal_sender_timeout=600ms")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a SELECT g, repeat('x', 1000) FROM generate_series(1, 20000) g") // more than the socket holds
	f.next(st)
	began, replies := time.Now(), map[string]bool{}
	testdb.Eventually(t, func() error { // three time-outs pass without a Next
		replies[testdb.QueryText(t, f.url, "SELECT reply_time FROM pg_stat_replication WHERE pid = ("+
			"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '"+f.source.slotName()+"')")] = true
		if time.Since(began) < 1800*time.Millisecond {
			return fmt.Errorf("%d replies so far", len(replies))
		}
		return nil
	})
	if len(replies) < 4 {
		t.Errorf("%d replies in three time-outs", len(replies))
	}
	f.upTo(st, f.head())
}

func TestQuietDatabaseAdvances(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	testdb.Exec(t, testServer.URL("postgres"), "CREATE TABLE IF NOT EXISTS busy (v int); INSERT INTO busy SELECT generate_series(1, 1000)")
	lsn, err := f.source.readLSN(t.Context(), flushedLog)
	if err != nil {
		t.Fatal(err)
	}
	f.upTo(st, connector.Positions{"": st.position(lsn)}) // by keepalives alone
}

func TestHeartbeatMovesAForgottenSlot(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.exec("INSERT INTO a VALUES (1)")
	before := f.slotColumn("pg_current_wal_insert_lsn()")
	st.moved.Store(time.Now().Add(-heartbeatAfter).UnixNano())
	h := heartbeat{stream: st}
	h.beat(t.Context())
	end, _ := ParseLSN(before)
	events := f.upTo(st, connector.Positions{"": st.position(end + 1)})
	if len(events) == 0 {
		t.Error("nothing came")
	}
}

func TestResumeNeedsItsSlot(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	at := lastProgress(f.upTo(st, f.head()))
	st.Close()
	resume := func(from connector.Positions) error {
		s, err := f.source.Stream(t.Context(), "", from)
		if err == nil {
			s.Close()
		}
		return err
	}
	p, err := parsePosition(at[""])
	if err != nil {
		t.Fatal(err)
	}
	changed := func(change func(*position)) connector.Positions {
		q := p
		change(&q)
		return connector.Positions{"": q.Position()}
	}
	if err := resume(at); err != nil {
		t.Fatal(err)
	}
	expectKind(t, resume(changed(func(p *position) { p.system++ })), connector.Gap, "another server")
	expectKind(t, resume(changed(func(p *position) { p.timeline = 9 })), connector.Gap, "timeline")
	expectKind(t, resume(changed(func(p *position) { p.lsn += 1 << 40 })), connector.Gap, "restored")
	expectKind(t, resume(changed(func(p *position) { p.lsn = 1 })), connector.Gap, "moved it", "on_gap")

	alter := "ALTER PUBLICATION " + f.source.publicationName(fullPublication) + " SET "
	if testServer.Version(t) >= 180000 {
		f.exec(alter + "(publish_generated_columns = stored)")
		expectKind(t, resume(at), connector.Gap, "altered")
		f.exec(alter + "(publish_generated_columns = none)")
		if err := resume(at); err != nil {
			t.Fatal(err)
		}
	}
	f.exec(alter + "(publish = 'insert')")
	expectKind(t, resume(at), connector.Gap, "altered")
	f.exec("DROP PUBLICATION " + f.source.publicationName(fullPublication))
	expectKind(t, resume(at), connector.Gap, "does not exist", "catalog")
	f.exec("CREATE PUBLICATION " + f.source.publicationName(fullPublication))
	expectKind(t, resume(at), connector.Setup, "was not made by this mirror")
	testdb.Eventually(t, func() error {
		if pid := f.slotColumn("coalesce(active_pid, 0)"); pid != "0" {
			return fmt.Errorf("in use by %s", pid)
		}
		return nil
	})
	f.exec("SELECT pg_drop_replication_slot('" + f.source.slotName() + "')")
	expectKind(t, resume(at), connector.Gap, "does not exist", "on_gap")
}

func TestSlotThatTheServerGaveUpIsAGap(t *testing.T) {
	f := newServerFixture(t, "max_slot_wal_keep_size=16MB", "max_wal_size=32MB")
	at := f.leaveSlot()
	f.awaitSlotLost()
	_, err := f.source.Stream(t.Context(), "", at)
	expectKind(t, err, connector.Gap, "invalid", "max_slot_wal_keep_size", "on_gap")
}

func TestSlotThatWasIdleForTooLongIsAGap(t *testing.T) {
	needVersion(t, 180000, "idle_replication_slot_timeout")
	f := newServerFixture(t, "idle_replication_slot_timeout=1s")
	at := f.leaveSlot()
	f.awaitSlotLost()
	_, err := f.source.Stream(t.Context(), "", at)
	expectKind(t, err, connector.Gap, "invalid", "idle_replication_slot_timeout", "on_gap")
}

// newServerFixture is a fixture on a server of the test's own: its slot is not to be the first victim of other tests'
// logs, nor theirs of its limits. It has a table a.
func newServerFixture(t *testing.T, settings ...string) *streamFixture {
	t.Helper()
	testServer.Database(t) // skips without a server
	own, err := testdb.StartPostgres(settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Remove)
	f := &streamFixture{t: t, url: own.URL("postgres"), mirror: "m"}
	f.exec("CREATE TABLE a (id int PRIMARY KEY)")
	f.source = f.open(f.url)
	return f
}

// leaveSlot makes a stream, closes it and returns how far it was read.
func (f *streamFixture) leaveSlot() connector.Positions {
	f.t.Helper()
	st := f.stream(nil)
	f.add(st, "a")
	at := lastProgress(f.upTo(st, f.head()))
	st.Close()
	return at
}

// awaitSlotLost gives the server reasons to give the slot up until it does.
func (f *streamFixture) awaitSlotLost() {
	f.t.Helper()
	testdb.Eventually(f.t, func() error {
		f.exec("INSERT INTO a SELECT coalesce(max(id), 0) + 1 FROM a")
		f.exec("SELECT pg_switch_wal()")
		f.exec("CHECKPOINT")
		if slot, err := f.source.readSlot(f.t.Context()); err != nil || slot.lost == "" {
			return fmt.Errorf("the slot is not lost: %v, %w", slot, err)
		}
		return nil
	})
}

// needVersion skips a test on a server older than version (server_version_num), which lacks what.
func needVersion(t *testing.T, version int, what string) {
	t.Helper()
	if have := testServer.Version(t); have < version {
		t.Skipf("server version %d has no %s", have, what)
	}
}

func TestSlotOfAnotherUserIsNotTakenAway(t *testing.T) {
	f := newStreamFixture(t, "")
	st := f.stream(nil)
	at := lastProgress(f.upTo(st, f.head()))
	other := f.open(f.url)
	other.env.Mirror = "someone else"
	other.config.Slot, other.config.Publication = f.source.slotName(), f.source.publicationName(fullPublication)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	_, err := other.Stream(ctx, "", at)
	expectKind(t, err, connector.Setup, "in use by pid", "sluice "+f.mirror)
	f.upTo(st, f.head()) // it still runs
}

func TestServerCanStopWhileItsLogIsNotAcknowledged(t *testing.T) {
	if testServer == nil {
		t.Skip(testdb.ErrNoServer)
	}
	server, err := testdb.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Remove()
	f := &streamFixture{t: t, url: server.URL("postgres"), mirror: "stop"}
	f.exec("CREATE TABLE a (id int PRIMARY KEY)")
	f.source = f.open(f.url)
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a VALUES (1)")
	f.upTo(st, f.head())
	stopped := make(chan struct{})
	go func() { defer close(stopped); server.Stop() }()
	for err == nil {
		_, err = st.Next(t.Context())
	}
	expectKind(t, err, connector.Unavailable, "shutting down")
	st.Close()
	<-stopped
}

func TestEndedConnectionIsUnavailable(t *testing.T) {
	f := newStreamFixture(t, "")
	st := f.stream(nil)
	f.upTo(st, f.head())
	f.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '" + f.source.slotName() + "'")
	var err error
	for err == nil {
		_, err = st.Next(t.Context())
	}
	expectKind(t, err, connector.Unavailable)
	if _, again := st.Next(t.Context()); again == nil {
		t.Error("a stream that has failed went on")
	}
}

func TestSlotCreationOutlastsLockTimeoutAndNamesWhomItWaitsFor(t *testing.T) {
	before := sessionSettings["lock_timeout"]
	t.Cleanup(func() { sessionSettings["lock_timeout"] = before })
	sessionSettings["lock_timeout"] = "100ms"
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	tx, err := f.source.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	var pid int
	if err := tx.QueryRow(t.Context(), "INSERT INTO public.a VALUES (1) RETURNING pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = f.source.Stream(ctx, "", nil)
	expectKind(t, err, connector.Conflict, fmt.Sprintf("pid %d", pid), "since")
}

func TestSlotCreationNamesOthersTransactionsToARoleWithFewRights(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	f.exec("CREATE ROLE few LOGIN REPLICATION")
	t.Cleanup(func() { f.exec("DROP OWNED BY few"); f.exec("DROP ROLE few") })
	f.exec("GRANT CREATE ON DATABASE " + quoteIdent(f.mirror) + " TO few")
	u, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User("few")
	app := connect(t, f.url)
	mustExec(t, app, "BEGIN; INSERT INTO a VALUES (1)")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = f.open(u.String()).Stream(ctx, "", nil)
	expectKind(t, err, connector.Conflict, fmt.Sprintf("pid %d", app.PgConn().PID()))
	f.exec("DROP PUBLICATION IF EXISTS " + quoteIdent(f.source.publicationName(fullPublication)))
	f.exec("DROP PUBLICATION IF EXISTS " + quoteIdent(f.source.publicationName(insertPublication)))
}

func TestSchemaChangeStandsBetweenOldAndNewRows(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a", "b")
	f.exec("INSERT INTO a VALUES (1)")
	f.upTo(st, f.head())
	f.exec("INSERT INTO a VALUES (2); INSERT INTO b VALUES (1)")
	f.exec("BEGIN; INSERT INTO a VALUES (3); ALTER TABLE a ADD COLUMN v int DEFAULT 7; INSERT INTO a VALUES (4, 8); COMMIT")
	events := f.upTo(st, f.head())
	f.expectRows(events, "a", "IN(2)", "IN(3)", "change to 2 columns, rewrote false", "IN(4,8)")
	for _, e := range events {
		if c, ok := e.(*connector.SchemaChange); ok && (c.Commit.First != 1 || c.Commit.Tag == 0) {
			t.Errorf("change at %+v", c.Commit)
		}
		if fr, ok := e.(*connector.Frames); ok && fr.Table.Name.Table == "a" && strings.HasPrefix(rowText(framesOf(t, fr)[0]), "IN(4") && len(fr.Table.Columns) != 2 {
			t.Error("row after the change under the old version")
		}
	}
	checkPositions(t, f, events)
}

func TestRewriteOfStoredValuesIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		ddl     string
		rewrote string // a part of what is told; "": nothing
	}{
		"new type":                      {"ALTER TABLE a ALTER v TYPE text USING 'x' || v", `column "v"`},
		"same type, other values":       {"ALTER TABLE a ALTER w TYPE varchar(10) USING upper(w)", `column "w"`},
		"wider varchar":                 {"ALTER TABLE a ALTER w TYPE varchar(20)", ""},
		"constant default":              {"ALTER TABLE a ADD COLUMN r text DEFAULT 'x'", ""},
		"volatile default":              {"ALTER TABLE a ADD COLUMN r float8 DEFAULT random()", `column "r" is new`},
		"identity":                      {"ALTER TABLE a ADD COLUMN r int GENERATED ALWAYS AS IDENTITY", `column "r" is new`},
		"generated":                     {"ALTER TABLE a ADD COLUMN r int GENERATED ALWAYS AS (id * 2) STORED", ""},
		"drop and add":                  {"ALTER TABLE a DROP w, ADD w varchar(10)", `column "w" was dropped and made again`},
		"drop":                          {"ALTER TABLE a DROP w", ""},
		"rename":                        {"ALTER TABLE a RENAME v TO v2; ALTER TABLE a RENAME TO z", ""},
		"vacuum full":                   {"VACUUM FULL a", ""},
		"vacuum full behind a default":  {"ALTER TABLE a ADD COLUMN r text DEFAULT 'x'; VACUUM FULL a", `column "r" is new`},
		"vacuum full clears a default":  {"VACUUM FULL a; CREATE INDEX ON a (v); ANALYZE a", ""},
		"cluster":                       {"CLUSTER a USING a_pkey", ""},
		"truncate":                      {"TRUNCATE a", ""},
		"moved to unlogged and back":    {"ALTER TABLE a DROP old; ALTER TABLE a SET UNLOGGED; ALTER TABLE a SET LOGGED", ""},
		"values of the cleared default": {"ALTER TABLE a ALTER old TYPE text USING upper(old)", `column "old"`},
		"not null":                      {"ALTER TABLE a ALTER w SET NOT NULL", ""},
	} {
		t.Run(name, func(t *testing.T) {
			src, url := openTestSource(t, `CREATE TABLE a (id int PRIMARY KEY, v int, w varchar(10)); INSERT INTO a VALUES (1, 1, 'w');
				ALTER TABLE a ADD old text DEFAULT 'x'`)
			before := discover(t, src)["public.a"]
			for statement := range strings.SplitSeq(c.ddl, ";") { // VACUUM stands alone
				testdb.Exec(t, url, statement)
			}
			for _, now := range discover(t, src) {
				why := src.Rewrote(before, now)
				if (why == "") != (c.rewrote == "") || !strings.Contains(why, c.rewrote) {
					t.Errorf("told %q, want %q", why, c.rewrote)
				}
			}
		})
	}
}

func TestPartitionsThatMayBringRowsAreTold(t *testing.T) {
	for name, c := range map[string]struct{ ddl, rewrote string }{
		"made":                            {"CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)", ""},
		"made with options":               {"CREATE TABLE p2 PARTITION OF p (v DEFAULT 'x' NOT NULL, CHECK (v <> '')) FOR VALUES IN (2)", ""},
		"made and filled":                 {"BEGIN; CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2); INSERT INTO p VALUES (2); COMMIT", ""},
		"made two deep":                   {"CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (id); CREATE TABLE p22 PARTITION OF p2 DEFAULT", ""},
		"attached":                        {"CREATE TABLE p2 (id int PRIMARY KEY, v text); ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)", "public.p2"},
		"attached in one transaction":     {"BEGIN; CREATE TABLE p2 (id int PRIMARY KEY, v text); INSERT INTO p2 VALUES (2); ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2); COMMIT", "public.p2"},
		"attached with partitions of its": {"CREATE TABLE p2 (id int PRIMARY KEY, v text) PARTITION BY LIST (id); CREATE TABLE p22 PARTITION OF p2 DEFAULT; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)", "public.p22"},
		"detached":                        {"ALTER TABLE p DETACH PARTITION p1", ""},
		"dropped":                         {"DROP TABLE p1", ""},
		"all rewritten":                   {"ALTER TABLE p ALTER v TYPE text USING upper(v)", `column "v"`},
		"a default for all":               {"ALTER TABLE p ADD w text DEFAULT 'x'", ""},
	} {
		t.Run(name, func(t *testing.T) {
			src, url := openTestSource(t, `CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY LIST (id);
				CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1)`)
			before := discover(t, src)["public.p"]
			testdb.Exec(t, url, c.ddl)
			now := discover(t, src)["public.p"]
			if why := src.Rewrote(before, now); (why == "") != (c.rewrote == "") || !strings.Contains(why, c.rewrote) {
				t.Errorf("told %q, want %q", why, c.rewrote)
			}
			if name == "a default for all" && (now.Columns[2].Missing == nil || *now.Columns[2].Missing != "x") {
				t.Errorf("default %v", now.Columns[2].Missing)
			}
		})
	}
}

func TestReaderBehindAddedColumnsGoesOn(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a VALUES (1)")
	f.upTo(st, f.head())
	f.exec("ALTER TABLE a ADD u int; INSERT INTO a VALUES (2, 2); ALTER TABLE a ADD v text; INSERT INTO a VALUES (3, 3, 'x')")
	f.expectRows(f.upTo(st, f.head()), "a", "change to 2 columns, rewrote false", "IN(2,2)", "change to 3 columns, rewrote false", "IN(3,3,x)")
	f.exec("ALTER TABLE a DROP u; INSERT INTO a VALUES (4, 'y'); ALTER TABLE a ADD w int; INSERT INTO a VALUES (5, 'z', 5)")
	f.expectRows(f.upTo(st, f.head()), "a", "change to 2 columns, rewrote false", "IN(4,y)", "change to 3 columns, rewrote false", "IN(5,z,5)")
}

func TestReaderBehindTwoChangesAsksForANewCopy(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("INSERT INTO a VALUES (1)")
	f.upTo(st, f.head())
	f.exec("ALTER TABLE a ADD u int; INSERT INTO a VALUES (2, 2); ALTER TABLE a DROP u; ALTER TABLE a ADD v text; INSERT INTO a VALUES (3, 'x')")
	f.expectRows(f.upTo(st, f.head()), "a", "change to 2 columns, rewrote true", "unreadable", "IN(3,x)")
}

func TestDroppedTableIsTold(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.exec("ALTER TABLE a ADD v int; INSERT INTO a VALUES (1, 1); DROP TABLE a")
	for _, e := range f.upTo(st, f.head()) {
		switch e := e.(type) {
		case *connector.SchemaChange:
			if e.Table.Refused == "" {
				t.Error("Refused is not set")
			}
			return
		case *connector.Frames:
			t.Error("rows of an unknown version")
		}
	}
	t.Error("no schema change")
}

func TestTableAddedWhileReadingComesFromItsPosition(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.add(st, "a")
	f.upTo(st, f.head())
	f.exec("INSERT INTO b VALUES (1)")
	at := f.add(st, "b")
	f.exec("INSERT INTO b VALUES (2)")
	events := f.upTo(st, f.head())
	f.expectRows(events, "b", "IN(2)")
	for _, e := range events {
		if fr, ok := e.(*connector.Frames); ok {
			if c, err := f.source.Compare(fr.Commits[0].Position, at[""]); err != nil || c <= 0 {
				t.Errorf("commit at %s is not after %s (%v)", fr.Commits[0].Position, at[""], err)
			}
		}
	}
}

func TestAddBeforeTheFirstNextCountsFromTheStart(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
	st := f.stream(nil)
	if at := f.add(st, "a"); at[""] != st.position(st.start) {
		t.Errorf("a new slot: %s", at)
	}
	from := lastProgress(f.upTo(st, f.head()))
	st.Close()
	f.exec("INSERT INTO a VALUES (1); INSERT INTO b VALUES (1)")
	again := f.stream(from)
	if at := f.add(again, "a"); at[""] != from[""] {
		t.Errorf("a table that was published: %s, want %s", at, from)
	}
	if at := f.add(again, "b"); at[""] <= from[""] {
		t.Errorf("a table that was not published: %s", at)
	}
	events := f.upTo(again, f.head())
	f.expectRows(events, "a", "IN(1)")
	f.expectRows(events, "b")
}

func TestNextEndsWithItsContextAndClose(t *testing.T) {
	f := newStreamFixture(t, "")
	st := f.stream(nil)
	f.upTo(st, f.head())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var err error
	for err == nil {
		_, err = st.Next(ctx)
	}
	if err != context.DeadlineExceeded {
		t.Errorf("Next ended with %v", err)
	}
	f.upTo(st, f.head()) // it goes on
	done := make(chan error)
	go func() {
		var err error
		for err == nil {
			_, err = st.Next(t.Context())
		}
		done <- err
	}()
	st.Close()
	if err := <-done; err == nil {
		t.Error("Next went on after Close")
	}
}

// TestEveryTransportReads guards the blocking socket and the plain connection behind it: a change is read at once on a
// quiet connection, and many are read together on a busy one.
func TestEveryTransportReads(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY, v text)")
	enableTLS(t)
	database := strings.TrimPrefix(strings.SplitN(f.url, "?", 2)[0], fmt.Sprintf("postgres://postgres@127.0.0.1:%d/", testServer.Port))
	for name, target := range map[string]string{
		"tcp":  f.url,
		"unix": fmt.Sprintf("host=%s port=%d user=postgres dbname=%s", testServer.Dir, testServer.Port, database),
		"tls":  strings.Replace(f.url, "sslmode=disable", "sslmode=require", 1),
	} {
		t.Run(name, func(t *testing.T) {
			f.exec("TRUNCATE a")
			f.t = t
			f.source = f.open(target)
			st := f.stream(nil)
			f.add(st, "a")
			f.exec("INSERT INTO a VALUES (0, 'x')")
			f.expectRows(f.upTo(st, f.head()), "a", "IN(0,x)")
			f.exec("DO $$ BEGIN FOR i IN 1..20000 LOOP INSERT INTO public.a VALUES (i, repeat('y', 100)); IF i % 10 = 0 THEN COMMIT; END IF; END LOOP; END $$")
			f.exec("INSERT INTO a VALUES (-1, repeat('z', 3000000))") // larger than the buffer
			f.exec("INSERT INTO a VALUES (-2, '')")
			events := f.upTo(st, f.head())
			rows := f.rowsText(events, "a")
			if len(rows) != 20002 || len(rows[20000]) < 3000000 || rows[20001] != "IN(-2,)" {
				t.Errorf("%d rows", len(rows))
			}
			if len(events) > 2000 {
				t.Errorf("%d events for 2002 transactions: they are not read together", len(events))
			}
			if err := st.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// enableTLS gives the server a certificate.
func enableTLS(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(testServer.Dir, "data")
	owner, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"server.key": {Type: "EC PRIVATE KEY", Bytes: encoded},
		"server.crt": {Type: "CERTIFICATE", Bytes: cert},
	} {
		path := filepath.Join(data, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		uid := int(owner.Sys().(*syscall.Stat_t).Uid)
		if err := os.Chown(path, uid, -1); err != nil {
			t.Fatal(err)
		}
	}
	admin := testServer.URL("postgres")
	testdb.Exec(t, admin, "ALTER SYSTEM SET ssl = on")
	testdb.Exec(t, admin, "SELECT pg_reload_conf()")
	testdb.Eventually(t, func() error {
		conn, err := pgconn.Connect(t.Context(), strings.Replace(admin, "sslmode=disable", "sslmode=require", 1))
		if err == nil {
			err = conn.Close(t.Context())
		}
		return err
	})
}

func TestObjectNamesFitAndStayApart(t *testing.T) {
	long := strings.Repeat("a", 80)
	names := []string{"shop", "Shop", "sh-op", "sh_op", "SHOP", long, long + "b", "ä"}
	seen := map[string]string{}
	for _, mirror := range names {
		n := objectName(mirror)
		if len(n) > maxNameLength || strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("%q gives %q", mirror, n)
		}
		if other, ok := seen[n]; ok {
			t.Errorf("%q and %q share %q", mirror, other, n)
		}
		seen[n] = mirror
	}
	if objectName("shop") != "sluice_shop" {
		t.Error(objectName("shop"))
	}
}

func TestPositionsAreOrderedAlongTheHistory(t *testing.T) {
	s := &Source{server: server{system: 1}}
	h, err := parseHistory(3, []byte("1\t0/1000\tno recovery target\n\n# a comment\n2\t0/2000\tbefore 2000-01-01\n"))
	if err != nil {
		t.Fatal(err)
	}
	s.setHistory(h)
	at := func(system uint64, timeline uint32, lsn LSN) connector.Position {
		return position{system, timeline, lsn}.Position()
	}
	for _, c := range []struct {
		a, b connector.Position
		want int
	}{
		{at(1, 1, 0x900), at(1, 1, 0x800), 1},
		{at(1, 1, 0x1000), at(1, 2, 0x1001), -1},
		{at(1, 1, 0x500), at(1, 3, 0x2500), -1},
		{at(1, 3, 0x2500), at(1, 3, 0x2500), 0},
	} {
		if got, err := s.Compare(c.a, c.b); err != nil || got != c.want {
			t.Errorf("Compare(%s, %s) = %d, %v", c.a, c.b, got, err)
		}
	}
	for _, c := range [][2]connector.Position{
		{at(1, 1, 0x1001), at(1, 2, 0x1100)}, // written after the standby was promoted without it
		{at(1, 2, 0x2001), at(1, 3, 0x2001)},
		{at(1, 7, 1), at(1, 3, 1)},
		{at(2, 3, 1), at(1, 3, 1)},
	} {
		_, err := s.Compare(c[0], c[1])
		expectKind(t, err, connector.Gap)
	}
}

func TestKeyThatDiscoveryFindsIsPublished(t *testing.T) {
	f := newStreamFixture(t, `
		CREATE TABLE full_unique (a int NOT NULL UNIQUE) PARTITION BY RANGE (a); ALTER TABLE full_unique REPLICA IDENTITY FULL;
		CREATE TABLE full_unique_1 PARTITION OF full_unique DEFAULT; ALTER TABLE full_unique_1 REPLICA IDENTITY FULL;
		CREATE TABLE full_pk (a int PRIMARY KEY) PARTITION BY RANGE (a); ALTER TABLE full_pk REPLICA IDENTITY FULL;
		CREATE TABLE full_pk_1 PARTITION OF full_pk DEFAULT; ALTER TABLE full_pk_1 REPLICA IDENTITY FULL;
		CREATE TABLE by_index (a int NOT NULL) PARTITION BY RANGE (a); CREATE UNIQUE INDEX by_index_a ON by_index (a);
		ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a;
		CREATE TABLE mixed (a int PRIMARY KEY) PARTITION BY RANGE (a);
		CREATE TABLE mixed_1 PARTITION OF mixed DEFAULT; ALTER TABLE mixed_1 REPLICA IDENTITY NOTHING;
		CREATE TABLE plain_full (a int NOT NULL UNIQUE); ALTER TABLE plain_full REPLICA IDENTITY FULL`)
	st := f.stream(nil)
	for _, name := range []string{"full_unique", "full_pk", "by_index", "mixed", "plain_full"} {
		table := f.table(name)
		if _, err := st.Add(t.Context(), table); err != nil {
			t.Errorf("%s, key %v: %v", name, table.KeyNames(), err)
		}
		if full := f.published(name) == f.source.publicationName(fullPublication); full != (len(table.Key) > 0) {
			t.Errorf("%s, key %v, is published by %q", name, table.KeyNames(), f.published(name))
		}
	}
}

func TestOurMessagesDoNotWaitForAStandby(t *testing.T) {
	f := newStreamFixture(t, "CREATE TABLE a (id int PRIMARY KEY)")
	st := f.stream(nil)
	f.exec("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	t.Cleanup(func() { f.exec("ALTER SYSTEM RESET synchronous_standby_names"); f.exec("SELECT pg_reload_conf()") })
	f.exec("SELECT pg_reload_conf()")
	testdb.Eventually(t, func() error {
		if testdb.QueryText(t, f.url, "SHOW synchronous_standby_names") != "nobody" {
			return errors.New("the setting is not in effect")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	end, err := f.source.Head(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	f.upTo(st, end)
}
