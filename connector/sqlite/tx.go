package sqlite

import (
	"context"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// tx is a transaction on the write connection. It implements connector.Tx. It locks the file when there is something to do,
// so that nobody waits for what is still being read from the source.
type tx struct {
	sink   *Sink
	w      *writer
	begun  bool
	failed bool // a statement has failed; SQLite may have rolled back by itself
	ended  bool
}

// Begin waits for the write connection; see connector.Sink.
func (s *Sink) Begin(ctx context.Context) (connector.Tx, error) {
	x, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (s *Sink) begin(ctx context.Context) (*tx, error) {
	w, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	if w.conn == nil {
		s.writer <- w
		if w.claim.mirror == "" {
			return nil, fault(connector.Internal, "begin", schema.Name{}, "", "the mirror was not claimed")
		}
		return nil, fault(connector.Unavailable, "begin", schema.Name{}, "", "the connection was given up after a fault")
	}
	return &tx{sink: s, w: w}, nil
}

// do runs a part of the transaction, behind its beginning if need be. Its statements end with ctx.
func (x *tx) do(ctx context.Context, op string, table schema.Name, f func(*writer) error) error {
	switch {
	case x.ended:
		return fault(connector.Internal, op, table, "", "the transaction has ended")
	case x.failed:
		return fault(connector.Internal, op, table, "", "a statement of the transaction failed before")
	case ctx.Err() != nil:
		return ctx.Err()
	}
	err := x.start(ctx)
	if err == nil {
		x.w.conn.SetInterrupt(ctx.Done())
		err = f(x.w)
		x.w.conn.SetInterrupt(nil)
	}
	x.failed = err != nil
	if ctx.Err() != nil && sqlite.ErrCode(err) == sqlite.ResultInterrupt {
		return ctx.Err()
	}
	return wrapError(err, op, table)
}

// start locks the file and proves that the mirror is ours.
func (x *tx) start(ctx context.Context) error {
	if x.begun {
		return nil
	}
	if x.w.replaced(x.sink.path) {
		return fault(connector.Unavailable, "write", schema.Name{}, "", "the file %s was removed or replaced", x.sink.path)
	}
	if err := x.w.begin(ctx, x.sink.busyWait); err != nil {
		return err
	}
	x.begun = true
	return x.w.check()
}

// Commit ends the transaction; see connector.Tx. The connection is given back whatever it returns.
func (x *tx) Commit(ctx context.Context, entries map[string]string) error {
	if x.ended {
		return fault(connector.Internal, "commit", schema.Name{}, "", "the transaction has ended")
	}
	defer x.Rollback()
	return x.do(ctx, "commit", schema.Name{}, func(w *writer) error {
		if err := w.keepEntries(entries); err != nil {
			return err
		}
		s, err := w.prepare("COMMIT")
		if err == nil {
			err = run(s)
		}
		if err != nil {
			return err
		}
		for k, v := range entries {
			if v == "" {
				delete(w.entries, k)
			} else {
				w.entries[k] = v
			}
		}
		return nil
	})
}

// keepEntries changes entries if each of them is still as it was left: anything else means that a commit took effect
// unnoticed, or that somebody changed them.
func (w *writer) keepEntries(entries map[string]string) error {
	for key, value := range entries {
		old := w.entries[key]
		var err error
		switch {
		case old == "" && value == "":
			continue
		case old == "":
			err = w.changeOne("INSERT INTO sluice_entry (mirror, key, value) VALUES (?, ?, ?)", w.claim.mirror, key, value)
		case value == "":
			err = w.changeOne("DELETE FROM sluice_entry WHERE mirror = ? AND key = ? AND value = ?", w.claim.mirror, key, old)
		default:
			err = w.changeOne("UPDATE sluice_entry SET value = ?4 WHERE mirror = ?1 AND key = ?2 AND value = ?3", w.claim.mirror, key, old, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changeOne runs a statement that must change one row of sluice_entry.
func (w *writer) changeOne(sql string, values ...string) error {
	s, err := w.prepare(sql)
	if err != nil {
		return err
	}
	for i, v := range values {
		s.BindText(i+1, v)
	}
	err = run(s)
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultConstraint || err == nil && w.conn.Changes() != 1 {
		return errFenced()
	}
	return err
}

// Rollback undoes the transaction unless it has ended and gives the connection back.
func (x *tx) Rollback() error {
	if x.ended {
		return nil
	}
	x.ended = true
	x.w.rollback()
	if len(x.w.statements) > maxStatements {
		x.w.forget()
	}
	x.sink.writer <- x.w
	return nil
}
