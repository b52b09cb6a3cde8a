package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/testdb"
)

// connect opens a session of an application at the source.
func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func mustExec(t testing.TB, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotWaitsForTransactionsThatWrote(t *testing.T) {
	for name, c := range map[string]struct{ begin, end string }{
		"plain":                  {"BEGIN; INSERT INTO t VALUES (1)", "COMMIT"},
		"prepared":               {"BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'p1'", "COMMIT PREPARED 'p1'"},
		"by leaf":                {"BEGIN; INSERT INTO t_1 VALUES (1)", "COMMIT"},
		"lock alone":             {"BEGIN; LOCK TABLE t IN EXCLUSIVE MODE", "INSERT INTO t VALUES (1); COMMIT"},
		"prepared while waiting": {"BEGIN; INSERT INTO t VALUES (1)", "PREPARE TRANSACTION 'p2'|COMMIT PREPARED 'p2'"},
	} {
		t.Run(name, func(t *testing.T) {
			src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE t_1 PARTITION OF t DEFAULT`)
			table := discover(t, src)["public.t"]
			app := connect(t, url)
			mustExec(t, app, c.begin)

			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			_, err := src.Snapshot(ctx, table)
			who := fmt.Sprintf("pid %d", app.PgConn().PID())
			if name == "prepared" {
				who = `prepared transaction "p1"`
			}
			if connector.KindOf(err) != connector.Conflict || !strings.Contains(err.Error(), who+" since ") {
				t.Fatalf("while a writer is open: %v; want a conflict that names %s", err, who)
			}

			done := make(chan error, 1)
			go func() {
				var err error
				for sql := range strings.SplitSeq(c.end, "|") { // a prepared transaction is not committed in the same query
					_, failed := app.PgConn().Exec(context.Background(), sql).ReadAll()
					err = errors.Join(err, failed)
				}
				done <- err
			}()
			snap := mustSnapshot(t, src, table)
			defer snap.Close()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := countRowsOf(t, snap, 1000); got != 1 {
				t.Errorf("the snapshot sees %d rows, want the one that was waited for", got)
			}
		})
	}
}

func TestSnapshotDoesNotWaitForReadersAndVacuum(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)`)
	app := connect(t, url)
	mustExec(t, app, "BEGIN; SELECT * FROM t; LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE; INSERT INTO other VALUES (1)")
	mustSnapshot(t, src, discover(t, src)["public.t"]).Close()
}

func TestOldServersWaitForEveryTransaction(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)`)
	src.server.version = 150012
	app := connect(t, url)
	mustExec(t, app, "BEGIN; INSERT INTO other VALUES (1)")
	table := discover(t, src)["public.t"]
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := src.Snapshot(ctx, table); connector.KindOf(err) != connector.Conflict {
		t.Errorf("%v, want a conflict", err)
	}
	for version, want := range map[int]bool{140017: true, 140018: false, 150013: false, 160008: true, 170004: true, 170005: false, 180000: false} {
		if keepsOldPublication(version) != want {
			t.Errorf("version %d: %v", version, !want)
		}
	}
}

// countRowsOf reads all chunks and fails if a chunk fails.
func countRowsOf(t testing.TB, snap connector.Snapshot, chunkRows int64) int {
	t.Helper()
	chunks, err := snap.Chunks(t.Context(), chunkRows)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range chunks {
		batches, err := readChunk(t, snap, c)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			n += int(b.NumRows())
		}
	}
	return n
}

// TestChunksHoldEachRowOnce reads tables of every kind in pieces while rows move, and compares with what was there when
// the snapshot was taken. The first column of each table tells its rows apart.
// inSchema makes a schema and returns the connection string for statements in it.
func inSchema(t testing.TB, server, name string) string {
	t.Helper()
	testdb.Exec(t, server, "CREATE SCHEMA "+quoteIdent(name))
	t.Cleanup(func() { testdb.Exec(t, server, "DROP SCHEMA "+quoteIdent(name)+" CASCADE") })
	return server + "&search_path=" + url.PathEscape(quoteIdent(name))
}

func TestChunksHoldEachRowOnce(t *testing.T) {
	const rows = 8000
	src, server := openTestSource(t, "")
	fill := func(table, expr string) string {
		return fmt.Sprintf("INSERT INTO %s SELECT %s FROM generate_series(1, %d) n;", table, expr, rows)
	}
	for name, setup := range map[string]string{
		"key":                      `CREATE TABLE t (id int PRIMARY KEY, v text);` + fill("t", "n, md5(n::text)"),
		"analyzed":                 `CREATE TABLE t (id int PRIMARY KEY, v text);` + fill("t", "n, md5(n::text)") + "ANALYZE t;",
		"skewed":                   `CREATE TABLE t (id bigint PRIMARY KEY, v text);` + fill("t", "(n::bigint ^ 4)::bigint, md5(n::text)"),
		"composite":                `CREATE TABLE t (b int, v text, a "char", PRIMARY KEY (a, b));` + fill("t", "n, md5(n::text), CASE WHEN n % 10 = 0 THEN 'x' ELSE 'y' END"),
		"without key":              `CREATE TABLE t (id int, v text);` + fill("t", "n, md5(n::text)"),
		"partitioned":              `CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY HASH (id); CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER 0); CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER 1); CREATE TABLE t_2 PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER 2) PARTITION BY RANGE (id); CREATE TABLE "t 2.a" PARTITION OF t_2 FOR VALUES FROM (0) TO (500); CREATE TABLE t_2b PARTITION OF t_2 DEFAULT;` + fill("t", "n, md5(n::text)"),
		"partitioned, without key": `CREATE TABLE t (id int, v text) PARTITION BY RANGE (id); CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (5000); CREATE TABLE t_1 (v text, dropped int, id int); ALTER TABLE t_1 DROP dropped; ALTER TABLE t ATTACH PARTITION t_1 DEFAULT;` + fill("t", "n, md5(n::text)"),
		"text":                     `CREATE TABLE t (id text PRIMARY KEY, v text);` + fill("t", `md5(n::text) || '\''é', 'x'`),
		"ICU":                      `CREATE TABLE t (id text COLLATE "de-x-icu" PRIMARY KEY, v text);` + fill("t", "CASE WHEN n % 2 = 0 THEN 'a' ELSE 'B' END || md5(n::text), 'x'"),
		"nondeterministic":         `CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false); CREATE TABLE t (id text COLLATE ci PRIMARY KEY, v text);` + fill("t", "CASE WHEN n % 2 = 0 THEN 'A' ELSE 'b' END || n, 'x'"),
		"numeric":                  `CREATE TABLE t (id numeric PRIMARY KEY, v text);` + fill("t", "CASE n WHEN 1 THEN 'NaN' WHEN 2 THEN '-Infinity' ELSE n / 3.0 END, 'x'"),
		"uuid":                     `CREATE TABLE t (id uuid PRIMARY KEY, v text);` + fill("t", "gen_random_uuid(), 'x'"),
		"enum and time":            `CREATE TYPE mood AS ENUM ('z', 'a'); CREATE TABLE t (id timestamptz, m mood, PRIMARY KEY (m, id));` + fill("t", "'2000-01-01'::timestamptz + n * interval '1 s', (ARRAY['z', 'a'])[1 + n % 2]::mood"),
		"character(n)":             `CREATE TABLE t (id char(12) PRIMARY KEY);` + fill("t", "n"),
		"array":                    `CREATE TABLE t (id int[] PRIMARY KEY);` + fill("t", "ARRAY[n % 7, n]"),
		"extension":                `CREATE EXTENSION citext; CREATE TABLE t (id citext PRIMARY KEY);` + fill("t", "CASE WHEN n % 2 = 0 THEN 'A' ELSE 'b' END || n"),
		"no order":                 `CREATE EXTENSION hstore; CREATE TABLE t (id hstore PRIMARY KEY);` + fill("t", "hstore('k', n::text)"),
		"full":                     `CREATE TABLE t (id int NOT NULL UNIQUE, v text); ALTER TABLE t REPLICA IDENTITY FULL;` + fill("t", "n, 'x'"),
		"parent":                   `CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE child (more int) INHERITS (t); INSERT INTO child SELECT n, 'c', n FROM generate_series(1, 8000) n;` + fill("t", "n, 'x'"),
	} {
		t.Run(name, func(t *testing.T) {
			url := inSchema(t, server, name)
			testdb.Exec(t, url, setup)
			table := discover(t, src)[name+".t"]
			snap := mustSnapshot(t, src, table)
			defer snap.Close()
			testdb.Exec(t, url, "UPDATE t SET "+quoteIdent(table.Columns[0].Name)+" = "+quoteIdent(table.Columns[0].Name)+"; DELETE FROM t WHERE random() < 0.3")
			chunks, err := snap.Chunks(t.Context(), rows/7)
			if err != nil {
				t.Fatal(err)
			}
			if single := name == "extension" || name == "no order"; single != (len(chunks) == 1) || len(chunks) > 30 {
				t.Errorf("%d chunks", len(chunks))
			}
			seen, largest := map[string]int{}, 0
			for _, c := range chunks {
				batches, err := readChunk(t, snap, c)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				for _, b := range batches {
					for i := range int(b.NumRows()) {
						seen[b.Column(0).ValueStr(i)]++
					}
					n += int(b.NumRows())
				}
				largest = max(largest, n)
			}
			for v, n := range seen {
				if n != 1 {
					t.Fatalf("%s was read %d times", v, n)
				}
			}
			if len(seen) != rows {
				t.Errorf("%d rows, want %d", len(seen), rows)
			}
			t.Logf("%d chunks, the largest of %d rows", len(chunks), largest)
		})
	}
}

