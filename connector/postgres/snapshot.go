package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Limits of what one Next returns.
const (
	copyRowsMax  = 16 << 10
	copyBytesMax = 4 << 20 // a larger row comes alone
)

// closeTimeout bounds the farewell to a connection that is given up.
const closeTimeout = 5 * time.Second

// snapshot is a view of one table: an exported snapshot, which a connection holds open that does nothing else. It holds
// no lock on the table.
type snapshot struct {
	source *Source
	table  *catalogTable
	layout layout
	holder *pgxpool.Conn
	id     string // of the exported snapshot
	token  string
}

// layout is where a table's rows are and in which form. As long as it stays the same, a snapshot taken before shows the
// rows as they were: a statement that rewrites or empties the table makes new files, in which an older snapshot finds
// nothing.
type layout struct {
	columns []layoutColumn
	leaves  []layoutLeaf // the table itself, if it is not partitioned
}

type layoutColumn struct {
	table  uint32
	number uint16
	typ    uint32
	mod    int32
}

type layoutLeaf struct {
	oid  uint32
	name schema.Name
	file uint32
}

func (l layout) equal(other layout) bool {
	return slices.Equal(l.columns, other.columns) && slices.Equal(l.leaves, other.leaves)
}

// Snapshot waits for the open transactions that wrote to t and takes a view of it.
func (s *Source) Snapshot(ctx context.Context, t *schema.Table) (connector.Snapshot, error) {
	const op = "take a snapshot"
	oid, err := tableOID(t.ID)
	if err != nil || t.Refused != "" {
		return nil, &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: op, Table: t.Name, Err: errors.Join(errors.New("not a table that can be copied"), err)}
	}
	if err := s.waitForWriters(ctx, t, oid); err != nil {
		return nil, err
	}
	// The layout is read on both sides of the moment that the snapshot shows: if it is the same, it is the snapshot's.
	before, err := s.readLayout(ctx, t, oid)
	if err != nil {
		return nil, copyError(err, op, t.Name)
	}
	now, err := s.catalogTable(ctx, oid)
	if err != nil {
		return nil, err
	}
	// The columns were described by name: it must be the table's own, before and now.
	if now == nil || now.Refused != "" || before.columns[0].table != oid || !sameVersion(now.Table, t) {
		return nil, viewLost(op, t.Name, "the table is no longer what it was")
	}
	now.Table = t
	snap := &snapshot{source: s, table: now, layout: before}
	after := before
	if err = snap.open(ctx); err == nil {
		after, err = s.readLayout(ctx, t, oid)
	}
	if err == nil && !before.equal(after) {
		err = viewLost(op, t.Name, "the table was altered while the snapshot was taken")
	}
	if err != nil {
		snap.release()
		return nil, copyError(err, op, t.Name)
	}
	return snap, nil
}

// sameVersion compares what a copy of t depends on: all that the catalog says of the table, but that its key may be another
// one of those that it has.
func sameVersion(now, t *schema.Table) bool {
	same := *t
	if hasKey(now, t.Key) {
		same.Key = now.Key
	}
	return now.Describe() == same.Describe()
}

// sameColumns reports whether rows of t are read as those of the table as it is now, wherever they are stored.
func sameColumns(now, t *schema.Table) bool {
	known := *t
	known.Columns = readColumns(t)
	if hasKey(now, t.Key) {
		known.Key = now.Key
	}
	d := schema.Compare(&known, now)
	return d.Empty()
}

// readColumns are the columns of t as the catalog has them, without what the engine marked.
func readColumns(t *schema.Table) []schema.Column {
	columns := slices.Clone(t.Columns)
	for i := range columns {
		columns[i].Unread = false
	}
	return columns
}

// hasKey reports whether t has a unique index over the columns of a key, all sent with each update and delete.
func hasKey(t *schema.Table, key []int) bool {
	key = slices.Sorted(slices.Values(key))
	return slices.ContainsFunc(t.Unique, func(u schema.UniqueKey) bool {
		return u.Unfit == "" && slices.Equal(slices.Sorted(slices.Values(u.Columns)), key)
	})
}

func viewLost(op string, table schema.Name, why string) error {
	return &connector.Error{Kind: connector.ViewLost, System: sourceSystem, Op: op, Table: table, Err: errors.New(why)}
}

