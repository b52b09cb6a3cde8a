package main

import (
	"context"
	_ "embed"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/internal/testdb"
)

// shopTables are the tables of the shop when the mirror begins; newTable comes while it runs.
var shopTables = []string{"customers", "addresses", "suppliers", "products", "stock", "orders", "order_lines", "payments"}

const newTable = "reviews"

//go:embed shop.sql
var shopSQL string

//go:embed reviews.sql
var reviewsSQL string

// shop is a database with a writer that changes it.
type shop struct {
	url     string
	written atomic.Int64 // transactions
	reviews atomic.Bool  // the new table is there
}

// openShop makes and fills the database.
func openShop(ctx context.Context, server *testdb.Postgres) (*shop, error) {
	if err := exec(ctx, server.URL("postgres"), "CREATE DATABASE shop"); err != nil {
		return nil, err
	}
	s := &shop{url: server.URL("shop")}
	return s, exec(ctx, s.url, shopSQL)
}

// addTable makes and fills the new table, which the writer changes too from then on.
func (s *shop) addTable(ctx context.Context) error {
	if err := exec(ctx, s.url, reviewsSQL); err != nil {
		return err
	}
	s.reviews.Store(true)
	return nil
}

func exec(ctx context.Context, url, script string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.PgConn().Exec(ctx, script).ReadAll()
	return err
}

// write changes the shop, one small transaction after the other, until writing ends.
func (s *shop) write(ctx, writing context.Context) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for i := 0; writing.Err() == nil; i++ {
		turn := changes
		if s.reviews.Load() {
			turn = append(slices.Clone(changes), reviewChange)
		}
		if _, err := conn.PgConn().Exec(ctx, turn[i%len(turn)]).ReadAll(); err != nil {
			return err
		}
		s.written.Add(1)
		sleep(writing, writePause)
	}
	return nil
}

// writePause is what the writer rests between two transactions.
const writePause = 2 * time.Millisecond

// changes are what the writer does in turn; several statements in one string are one transaction.
var changes = []string{
	`UPDATE suppliers SET active = NOT active WHERE id = 1 + floor(random() * 100)::int`,
	`INSERT INTO orders (customer) SELECT 1 + floor(random() * 20000)::int;
	 INSERT INTO order_lines SELECT max(id), 'P-00042', 2, 42.99 FROM orders;
	 UPDATE stock SET quantity = quantity - 2 WHERE sku = 'P-00042' AND shelf = 1`,
	`UPDATE orders SET state = 'paid' WHERE id = (SELECT max(id) FROM orders);
	 INSERT INTO payments SELECT max(id), 85.98, now() FROM orders ON CONFLICT DO NOTHING`,
	`UPDATE customers SET details = jsonb_build_object('seen', now()) WHERE id = 1 + floor(random() * 20000)::int`,
	`UPDATE addresses SET street = floor(random() * 200) || ' Short Street' WHERE customer = 1 + floor(random() * 20000)::int`,
	`UPDATE products SET price = price + 0.01, tags = tags[1:2] || text 'on sale' WHERE sku = 'P-' || lpad((1 + floor(random() * 2000))::text, 5, '0')`,
	`DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)`,
}

const reviewChange = `INSERT INTO reviews (sku, stars, text) VALUES ('P-00042', 5, 'as good as ever');
	DELETE FROM reviews WHERE id = (SELECT min(id) FROM reviews)`