func TestChunksOfKeysGoOnUnderALaterSnapshot(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, 'x' FROM generate_series(1, 20000) n;
		CREATE TABLE bare (id int, v text); INSERT INTO bare SELECT n, 'x' FROM generate_series(1, 20000) n`)
	for name, want := range map[string]string{"public.t": "", "public.bare": "view_lost"} {
		table := discover(t, src)[name]
		first := mustSnapshot(t, src, table)
		chunks, err := first.Chunks(t.Context(), 5000)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		testdb.Exec(t, url, "UPDATE "+name+" SET v = 'y'")
		second := mustSnapshot(t, src, table)
		defer second.Close()
		got := ""
		n := 0
		for _, c := range chunks {
			batches, err := readChunk(t, second, c)
			if err != nil {
				got = connector.KindOf(err).String()
				break
			}
			for _, b := range batches {
				n += int(b.NumRows())
			}
		}
		if got != want || want == "" && n != 20000 {
			t.Errorf("%s: %q after %d rows, want %q", name, got, n, want)
		}
	}
}

// TestAlteredTableLosesTheView protects from copies that end early without an error: an older snapshot finds nothing in
// the new file of a table that was rewritten.
func TestAlteredTableLosesTheView(t *testing.T) {
	src, server := openTestSource(t, "")
	const keyed = `CREATE TABLE t (id int PRIMARY KEY, v text, w int); CREATE TABLE x (id int PRIMARY KEY, v text, w int);`
	const partitioned = `CREATE TABLE t (id int PRIMARY KEY, v text, w int) PARTITION BY RANGE (id); CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (10000); CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (10000) TO (90000);`
	for name, c := range map[string]struct{ setup, alter string }{
		"TRUNCATE":            {keyed, "TRUNCATE t"},
		"ALTER TYPE USING":    {keyed, "ALTER TABLE t ALTER v TYPE text USING upper(v)"},
		"VACUUM FULL":         {keyed, "VACUUM FULL t"},
		"DROP":                {keyed, "DROP TABLE t"},
		"column exchanged":    {keyed, "ALTER TABLE t DROP v; ALTER TABLE t ADD v text"},
		"column names swap":   {keyed, "ALTER TABLE t RENAME v TO z; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME z TO w"},
		"table names swap":    {keyed, "ALTER TABLE t RENAME TO z; ALTER TABLE x RENAME TO t"},
		"RENAME COLUMN":       {keyed, "ALTER TABLE t RENAME v TO z"},
		"without key":         {"CREATE TABLE t (id int, v text, w int);", "VACUUM FULL t"},
		"DETACH":              {partitioned, "ALTER TABLE t DETACH PARTITION t_1"},
		"TRUNCATE of a leaf":  {partitioned, "TRUNCATE t_1"},
		"DROP of a leaf":      {partitioned, "DROP TABLE t_1"},
		"leaf exchanged":      {partitioned, "ALTER TABLE t DETACH PARTITION t_1; ALTER TABLE t_1 RENAME TO old; CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (10000) TO (90000)"},
		"rewrite of a parent": {partitioned, "ALTER TABLE t ALTER w TYPE bigint"},
	} {
		t.Run(name, func(t *testing.T) {
			url := inSchema(t, server, name)
			testdb.Exec(t, url, c.setup+"INSERT INTO t SELECT n, 'x', n FROM generate_series(1, 20000) n")
			table := discover(t, src)[name+".t"]
			snap := mustSnapshot(t, src, table)
			defer snap.Close()
			chunks, err := snap.Chunks(t.Context(), 5000)
			if err != nil || len(chunks) < 2 {
				t.Fatalf("%d chunks, %v", len(chunks), err)
			}
			if _, err := readChunk(t, snap, chunks[0]); err != nil {
				t.Fatal(err)
			}
			testdb.Exec(t, url, c.alter)
			if _, err := readChunk(t, snap, chunks[len(chunks)-1]); connector.KindOf(err) != connector.ViewLost {
				t.Errorf("after %s: %v, want the view to be lost", name, err)
			}
		})
	}
}

func TestSnapshotOfAnOldVersionIsRefused(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE x (id int PRIMARY KEY, v text)`)
	for _, alter := range []string{
		"ALTER TABLE t RENAME v TO z", "ALTER TABLE t DROP z; ALTER TABLE t ADD z text", "ALTER TABLE t ALTER z TYPE bytea USING NULL",
		"ALTER TABLE t RENAME TO y; ALTER TABLE x RENAME TO t", "DROP TABLE t",
	} {
		table := discover(t, src)["public.t"]
		testdb.Exec(t, url, alter)
		snap, err := src.Snapshot(t.Context(), table)
		if err == nil {
			snap.Close()
		}
		if connector.KindOf(err) != connector.ViewLost {
			t.Errorf("after %s: %v", alter, err)
		}
	}
}