// copyError is wrapError for statements about a table that may have been altered meanwhile: where it was, or where we do
// not wait for that, another snapshot is needed.
func copyError(err error, op string, table schema.Name) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code {
		case "42P01", "42703", "42704", "3F000", // no such table, column, object, schema
			"42809", "55P03", "72000": // another kind of relation, lock not available, snapshot too old
			return &connector.Error{Kind: connector.ViewLost, System: sourceSystem, Op: op, Table: table, Err: serverError{pg}}
		}
	}
	return wrapError(err, sourceSystem, op, table)
}

// begin opens a transaction whose one view of the data can be exported or imported. From version 17 on a setting could
// end it before its time.
func (s *Source) begin() string {
	sql := "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
	if s.server.version >= 170000 {
		sql += "; SET LOCAL transaction_timeout = 0"
	}
	return sql
}

func (n *snapshot) open(ctx context.Context) error {
	select {
	case n.source.views <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	var err error
	if n.holder, err = n.source.pool.Acquire(ctx); err != nil {
		<-n.source.views
		return err
	}
	if _, err := n.holder.Conn().PgConn().Exec(ctx, n.source.begin()).ReadAll(); err != nil {
		return err
	}
	var seen, insert string
	if err := n.holder.QueryRow(ctx, `SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::text`).Scan(&n.id, &seen); err != nil {
		return err
	}
	// In a statement of its own: the log's end must not be read before the snapshot is taken.
	if err := n.holder.QueryRow(ctx, `SELECT pg_catalog.pg_current_wal_insert_lsn()::text`).Scan(&insert); err != nil {
		return err
	}
	v, err := parseSnapshot(seen)
	if err != nil {
		return err
	}
	v.system = n.source.server.system
	if v.insert, err = ParseLSN(insert); err != nil {
		return err
	}
	n.token = v.token()
	return nil
}

// Token returns what Contains needs.
func (n *snapshot) Token() string { return n.token }

// Layout names columns and files, and the table's place in a publication that was given: what a copy that goes on needs of the
// log must be there without a hole. Ranges of pages mean nothing under another snapshot, because rows move.
func (n *snapshot) Layout() string {
	if len(n.table.Key) == 0 || !n.comparable() {
		return ""
	}
	if by := n.table.storage.Published; len(by) > 0 {
		return fmt.Sprintf("%s published %v", n.layoutHash(), by)
	}
	return n.layoutHash()
}

// Close lets the view go.
func (n *snapshot) Close() error {
	n.release()
	return nil
}

func (n *snapshot) release() {
	if n.holder != nil {
		giveBack(n.holder)
		n.holder = nil
		<-n.source.views
	}
}

// giveBack ends what a connection is doing and returns it to its pool, or closes it if it does not answer.
func giveBack(conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout) // Close has no context of its own
	defer cancel()
	if _, err := conn.Conn().PgConn().Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
		_ = conn.Conn().Close(ctx) // the error before is what matters, and the pool drops a closed connection
	}
	conn.Release()
}

// readLayout reads the layout as it is now, not as a snapshot shows it.
func (s *Source) readLayout(ctx context.Context, t *schema.Table, oid uint32) (layout, error) {
	var l layout
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return l, err
	}
	defer conn.Release()
	if l.columns, err = describeColumns(ctx, conn, t.Name, t); err != nil {
		return l, err
	}
	rows, err := conn.Query(ctx, leafTree+`
		SELECT c.oid, n.nspname::text, c.relname::text, pg_catalog.pg_relation_filenode(c.oid)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind <> 'p' AND (c.oid = ANY($1::oid[]) OR c.oid IN (SELECT member FROM tree)) ORDER BY c.oid`, []uint32{oid})
	if err != nil {
		return l, err
	}
	l.leaves, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (f layoutLeaf, err error) {
		var file *uint32
		err = row.Scan(&f.oid, &f.name.Schema, &f.name.Table, &file)
		if file != nil {
			f.file = *file
		}
		return f, err
	})
	return l, err
}

// describeColumns asks the server's parser what the copied columns of t mean now, in the table called name: it answers
// with each column's table, number and type, the table's first. Within a transaction the table stays locked after that
// (ACCESS SHARE), so the answer holds until its end.
func describeColumns(ctx context.Context, conn *pgxpool.Conn, name schema.Name, t *schema.Table) ([]layoutColumn, error) {
	var b strings.Builder
	b.WriteString("SELECT tableoid")
	for _, c := range t.Columns {
		if c.Generated == "" {
			b.WriteString(", " + quoteIdent(c.Name))
		}
	}
	b.WriteString(" FROM ONLY " + quoteName(name))
	statement, err := conn.Conn().PgConn().Prepare(ctx, "", b.String(), nil)
	if err != nil {
		return nil, err
	}
	columns := make([]layoutColumn, len(statement.Fields))
	for i, f := range statement.Fields {
		columns[i] = layoutColumn{f.TableOID, f.TableAttributeNumber, f.DataTypeOID, f.TypeModifier}
	}
	return columns, nil
}

