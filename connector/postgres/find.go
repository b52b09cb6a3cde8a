package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

var _ connector.Finder = (*Source)(nil)

// Find reads the rows with these keys as they are now; see connector.Finder. Like a chunk it is one short transaction.
func (s *Source) Find(ctx context.Context, t *schema.Table, keys arrow.RecordBatch) (*connector.Rows, error) {
	const op = "read rows by key"
	rows, err := s.find(ctx, t, keys)
	if isState(err, "55P03") { // it is worth waiting for, other than for a copy
		return nil, wrapError(err, sourceSystem, op, t.Name)
	}
	return rows, copyError(err, op, t.Name)
}

func (s *Source) find(ctx context.Context, t *schema.Table, keys arrow.RecordBatch) (*connector.Rows, error) {
	const op = "read rows by key"
	oid, err := tableOID(t.ID)
	if err == nil && (len(t.Key) == 0 || int(keys.NumCols()) != len(t.Key)) {
		err = errors.New("not the key of the table")
	}
	if err != nil {
		return nil, &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: op, Table: t.Name, Err: err}
	}
	described, now, err := s.describe(ctx, t, oid)
	if err != nil {
		return nil, err
	}
	where, err := keyCondition(now, keys)
	if err != nil {
		return nil, &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: op, Table: t.Name, Err: err}
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	view := &snapshot{source: s, table: now}
	r := &copyReader{conn: conn, table: t, decoder: newCopyDecoder(t, view.wires(), s.env.Alloc), undivided: true}
	defer r.Close()
	if _, err := conn.Conn().PgConn().Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY").ReadAll(); err != nil {
		return nil, err
	}
	columns, err := describeColumns(ctx, conn, t.Name, t)
	if err == nil && !slices.Equal(columns, described) {
		err = viewLost(op, t.Name, "the table is no longer what it was")
	}
	if err != nil {
		return nil, err
	}
	from := quoteName(t.Name) // with its leaves
	if len(now.leaves) == 0 {
		from = "ONLY " + from
	}
	if err := r.start(view.selectSQL(from, where)); err != nil {
		return nil, err
	}
	rows, err := r.Next(ctx)
	if errors.Is(err, io.EOF) {
		return r.decoder.take(), nil
	}
	return rows, err
}

// describe reads a table's columns and its definition, which belong together if the columns are the same when they are
// read under a lock later on.
func (s *Source) describe(ctx context.Context, t *schema.Table, oid uint32) ([]layoutColumn, *catalogTable, error) {
	l, err := s.readLayout(ctx, t, oid)
	if err != nil {
		return nil, nil, err
	}
	now, err := s.catalogTable(ctx, oid)
	if err != nil {
		return nil, nil, err
	}
	// The columns were described by name: it must be the table's own.
	if now == nil || now.Refused != "" || now.Name != t.Name || l.columns[0].table != oid || !sameColumns(now.Table, t) {
		return nil, nil, viewLost("read rows by key", t.Name, "the table is no longer what it was")
	}
	now.Table = t
	return l.columns, now, nil
}

// keyCondition is true for the rows with these keys.
func keyCondition(t *catalogTable, keys arrow.RecordBatch) (string, error) {
	if keys.NumRows() == 0 {
		return "false", nil
	}
	write := make([]appendValue, len(t.Key))
	for n, c := range t.Key {
		var err error
		if write[n], err = bindText(t.Columns[c].Type, sinkType{}, keys.Column(n)); err != nil {
			return "", fmt.Errorf("column %s: %w", t.Columns[c].Name, err)
		}
	}
	list := make([]string, keys.NumRows())
	key := make([]string, len(t.Key))
	for i := range list {
		for n := range key {
			text, err := write[n](nil, i)
			if err != nil {
				return "", fmt.Errorf("column %s: %w", t.Columns[t.Key[n]].Name, err)
			}
			key[n] = string(text)
		}
		list[i] = keyLiteral(t, key)
	}
	return keyList(t) + " IN (" + strings.Join(list, ", ") + ")", nil
}