func TestSnapshotIsOfTheTableAndNotOfAnotherWithItsName(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE made_new (id int PRIMARY KEY)`)
	table := discover(t, src)["public.t"]
	testdb.Exec(t, url, "ALTER TABLE t RENAME TO made_old; ALTER TABLE made_new RENAME TO t")
	snap, err := src.Snapshot(t.Context(), table)
	if err == nil {
		snap.Close()
	}
	if connector.KindOf(err) != connector.ViewLost {
		t.Errorf("error %v", err)
	}
}

func TestReadHoldsAlterationsBackForOneChunkOnly(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n`)
	snap := mustSnapshot(t, src, discover(t, src)["public.t"])
	defer snap.Close()
	r, err := snap.Read(t.Context(), mustChunks(t, snap, 1_000_000)[0])
	if err != nil {
		t.Fatal(err)
	}
	app := connect(t, url)
	mustExec(t, app, "SET lock_timeout = '10ms'")
	if _, err := app.Exec(t.Context(), "TRUNCATE t"); err == nil {
		t.Error("the table was emptied while a chunk was read")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	testdb.Eventually(t, func() error { _, err := app.Exec(t.Context(), "TRUNCATE t"); return err })
}

func mustChunks(t testing.TB, snap connector.Snapshot, rows int64) []connector.Chunk {
	t.Helper()
	chunks, err := snap.Chunks(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return chunks
}

func TestLockedTableLosesTheView(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY)`)
	snap := mustSnapshot(t, src, discover(t, src)["public.t"]).(*snapshot)
	defer snap.Close()
	chunks := mustChunks(t, snap, 10)
	config := src.pool.Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "20ms"
	impatient, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer impatient.Close()
	snap.source = &Source{config: src.config, env: src.env, pool: impatient, server: src.server, views: src.views}
	app := connect(t, url)
	mustExec(t, app, "BEGIN; LOCK TABLE t")
	if _, err := readChunk(t, snap, chunks[0]); connector.KindOf(err) != connector.ViewLost {
		t.Errorf("%v, want the view to be lost", err)
	}
}

func TestEndedHolderLosesTheView(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)`)
	snap := mustSnapshot(t, src, discover(t, src)["public.t"]).(*snapshot)
	defer snap.Close()
	chunks := mustChunks(t, snap, 10)
	pid := snap.holder.Conn().PgConn().PID()
	testdb.Exec(t, url, fmt.Sprintf("SELECT pg_terminate_backend(%d, 10000)", pid))
	if _, err := readChunk(t, snap, chunks[0]); connector.KindOf(err) != connector.ViewLost {
		t.Errorf("%v, want the view to be lost", err)
	}
}