// Read copies one chunk in a transaction of its own, as short as that takes, so that nobody waits long behind it.
func (n *snapshot) Read(ctx context.Context, c connector.Chunk) (connector.RowReader, error) {
	const op = "copy rows"
	name := n.table.Name
	spec, err := n.parseChunk(c)
	if err != nil {
		return nil, err
	}
	conn, err := n.source.pool.Acquire(ctx)
	if err != nil {
		return nil, wrapError(err, sourceSystem, op, name)
	}
	r := &copyReader{conn: conn, table: n.table.Table, decoder: newCopyDecoder(n.table.Table, n.wires(), n.source.env.Alloc)}
	if err = n.importInto(ctx, conn); err == nil {
		err = n.prove(ctx, conn, spec.leaf)
	}
	if err == nil {
		err = r.start(n.copySQL(spec))
	}
	if err != nil {
		r.release()
		return nil, copyError(err, op, name)
	}
	r.decoder.rows.reserve(int(min(max(c.Rows, 0), copyRowsMax)))
	return r, nil
}

func (n *snapshot) wires() []wireForm {
	wires := make([]wireForm, len(n.table.types))
	for i, t := range n.table.types {
		wires[i] = t.wire
	}
	return wires
}

// importInto begins a transaction that sees what the snapshot sees. Servers differ in how they say that it is gone.
func (n *snapshot) importInto(ctx context.Context, conn *pgxpool.Conn) error {
	const op = "use the snapshot"
	_, err := conn.Conn().PgConn().Exec(ctx, n.source.begin()+"; SET TRANSACTION SNAPSHOT "+quoteLiteral(n.id)).ReadAll()
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "22023" || pg.Code == "42704" || pg.Code == "55000") {
		return &connector.Error{Kind: connector.ViewLost, System: sourceSystem, Op: op, Table: n.table.Name, Err: serverError{pg}}
	}
	return wrapError(err, sourceSystem, op, n.table.Name)
}

// prove shows, before the rows are read, that the leaf and its columns are those of the snapshot, and locks them as they
// are until the end of the transaction: whatever changes a table's file, columns, name or place among the partitions
// waits for readers. What it asks is answered by the present catalog, not by the transaction's snapshot.
func (n *snapshot) prove(ctx context.Context, conn *pgxpool.Conn, leaf layoutLeaf) error {
	lost := viewLost("copy rows", n.table.Name, "the table was altered, rewritten or emptied since the snapshot")
	columns, err := describeColumns(ctx, conn, n.table.Name, n.table.Table)
	if err != nil {
		return err
	}
	if !slices.Equal(columns, n.layout.columns) {
		return lost
	}
	if leaf.oid != n.table.oid {
		own, err := describeColumns(ctx, conn, leaf.name, n.table.Table)
		if err != nil {
			return err
		}
		if own[0].table != leaf.oid {
			return lost
		}
	}
	var file, root *uint32
	err = conn.QueryRow(ctx, `SELECT pg_catalog.pg_relation_filenode($1::oid::pg_catalog.regclass), pg_catalog.pg_partition_root($1::oid::pg_catalog.regclass)::oid`,
		leaf.oid).Scan(&file, &root)
	if err != nil {
		return err
	}
	if file == nil || *file != leaf.file || leaf.oid != n.table.oid && (root == nil || *root != n.table.oid) {
		return lost
	}
	return nil
}

// copySQL selects a chunk's rows, from its leaf alone.
func (n *snapshot) copySQL(c chunkSpec) string {
	return n.selectSQL("ONLY "+quoteName(c.leaf.name), c.where(n.table))
}

// selectSQL selects the columns that are sent, each in its wire form.
func (n *snapshot) selectSQL(from, where string) string {
	var b strings.Builder
	b.WriteString("COPY (SELECT ")
	comma := ""
	for i, col := range n.table.Columns {
		if col.Generated != "" || col.Unread {
			continue
		}
		b.WriteString(comma)
		comma = ", "
		if t := n.table.types[i]; t.wire == wireText {
			b.WriteString(outputText(t, col.Name))
		} else {
			b.WriteString(quoteIdent(col.Name))
		}
	}
	b.WriteString(" FROM " + from)
	if where != "" {
		b.WriteString(" WHERE " + where)
	}
	b.WriteString(") TO STDOUT (FORMAT binary)")
	return b.String()
}

