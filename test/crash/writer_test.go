package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// writerApplication is the application_name of the writer's connections.
const writerApplication = "crash_writer"

// statementLimit is how long a statement of the writer may take. Its own transactions are the only ones it has to wait
// for, and the longest of them takes a few seconds.
const statementLimit = "60s"

// writer changes the source from many connections until it is stopped.
type writer struct {
	group        *errgroup.Group
	halt         context.CancelFunc
	transactions atomic.Int64 // committed
	own          atomic.Int64 // ended by a deadlock or a duplicate key that its own connections made
}

// startWriter starts workers that together begin rate transactions a second. The test's end stops them.
func startWriter(t testing.TB, url string, seed uint64, workers, rate int) *writer {
	t.Helper()
	ctx, halt := context.WithCancel(context.Background())
	w := &writer{group: new(errgroup.Group), halt: halt}
	pace := time.Second * time.Duration(workers) / time.Duration(rate)
	for i := range workers {
		conn, err := connectWriter(url)
		if err != nil {
			halt()
			t.Fatal(err)
		}
		k := &worker{writer: w, conn: conn, rng: rand.New(rand.NewPCG(seed, uint64(i)+1)), name: fmt.Sprintf("w%d", i)}
		w.group.Go(func() error { return k.run(ctx, pace) })
	}
	t.Cleanup(func() { halt(); _ = w.group.Wait() })
	return w
}

func connectWriter(url string) (*pgx.Conn, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	c.RuntimeParams["application_name"] = writerApplication
	c.RuntimeParams["statement_timeout"] = statementLimit
	return pgx.ConnectConfig(context.Background(), c)
}

// stop lets the workers finish what they have begun and returns the first error that was not of their own making.
func (w *writer) stop() error {
	w.halt()
	return w.group.Wait()
}

// worker is one connection of the writer. The context that stops it is looked at between transactions only, so that no
// statement is cancelled.
type worker struct {
	*writer
	conn *pgx.Conn
	rng  *rand.Rand
	name string // unique, for prepared transactions
	made int    // prepared transactions
}

func (k *worker) run(ctx context.Context, pace time.Duration) error {
	defer k.conn.Close(context.Background())
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := k.transaction(ctx); err != nil {
			return fmt.Errorf("writer: %w", err)
		}
	}
}

// transaction runs one random transaction to its end.
func (k *worker) transaction(ctx context.Context) error {
	shapes := []struct {
		weight int
		make   func() []string
	}{
		{400, k.single},
		{200, k.several},
		{80, k.rolledBack},
		{80, k.savepoints},
		{10, k.manySubtransactions},
		{80, k.swap},
		{10, k.clear},
		{10, k.large},
		{60, k.rebirth},
		{60, k.prepared},
		{3, k.long}, // more of them would hold up the others, whose rows they lock
	}
	total := 0
	for _, s := range shapes {
		total += s.weight
	}
	n := k.rng.IntN(total)
	for _, s := range shapes {
		if n -= s.weight; n < 0 {
			return k.execute(ctx, s.make())
		}
	}
	return nil
}

// pause stands between the statements of a long transaction: the connection stays idle in it for a while.
const pause = "pause"

func (k *worker) execute(ctx context.Context, statements []string) error {
	for _, s := range statements {
		if s == pause {
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(k.rng.IntN(1500)) * time.Millisecond):
			}
			continue
		}
		_, err := k.conn.PgConn().Exec(context.Background(), s).ReadAll()
		if err == nil {
			continue
		}
		if !isOwn(err) {
			return fmt.Errorf("%w, in %.200s", err, s)
		}
		k.own.Add(1)
		_, err = k.conn.Exec(context.Background(), "ROLLBACK")
		return err
	}
	k.transactions.Add(1)
	return nil
}

// isOwn reports whether the writer's connections did this to each other: a deadlock, a row moved to another partition
// under an update, or two that make one key.
func isOwn(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"40P01", "40001", "23505"}, e.Code)
}

