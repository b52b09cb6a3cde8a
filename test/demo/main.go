// Command demo shows a mirror at work: it starts a throw-away PostgreSQL server with two databases, fills one with a small
// shop, lets a writer change it all the time, mirrors it into the other with the built command, and compares the two.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	showFor      = 12 * time.Second       // how long changes are watched
	showEvery    = 2 * time.Second        // between two lines of the display
	probeEvery   = 100 * time.Millisecond // between two measurements of the delay
	writePause   = 2 * time.Millisecond   // between two transactions of the writer
	catchUpLimit = 30 * time.Second
	stopLimit    = 30 * time.Second
)

// shopTables are the mirrored tables; the shop has one more, without a key.
var shopTables = []string{"customers", "products", "orders", "order_lines"}

//go:embed shop.sql
var shopSQL string

func main() {
	program := flag.String("sluice", "bin/sluice", "the built command")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *program); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, program string) error {
	program, err := filepath.Abs(program) // it runs in another folder
	if err != nil {
		return err
	}
	say("Starting a throw-away PostgreSQL server and filling the shop.")
	server, err := testdb.StartPostgres()
	if err != nil {
		return err
	}
	defer server.Remove()
	if err := prepare(ctx, server); err != nil {
		return err
	}
	shop := server.URL("shop")
	mirror := server.URL("mirror")
	dir, err := os.MkdirTemp("", "sluice-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	config, err := process.Config{Name: "demo", Source: shop, Sink: mirror, Mirror: `tables: {include: ["public.*"]}`}.Write(dir)
	if err != nil {
		return err
	}
	if err := showPlan(dir, program, config); err != nil {
		return err
	}
	say("Now `sluice run`, while a writer places, changes and cancels orders.")
	p, err := process.Start(dir, program, "run", config)
	if err != nil {
		return err
	}
	defer p.Kill()
	if err := watch(ctx, p, shop, mirror); err != nil {
		return fmt.Errorf("%w; the log ends with:\n%s", err, p.Log.Tail(20))
	}
	say("Ctrl-C: it writes down what it has begun and ends.")
	code, err := p.Stop(stopLimit)
	if err != nil {
		return err
	}
	fmt.Println(indent(strings.Join(p.Out.All(), "\n")))
	fmt.Printf("  (exit code %d: it ran, and one table is refused for want of a key)\n", code)
	return nil
}

func say(text string) { fmt.Printf("\n── %s\n", text) }

func indent(text string) string {
	return strings.ReplaceAll("  "+strings.ReplaceAll(text, "\n", "\n  "), "  \n", "\n")
}

func prepare(ctx context.Context, server *testdb.Postgres) error {
	err := exec(ctx, server.URL("postgres"), "CREATE DATABASE shop", "CREATE DATABASE mirror")
	if err != nil {
		return err
	}
	return exec(ctx, server.URL("shop"), shopSQL)
}

func exec(ctx context.Context, url string, scripts ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, s := range scripts {
		if _, err := conn.PgConn().Exec(ctx, s).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

func showPlan(dir, program, config string) error {
	say("The config file, and what `sluice plan` makes of it:")
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	fmt.Println(indent(strings.TrimSpace(string(text))))
	fmt.Println()
	p, err := process.Start(dir, program, "plan", config)
	if err != nil {
		return err
	}
	if _, err := p.Wait(catchUpLimit); err != nil {
		p.Kill()
		return err
	}
	if p.Out.Count() == 0 {
		return errors.New(p.Log.Tail(20))
	}
	fmt.Println(indent(strings.Join(p.Out.All(), "\n")))
	return nil
}

// watch shows both sides while the writer writes, then stops it and waits until they are equal.
func watch(ctx context.Context, p *process.Process, shop, mirror string) error {
	var written atomic.Int64
	writing, stopWriting := context.WithTimeout(ctx, showFor)
	defer stopWriting()
	var delays []time.Duration
	g, watching := errgroup.WithContext(ctx)
	g.Go(func() error { return write(watching, writing, shop, &written) })
	g.Go(func() error { return show(watching, writing, p, shop, mirror, &written) })
	g.Go(func() (err error) {
		delays, err = probe(watching, writing, shop, mirror)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if len(delays) > 0 {
		slices.Sort(delays)
		fmt.Printf("\n  From commit to visible in the mirror, %d times measured: half within %v, the slowest %v.\n",
			len(delays), delays[len(delays)/2].Round(time.Millisecond), delays[len(delays)-1].Round(time.Millisecond))
	}
	say("The writer has stopped. Comparing the two databases, value by value.")
	return compare(ctx, shop, mirror)
}

// write changes the shop, one small transaction after the other, until writing ends.
func write(ctx, writing context.Context, shop string, written *atomic.Int64) error {
	conn, err := pgx.Connect(ctx, shop)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for i := 0; writing.Err() == nil; i++ {
		if _, err := conn.PgConn().Exec(ctx, changes[i%len(changes)]).ReadAll(); err != nil {
			return err
		}
		written.Add(1)
		sleep(writing, writePause)
	}
	return nil
}

// changes are what the writer does in turn; several statements in one string are one transaction.
var changes = []string{
	`INSERT INTO orders (customer) SELECT 1 + floor(random() * 20000)::int;
	 INSERT INTO order_lines SELECT max(id), 'P-00042', 2, 42.99 FROM orders;
	 UPDATE products SET stock = stock - 2 WHERE sku = 'P-00042'`,
	`UPDATE orders SET state = 'paid' WHERE id = (SELECT max(id) FROM orders)`,
	`UPDATE customers SET details = jsonb_build_object('seen', now()) WHERE id = 1 + floor(random() * 20000)::int`,
	`UPDATE products SET price = price + 0.01, tags = tags[1:2] || text 'on sale' WHERE sku = 'P-' || lpad((1 + floor(random() * 2000))::text, 5, '0')`,
	`DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)`,
	`INSERT INTO visits VALUES (now(), '/')`,
}

// show prints how many rows both sides hold.
func show(ctx, writing context.Context, p *process.Process, shop, mirror string, written *atomic.Int64) error {
	fmt.Printf("\n  %-8s %14s", "seconds", "transactions")
	for _, t := range shopTables {
		fmt.Printf(" %22s", t)
	}
	fmt.Println("   rows in the shop / in the mirror")
	started := time.Now()
	for writing.Err() == nil {
		sleep(writing, showEvery)
		select {
		case <-p.Exited():
			return errors.New("sluice ended by itself")
		default:
		}
		there, err := countRows(ctx, shop)
		if err != nil {
			return err
		}
		here, err := countRows(ctx, mirror)
		if err != nil {
			return err
		}
		fmt.Printf("  %-8.0f %14d", time.Since(started).Seconds(), written.Load())
		for i := range shopTables {
			fmt.Printf(" %22s", there[i]+" / "+here[i])
		}
		fmt.Println()
	}
	return nil
}

// countRows counts the rows of the shop's tables, "-" for one that is not there.
func countRows(ctx context.Context, url string) ([]string, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	counts := make([]string, len(shopTables))
	for i, t := range shopTables {
		counts[i] = "-"
		var there bool
		if err := conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", "public."+t).Scan(&there); err != nil {
			return nil, err
		}
		if !there {
			continue
		}
		var n int64
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM public."+t).Scan(&n); err != nil {
			return nil, err
		}
		counts[i] = fmt.Sprint(n)
	}
	return counts, nil
}

// probe measures how long a change takes to show in the mirror, once the customers are there.
func probe(ctx, writing context.Context, shop, mirror string) ([]time.Duration, error) {
	source, err := pgx.Connect(ctx, shop)
	if err != nil {
		return nil, err
	}
	defer source.Close(ctx)
	sink, err := pgx.Connect(ctx, mirror)
	if err != nil {
		return nil, err
	}
	defer sink.Close(ctx)
	var delays []time.Duration
	for i := 0; writing.Err() == nil; i++ {
		sleep(writing, probeEvery)
		name := fmt.Sprint("probe ", i)
		if _, err := source.Exec(ctx, "UPDATE customers SET name = $1 WHERE id = 1", name); err != nil {
			return nil, err
		}
		committed := time.Now()
		for writing.Err() == nil {
			var seen string
			err := sink.QueryRow(ctx, "SELECT name FROM public.customers WHERE id = 1").Scan(&seen)
			if err == nil && seen == name {
				if i > 0 { // the first one waits for the copy
					delays = append(delays, time.Since(committed))
				}
				break
			}
			sleep(writing, time.Millisecond)
		}
	}
	return delays, nil
}

// compare waits until every table is the same on both sides.
func compare(ctx context.Context, shop, mirror string) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpLimit)
	defer cancel()
	pair, err := testdb.NewPair(ctx, shop, mirror)
	if err != nil {
		return err
	}
	defer pair.Close()
	for _, t := range shopTables {
		for {
			difference, err := pair.Compare(ctx, "public."+t, "public."+t)
			if err != nil {
				return err
			}
			if difference == "" {
				fmt.Printf("  %-12s equal\n", t)
				break
			}
			if !sleep(ctx, 200*time.Millisecond) {
				return fmt.Errorf("table %s is not equal:\n%s", t, difference)
			}
		}
	}
	return nil
}

// sleep waits, or ends early with ctx and reports false.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