func TestRowSecurityIsAnErrorAndNotFewerRows(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2);
		ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id = 1);
		DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'limited') THEN CREATE ROLE limited LOGIN; END IF; END $$;
		GRANT SELECT ON t TO limited; GRANT pg_monitor TO limited`)
	t.Cleanup(func() { testdb.Exec(t, url, "DROP OWNED BY limited") })
	src.Close()
	src, err := OpenSource(t.Context(), &Config{URL: strings.Replace(url, "postgres@", "limited@", 1), Connections: 4}, connector.Env{Mirror: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	if _, err := src.Snapshot(t.Context(), discover(t, src)["public.t"]); connector.KindOf(err) != connector.Setup {
		t.Errorf("%v; want an error that a person must act on", err)
	}
}

func TestLargeRowsPass(t *testing.T) {
	src, _ := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY, a text, b bytea); ALTER TABLE t ALTER a SET STORAGE EXTERNAL;
		INSERT INTO t SELECT n, repeat('x', 20000000), decode(repeat('00', 5000000), 'hex') FROM generate_series(1, 3) n`)
	snap := mustSnapshot(t, src, discover(t, src)["public.t"])
	defer snap.Close()
	batches, err := readChunk(t, snap, mustChunks(t, snap, 1000)[0])
	if err != nil || len(batches) != 3 {
		t.Fatalf("%d batches, %v", len(batches), err)
	}
	for _, b := range batches {
		if len(b.Column(1).(*array.String).Value(0)) != 20_000_000 || len(b.Column(2).(*array.Binary).Value(0)) != 5_000_000 {
			t.Error("a value is short")
		}
	}
}