func (k *worker) single() []string { return []string{k.change()} }

func (k *worker) changes(most int) []string {
	var s []string
	for range k.rng.IntN(most) + 1 {
		s = append(s, k.change())
	}
	return s
}

func (k *worker) several() []string {
	return slices.Concat([]string{"BEGIN"}, k.changes(12), []string{"COMMIT"})
}

func (k *worker) rolledBack() []string {
	return slices.Concat([]string{"BEGIN"}, k.changes(8), []string{"ROLLBACK"})
}

func (k *worker) savepoints() []string {
	return slices.Concat([]string{"BEGIN"}, k.changes(3), []string{"SAVEPOINT a"}, k.changes(3),
		[]string{"SAVEPOINT b"}, k.changes(3), []string{"ROLLBACK TO a"}, k.changes(3),
		[]string{"RELEASE a", "SAVEPOINT c"}, k.changes(2), []string{"RELEASE c", "COMMIT"})
}

// manySubtransactions has more than the 64 that the server keeps in shared memory.
func (k *worker) manySubtransactions() []string {
	s := []string{"BEGIN"}
	for i := range 70 {
		end := "RELEASE s"
		if i%3 == 0 {
			end = "ROLLBACK TO s"
		}
		s = append(s, "SAVEPOINT s", k.change(), end)
	}
	return append(s, "COMMIT")
}

// swap exchanges the keys of two or three rows, by way of negative ones.
func (k *worker) swap() []string {
	ids := []int{number(k.rng), number(k.rng), number(k.rng)}[:2+k.rng.IntN(2)]
	slices.Sort(ids)
	ids = slices.Compact(ids)
	s := []string{"BEGIN"}
	move := func(from, to int) {
		s = append(s, fmt.Sprintf("UPDATE swapped SET id = %d, v = nextval('version') WHERE id = %d", to, from))
	}
	for _, id := range ids {
		move(id, -id)
	}
	for i, id := range ids {
		move(-id, ids[(i+1)%len(ids)])
	}
	return append(s, "COMMIT")
}

func (k *worker) clear() []string {
	t := tableNamed("cleared")
	return []string{"BEGIN", t.insert(k.rng), "TRUNCATE cleared", t.insert(k.rng), t.insert(k.rng), "COMMIT"}
}

// large touches more rows than a batch holds.
func (k *worker) large() []string {
	from := number(k.rng)
	switch k.rng.IntN(3) {
	case 0:
		return []string{fmt.Sprintf(`INSERT INTO keyed SELECT i, nextval('version'), 'large', repeat(md5(i::text), i %% 90)
			FROM generate_series(%d, %d) i ON CONFLICT DO NOTHING`, from, from+keys/2)}
	case 1:
		return []string{fmt.Sprintf("UPDATE identified SET v = nextval('version') WHERE id BETWEEN %d AND %d", from, from+keys/3)}
	default:
		return []string{fmt.Sprintf("DELETE FROM keyed WHERE id BETWEEN %d AND %d", from, from+keys/8)}
	}
}

// rebirth deletes a row and makes another under its key, in one transaction.
func (k *worker) rebirth() []string {
	t := &tables[k.rng.IntN(len(tables))]
	key := t.make(k.rng)
	return []string{"BEGIN", t.deleteOf(key), t.insertOf(k.rng, key), t.updateOf(k.rng, key), "COMMIT"}
}

func (k *worker) prepared() []string {
	k.made++
	id := fmt.Sprintf("'%s_%d'", k.name, k.made)
	end := "COMMIT PREPARED "
	if k.rng.IntN(4) == 0 {
		end = "ROLLBACK PREPARED "
	}
	// A statement that fails before PREPARE leaves nothing; nothing stands between PREPARE and its end that could fail.
	return slices.Concat([]string{"BEGIN"}, k.changes(4), []string{"PREPARE TRANSACTION " + id, end + id})
}