// outputText calls the type's output function, as pgoutput does. A cast to text is not the same for every type: it strips
// the padding of character(n) and adds the mask to an inet.
func outputText(t resolved, column string) string {
	return "pg_catalog.textin(" + t.output + "(" + quoteIdent(column) + "))"
}

// copyReader reads the rows of a running COPY. It implements connector.RowReader. The connection's socket is its buffer:
// a caller that is slow holds the server back.
type copyReader struct {
	conn    *pgxpool.Conn
	table   *schema.Table
	decoder *copyDecoder
	running bool // the server is sending
	whole   bool // all rows were received

	undivided bool // the first Next returns all rows
}

func (r *copyReader) start(sql string) error {
	frontend := r.conn.Conn().PgConn().Frontend()
	frontend.SendQuery(&pgproto3.Query{String: sql})
	if err := frontend.Flush(); err != nil {
		return err
	}
	r.running = true
	return nil
}

// Next returns up to copyRowsMax rows or copyBytesMax bytes.
func (r *copyReader) Next(ctx context.Context) (*connector.Rows, error) {
	if r.whole {
		return nil, io.EOF
	}
	if !r.running {
		return nil, &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: "copy rows", Table: r.table.Name, Err: errors.New("read after an error")}
	}
	netConn := r.conn.Conn().PgConn().Conn()
	stop := context.AfterFunc(ctx, func() { _ = netConn.SetDeadline(time.Unix(1, 0)) }) // wakes a Receive that waits
	err := r.receive()
	if !stop() {
		err = context.Cause(ctx) // the deadline has made the connection useless
	}
	if err != nil {
		r.abandon()
		return nil, err
	}
	if r.whole && r.decoder.count == 0 {
		return nil, io.EOF
	}
	return r.decoder.take(), nil
}

// receive reads messages until the batch is full or the COPY is over.
func (r *copyReader) receive() error {
	const op = "copy rows"
	frontend := r.conn.Conn().PgConn().Frontend()
	var failure error
	for {
		message, err := frontend.Receive()
		if err != nil {
			return wrapError(err, sourceSystem, op, r.table.Name)
		}
		switch m := message.(type) {
		case *pgproto3.CopyData:
			if err := r.decoder.decode(m.Data); err != nil {
				return decodeError(r.table, op, "", err)
			}
			if !r.undivided && (r.decoder.count >= copyRowsMax || r.decoder.bytes >= copyBytesMax) {
				return nil
			}
		case *pgproto3.ErrorResponse:
			failure = copyError(pgconn.ErrorResponseToPgError(m), op, r.table.Name)
		case *pgproto3.ReadyForQuery:
			if failure != nil {
				return failure
			}
			if !r.decoder.ended {
				return decodeError(r.table, op, "", errCopyForm)
			}
			r.running, r.whole = false, true
			return nil
		}
	}
}

// abandon throws away what was decoded and closes a connection that may still be sending.
func (r *copyReader) abandon() {
	r.decoder.rows.clear()
	if r.running {
		r.running = false
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = r.conn.Conn().Close(ctx) // there is nothing left to save
	}
}

// Cursor returns "": a COPY has no order, so a chunk is read from its beginning.
func (r *copyReader) Cursor() string { return "" }

// Close ends the COPY and gives the connection back. It may be called again.
func (r *copyReader) Close() error {
	r.release()
	return nil
}

func (r *copyReader) release() {
	if r.conn == nil {
		return
	}
	r.abandon()
	if r.conn.Conn().IsClosed() {
		r.conn.Release()
	} else {
		giveBack(r.conn)
	}
	r.conn = nil
}

// String writes what identifies the rows' place, for a chunk's Spec.
func (l layout) String() string {
	var b strings.Builder
	for _, c := range l.columns {
		fmt.Fprintf(&b, "%d.%d.%d.%d ", c.table, c.number, c.typ, c.mod)
	}
	for _, f := range l.leaves {
		b.WriteString(strconv.FormatUint(uint64(f.oid), 10) + "@" + strconv.FormatUint(uint64(f.file), 10) + " ")
	}
	return b.String()
}
