package sqlite

import (
	"context"
	"crypto/rand"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// busyWait is how long a transaction waits to lock the file while another program has it locked.
const busyWait = 10 * time.Second

var _ connector.Sink = (*Sink)(nil)

// Sink writes to one database file. It implements connector.Sink; all its methods are safe for concurrent use.
//
// SQLite knows one writer at a time, so there is one connection that writes, and who wants to write waits for it. A
// transaction locks the file against writers before it checks the mirror's epoch: until it ends, no Claim of another
// process can raise that, and after a Claim no earlier claimant gets past the check.
type Sink struct {
	path     string
	env      connector.Env
	busyWait time.Duration
	writer   chan *writer // holds the write connection while nobody has it
	reader   chan *reader // likewise

	mu      sync.Mutex
	claim   claim             // as Plan knows it
	planned map[string]string // destinations by their folded names, as they were planned
}

// OpenSink returns a sink for the file that config names. It opens the file when first used. The Sink is to be closed.
func OpenSink(config *Config, e connector.Env) (*Sink, error) {
	path := config.Path
	if !filepath.IsAbs(path) {
		path = filepath.Join(e.Dir, path)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fault(connector.Setup, "open the file", schema.Name{}, "write an absolute path", "%w", err)
	}
	s := &Sink{
		path: path, env: e, busyWait: busyWait, planned: map[string]string{},
		writer: make(chan *writer, 1), reader: make(chan *reader, 1),
	}
	s.writer <- &writer{}
	s.reader <- &reader{}
	return s, nil
}

// Traits says that rows and entries are one transaction, kept in the file, and that there is one at a time.
func (s *Sink) Traits() connector.Traits {
	return connector.Traits{Atomic: true, Keeps: true, Writers: 1}
}

// Close closes the file. It waits for the transaction under way.
func (s *Sink) Close() error {
	r := <-s.reader
	r.close()
	s.reader <- r
	w := <-s.writer
	defer func() { s.writer <- w }()
	return wrapError(w.close(), "close the file", schema.Name{})
}

// take returns the write connection, for the caller to put back into s.writer.
func (s *Sink) take(ctx context.Context) (*writer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case w := <-s.writer:
		return w, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Claim takes the mirror over; see connector.Sink.
func (s *Sink) Claim(ctx context.Context, mirror, id string) (*connector.Claim, error) {
	const op = "claim the mirror"
	w, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { s.writer <- w }()
	if err := w.open(ctx, s.path, s.busyWait); err != nil {
		return nil, wrapError(err, "open "+s.path, schema.Name{})
	}
	if err := w.begin(ctx, s.busyWait); err != nil {
		return nil, wrapError(err, op, schema.Name{})
	}
	made, taken, err := w.takeMirror(mirror, id)
	if err == nil {
		err = w.exec("COMMIT")
	}
	if err != nil {
		w.rollback()
		return nil, wrapError(err, op, schema.Name{})
	}
	w.claim, w.entries = taken, maps.Clone(made.Entries)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claim = taken
	return made, nil
}

// takeMirror makes what we keep in the file where it is missing, raises the mirror's epoch and reads its entries.
func (w *writer) takeMirror(mirror, id string) (*connector.Claim, claim, error) {
	const op = "claim the mirror"
	c := claim{mirror: mirror, epoch: 1}
	made := &connector.Claim{ID: id, New: true, Entries: map[string]string{}}
	if err := w.setUp(); err != nil {
		return nil, c, err
	}
	var found string
	if err := w.query("SELECT id, epoch FROM sluice_mirror WHERE name = ?", func(s *sqlite.Stmt) {
		made.New, found, c.epoch = false, s.ColumnText(0), s.ColumnInt64(1)+1
	}, mirror); err != nil {
		return nil, c, err
	}
	switch {
	case made.New && id == "":
		made.ID = rand.Text()
	case made.New:
	case id != "" && id != found:
		return nil, c, fault(connector.Setup, op, schema.Name{}, "give this mirror another name, or another file",
			"another mirror named %q already writes here", mirror)
	default:
		made.ID = found
	}
	c.id = made.ID
	err := w.exec(`INSERT INTO sluice_mirror (name, id, epoch, format, claimed_at) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, claimed_at = excluded.claimed_at`,
		mirror, c.id, c.epoch, sinkFormat, time.Now().UTC().Format(time.DateTime)+"+00")
	if err == nil {
		err = w.query("SELECT key, value FROM sluice_entry WHERE mirror = ?", func(s *sqlite.Stmt) {
			made.Entries[s.ColumnText(0)] = s.ColumnText(1)
		}, mirror)
	}
	return made, c, err
}

// sinkFormat is the version of the tables below. A file that holds a newer one is refused.
const sinkFormat = 1

// sinkTables are what we keep beside the mirrored tables: what mirrors there are, their entries, and who owns which
// destination. The copy of an owner is the number of the copy last ready in the destination, 0 if none; loading is that
// of the copy under way; foreign_made says that somebody else has made the destination.
var sinkTables = []string{
	`CREATE TABLE IF NOT EXISTS sluice_mirror (name TEXT NOT NULL PRIMARY KEY, id TEXT NOT NULL, epoch INTEGER NOT NULL,
		format INTEGER NOT NULL, claimed_at TEXT NOT NULL) STRICT`,
	`CREATE TABLE IF NOT EXISTS sluice_entry (mirror TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
		PRIMARY KEY (mirror, key)) STRICT, WITHOUT ROWID`,
	`CREATE TABLE IF NOT EXISTS sluice_owner ("table" TEXT NOT NULL COLLATE NOCASE PRIMARY KEY, mirror TEXT NOT NULL,
		source TEXT NOT NULL, copy INTEGER NOT NULL DEFAULT 0, loading INTEGER NOT NULL DEFAULT 0,
		foreign_made INTEGER NOT NULL DEFAULT 0) STRICT`,
}

func (w *writer) setUp() error {
	for _, sql := range sinkTables {
		if err := w.exec(sql); err != nil {
			return err
		}
	}
	complete, err := queryText(w.conn, "SELECT 1 FROM pragma_table_info('sluice_owner') WHERE name = 'foreign_made'")
	if err == nil && complete == "" {
		err = w.exec("ALTER TABLE sluice_owner ADD COLUMN foreign_made INTEGER NOT NULL DEFAULT 0")
	}
	if err != nil {
		return err
	}
	newer, err := queryText(w.conn, "SELECT max(format) FROM sluice_mirror HAVING max(format) > ?", sinkFormat)
	if err == nil && newer != "" {
		return fault(connector.Setup, "claim the mirror", schema.Name{}, "use the newer version of sluice for this file",
			"the tables sluice_... have format %s, newer than %d", newer, sinkFormat)
	}
	return err
}

// begin locks the file for a transaction.
func (w *writer) begin(ctx context.Context, wait time.Duration) error {
	return w.bounded(ctx, wait, func() error { return w.exec("BEGIN IMMEDIATE") })
}

// rollback ends the transaction, if there is one; a connection that cannot do even that is given up.
func (w *writer) rollback() {
	if w.conn == nil || w.conn.AutocommitEnabled() {
		return
	}
	w.conn.SetInterrupt(nil)
	if w.exec("ROLLBACK") != nil {
		_ = w.close() // the first error has been reported
	}
}

// check proves, inside a transaction, that the mirror is still ours.
func (w *writer) check() error {
	ours, err := w.holdsClaim()
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultError { // no such table
		return fault(connector.Setup, "write", schema.Name{}, "start the mirror again; it copies its tables anew", "the tables sluice_... of this mirror were dropped")
	}
	if err == nil && !ours {
		return errFenced()
	}
	return err
}

func (w *writer) holdsClaim() (ours bool, err error) {
	s, err := w.prepare("SELECT 1 FROM sluice_mirror WHERE name = ? AND id = ? AND epoch = ?")
	if err != nil {
		return false, err
	}
	s.BindText(1, w.claim.mirror)
	s.BindText(2, w.claim.id)
	s.BindInt64(3, w.claim.epoch)
	if ours, err = s.Step(); err == nil {
		err = s.Reset()
	}
	return ours, err
}

func errFenced() error {
	return fault(connector.Fenced, "write", schema.Name{}, "leave the mirror to the other process",
		"another process writes this mirror, or its entries in sluice_entry were changed")
}

// mirrorIDs returns what Plan compares owners with: the mirror's id as claimed, or as the state knows it, else its name.
func (s *Sink) mirrorIDs() (mirror, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim.id != "" {
		return s.claim.mirror, s.claim.id
	}
	return s.env.Mirror, s.env.ID
}