func TestCanceledReadFreesItsConnection(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT n, repeat('x', 1000) FROM generate_series(1, 50000) n`)
	snap := mustSnapshot(t, src, discover(t, src)["public.t"])
	defer snap.Close()
	r, err := snap.Read(t.Context(), mustChunks(t, snap, 1_000_000)[0])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rows, err := r.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	rows.Release()
	cancel()
	if _, err := r.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the end of the context", err)
	}
	if _, err := r.Next(t.Context()); err == nil || err == io.EOF {
		t.Errorf("a broken reader goes on: %v", err)
	}
	r.Close()
	testdb.Eventually(t, func() error {
		if n := testdb.QueryText(t, url, "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass"); n != "0" {
			return fmt.Errorf("%s locks are left", n)
		}
		return nil
	})
	if n := src.pool.Stat().AcquiredConns(); n != 1 {
		t.Errorf("%d connections in use, want the snapshot's alone", n)
	}
}

func TestTableWithoutColumnsIsCopied(t *testing.T) {
	src, _ := openTestSource(t, `CREATE TABLE t (); INSERT INTO t SELECT FROM generate_series(1, 5);
		CREATE TABLE g (a int GENERATED ALWAYS AS (1) STORED, id int PRIMARY KEY); INSERT INTO g VALUES (DEFAULT, 1)`)
	tables := discover(t, src)
	if b := copyTable(t, src, tables["public.t"]); b.NumRows() != 5 {
		t.Errorf("%d rows", b.NumRows())
	}
	if b := copyTable(t, src, tables["public.g"]); b.NumRows() != 1 || !b.Column(0).IsNull(0) || b.Column(1).IsNull(0) {
		t.Errorf("%v", b)
	}
}

func TestContainsFollowsTheSnapshotAcrossEpochs(t *testing.T) {
	const epoch = uint64(1) << 32
	v := view{system: 7, insert: 0x100, xmin: 5*epoch - 3, xmax: 5*epoch + 10, active: []uint64{5*epoch - 2, 5*epoch + 4}}
	src := &Source{}
	for _, c := range []struct {
		xid  uint32
		lsn  LSN
		want bool
	}{
		{1<<32 - 4, 0x50, true},  // before xmin, in the epoch before
		{1<<32 - 2, 0x50, false}, // active
		{1<<32 - 1, 0x50, true},
		{4, 0x50, false}, // active
		{9, 0x50, true},
		{10, 0x50, false}, // xmax
		{1 << 30, 0x50, false},
		{9, 0x100, true}, {9, 0x101, false}, // the id was used again, later in the log
	} {
		commit := connector.Commit{Tag: uint64(c.xid), Position: position{system: 7, timeline: 1, lsn: c.lsn}.Position()}
		if got, err := src.Contains(v.token(), commit); err != nil || got != c.want {
			t.Errorf("xid %d at %v: %v, %v; want %v", c.xid, c.lsn, got, err, c.want)
		}
	}
	first := view{system: 7, insert: 0x100, xmin: 700, xmax: 710}
	if !first.sees(709) || first.sees(4_000_000_000) {
		t.Error("in the first epoch there is none before")
	}
	other := connector.Commit{Position: position{system: 8, timeline: 1}.Position()}
	if _, err := src.Contains(v.token(), other); connector.KindOf(err) != connector.Gap {
		t.Errorf("another server: %v", err)
	}
	for _, bad := range []string{"", "2 7 0/1 1:1:", "1 7 0/1 1:1", "1 x 0/1 1:1:", "1 7 0 1:1:", "1 7 0/1 1:1:x"} {
		if _, err := src.Contains(bad, connector.Commit{Position: position{}.Position()}); err == nil {
			t.Errorf("token %q passes", bad)
		}
	}
}

func TestTokenHoldsWhatTheSnapshotSees(t *testing.T) {
	src, url := openTestSource(t, `CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)`)
	app := connect(t, url)
	xid := func(sql string) connector.Commit {
		var id uint64
		mustExec(t, app, sql)
		if err := app.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::int8").Scan(&id); err != nil {
			t.Fatal(err)
		}
		return connector.Commit{Tag: id & 0xffffffff, Position: position{system: src.server.system, timeline: 1, lsn: 1}.Position()}
	}
	committed := xid("BEGIN; INSERT INTO t VALUES (1)")
	mustExec(t, app, "COMMIT")
	open := xid("BEGIN; INSERT INTO other VALUES (1)")
	snap := mustSnapshot(t, src, discover(t, src)["public.t"])
	defer snap.Close()
	for i, c := range []struct {
		commit connector.Commit
		want   bool
	}{{committed, true}, {open, false}} {
		if got, err := src.Contains(snap.Token(), c.commit); err != nil || got != c.want {
			t.Errorf("%d: %v, %v; want %v", i, got, err, c.want)
		}
	}
}