func (k *worker) long() []string {
	return slices.Concat([]string{"BEGIN"}, k.changes(3), []string{pause}, k.changes(3), []string{pause}, k.changes(2), []string{"COMMIT"})
}

// change is a random statement on a random table.
func (k *worker) change() string {
	t := &tables[k.rng.IntN(len(tables))]
	key := t.make(k.rng)
	switch n := k.rng.IntN(100); {
	case n < 25:
		return t.insertOf(k.rng, key)
	case n < 35:
		return t.upsertOf(k.rng, key)
	case n < 70:
		return t.updateOf(k.rng, key)
	case n < 82:
		return t.moveOf(key, t.make(k.rng))
	default:
		return t.deleteOf(key)
	}
}

func tableNamed(name string) *table {
	return &tables[slices.IndexFunc(tables, func(t table) bool { return t.name == name })]
}

func (t *table) insert(r *rand.Rand) string { return t.insertOf(r, t.make(r)) }

func (t *table) insertOf(r *rand.Rand, key []string) string {
	return fmt.Sprintf("INSERT INTO %s (%s, v, note, big) VALUES (%s, nextval('version'), %s, %s) ON CONFLICT DO NOTHING",
		t.name, strings.Join(t.keyNames(), ", "), literals(key), note(r), big(r))
}

func (t *table) upsertOf(r *rand.Rand, key []string) string {
	names := strings.Join(t.keyNames(), ", ")
	return fmt.Sprintf(`INSERT INTO %s (%s, v, note, big) VALUES (%s, nextval('version'), %s, %s)
		ON CONFLICT (%s) DO UPDATE SET v = excluded.v, note = excluded.note`, t.name, names, literals(key), note(r), big(r), names)
}

// updateOf mostly leaves the large column as it is.
func (t *table) updateOf(r *rand.Rand, key []string) string {
	set := "note = " + note(r)
	if r.IntN(4) == 0 {
		set = "big = " + big(r)
	}
	return fmt.Sprintf("UPDATE %s SET v = nextval('version'), %s WHERE %s", t.name, set, t.where(key))
}

// moveOf gives a row another key and leaves the rest, large values included.
func (t *table) moveOf(from, to []string) string {
	return fmt.Sprintf("UPDATE %s SET (%s, v) = ROW (%s, nextval('version')) WHERE %s AND NOT EXISTS (SELECT FROM %s WHERE %s)",
		t.name, strings.Join(t.keyNames(), ", "), t.typed(to), t.where(from), t.name, t.where(to))
}

func (t *table) deleteOf(key []string) string {
	return fmt.Sprintf("DELETE FROM %s WHERE %s", t.name, t.where(key))
}

func (t *table) where(key []string) string {
	parts := make([]string, len(key))
	for i, name := range t.keyNames() {
		parts[i] = name + " = " + literals(key[i:i+1])
	}
	return strings.Join(parts, " AND ")
}

// typed is the key with its types named, which a row constructor needs.
func (t *table) typed(key []string) string {
	parts := make([]string, len(key))
	for i := range key {
		_, native, _ := strings.Cut(t.key[i], " ")
		parts[i] = literals(key[i:i+1]) + "::" + native
	}
	return strings.Join(parts, ", ")
}

func literals(values []string) string {
	parts := make([]string, len(values))
	for i, v := range values {
		parts[i] = "'" + strings.ReplaceAll(v, "'", "''") + "'"
	}
	return strings.Join(parts, ", ")
}

func note(r *rand.Rand) string {
	return []string{"NULL", "''", "'null'", `'\N'`, "'Ünï 😀'", "'" + strings.Repeat("n", r.IntN(80)) + "'"}[r.IntN(6)]
}

// big is stored out of line from 2 kB on. Half of the values are that long.
func big(r *rand.Rand) string {
	switch r.IntN(8) {
	case 0:
		return "NULL"
	case 1, 2, 3:
		return "'small'"
	default:
		return fmt.Sprintf("repeat('%08x', %d)", r.Uint32(), 260+r.IntN(300))
	}
}
