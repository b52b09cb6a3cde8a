package postgres

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// The publications of a mirror. A table in one that publishes updates or deletes must have a usable replica identity,
// else its UPDATE and DELETE statements fail: the application's. So there are two, on one slot.
const (
	fullPublication   = iota // insert, update, delete, truncate
	insertPublication        // insert, truncate: for tables without a usable replica identity
	publicationCount

	noPublication = -1
)

var publishedActions = [publicationCount]string{"insert,update,delete,truncate", "insert,truncate"}

// objectName makes the default name of a slot or publication of a mirror. A slot's name takes a-z, 0-9 and _ alone; a
// mirror whose name holds more gets a hash of it, so that two mirrors never share a name.
func objectName(mirror string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, mirror)
	return fitName("sluice_"+clean, mirror, clean != mirror)
}

// fitName cuts a name to the longest that the server keeps and then, or if marked, ends it with a hash of original.
func fitName(name, original string, marked bool) string {
	if !marked && len(name) <= maxNameLength {
		return name
	}
	h := fnv.New64a()
	h.Write([]byte(original)) // never fails
	suffix := fmt.Sprintf("_%08x", uint32(h.Sum64()^h.Sum64()>>32))
	return cutName(name, maxNameLength-len(suffix)) + suffix
}

func (s *Source) publicationName(which int) string {
	name := s.config.Publication
	if name == "" {
		name = objectName(s.env.Mirror)
	}
	if which == insertPublication {
		name += "_insert"
		return fitName(name, name, false)
	}
	return fitName(name, name, false)
}

// publicationNames are those that the stream asks for.
func (s *Source) publicationNames() []string {
	if s.given {
		return []string{s.config.Publication}
	}
	return []string{s.publicationName(fullPublication), s.publicationName(insertPublication)}
}

// markPrefix is how the comment on a publication of any mirror begins.
const markPrefix = "sluice mirror "

// publicationMark is the comment on a publication by which we know it as our own.
func (s *Source) publicationMark() string { return markPrefix + s.env.ID }

// publication is what the catalog tells of one of our names.
type publication struct {
	name         string
	exists, ours bool
	given        bool   // made by somebody else, for us to use as it is
	mark         string // its comment
	publishes    int    // fullPublication or insertPublication by its actions; noPublication: other ones
	all          bool   // it covers all tables, those that come too
	viaRoot      bool   // a partition's changes come as those of its root
	generated    bool   // 18: rows have generated columns too
}

// intact reports whether a publication of ours publishes what we made it for.
func (p *publication) intact(which int) bool {
	return p.publishes == which && !p.all && p.viaRoot && !p.generated
}

type publications []publication

func (ps publications) anyOurs() bool {
	return slices.ContainsFunc(ps, func(p publication) bool { return p.exists && p.ours })
}

// foreign returns the first publication that exists and is not for us to use.
func (ps publications) foreign() *publication {
	for i := range ps {
		if ps[i].exists && !ps[i].ours && !ps[i].given {
			return &ps[i]
		}
	}
	return nil
}

func (s *Source) readPublications(ctx context.Context) (publications, error) {
	if s.env.ID == "" {
		return nil, &connector.Error{System: sourceSystem, Op: "read the publications", Err: errors.New("the mirror has no id yet")}
	}
	return s.findPublications(ctx)
}

// findPublications is readPublications for a mirror that may have no id yet: then none is ours.
func (s *Source) findPublications(ctx context.Context) (publications, error) {
	var ps publications
	for _, name := range s.publicationNames() {
		p, err := s.readPublication(ctx, s.pool, name)
		if err != nil {
			return nil, wrapError(err, sourceSystem, "read the publications", schema.Name{})
		}
		ps = append(ps, p)
	}
	return ps, nil
}

func (s *Source) readPublication(ctx context.Context, q querier, name string) (publication, error) {
	p := publication{name: name, publishes: noPublication}
	var inserts, updates, deletes, truncates bool
	err := q.QueryRow(ctx, `
		SELECT coalesce(pg_catalog.obj_description(oid, 'pg_publication'), ''), pubinsert, pubupdate, pubdelete, pubtruncate,
		       puballtables, pubviaroot, coalesce(to_jsonb(p)->>'pubgencols' = 's', false)
		FROM pg_catalog.pg_publication p WHERE pubname = $1`, name).
		Scan(&p.mark, &inserts, &updates, &deletes, &truncates, &p.all, &p.viaRoot, &p.generated)
	if errors.Is(err, pgx.ErrNoRows) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	if inserts && truncates && updates == deletes {
		p.publishes = insertPublication
		if updates {
			p.publishes = fullPublication
		}
	}
	p.exists, p.ours = true, s.env.ID != "" && p.mark == s.publicationMark()
	p.given = s.given && !strings.HasPrefix(p.mark, markPrefix)
	return p, nil
}

// createPublications makes both, empty and with our mark, in one transaction: there is never one of ours without it.
func (s *Source) createPublications(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		for which, actions := range publishedActions {
			name := quoteIdent(s.publicationName(which))
			_, err := tx.Exec(ctx, "CREATE PUBLICATION "+name+" WITH (publish = '"+actions+"', publish_via_partition_root = true)")
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "COMMENT ON PUBLICATION "+name+" IS "+quoteLiteral(s.publicationMark())); err != nil {
				return err
			}
		}
		return nil
	})
	err = wrapError(err, sourceSystem, "create the publications", schema.Name{})
	if e, ok := errors.AsType[*connector.Error](err); ok && e.Kind == connector.Setup {
		e.Hint = "GRANT CREATE ON DATABASE " + quoteIdent(s.server.database) + " TO " + quoteIdent(s.pool.Config().ConnConfig.User)
		if name := s.config.Publication; name != "" {
			e.Hint += fmt.Sprintf("; publication %q does not exist: if somebody else is to make it, or has made it under another name, set `publication` to that", name)
		}
	}
	return err
}

// dropPublications drops those that are ours.
func (s *Source) dropPublications(ctx context.Context, ps publications) error {
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		for _, p := range ps {
			if !p.exists || !p.ours {
				continue
			}
			if _, err := tx.Exec(ctx, "DROP PUBLICATION IF EXISTS "+quoteIdent(p.name)); err != nil {
				return err
			}
		}
		return nil
	})
	return wrapError(err, sourceSystem, "drop the publications", schema.Name{})
}

// checkPublications reports why a stream cannot go on with these.
func (s *Source) checkPublications(ps publications, from position) error {
	if p := ps.foreign(); p != nil {
		return s.notOurs("open the stream", fmt.Sprintf("publication %q", p.name), "DROP PUBLICATION "+quoteIdent(p.name))
	}
	for which, p := range ps {
		switch {
		case !p.exists:
			err := gap(from, fmt.Errorf("publication %q does not exist", p.name)).(*connector.Error)
			err.Hint = hintPublicationLost
			return err
		case !p.given && !p.intact(which):
			return gap(from, fmt.Errorf("publication %q was altered and does not publish what it was made for", p.name))
		}
	}
	return nil
}

// membership is where a table is published, and whether it may be published with updates and deletes. Of a publication that
// was given it is the first element that counts.
type membership struct {
	in          [publicationCount]bool // without a row filter or column list, which are not ours
	filtered    [publicationCount]bool // with one
	identity    replicaIdentity
	partitioned bool
	by          []uint32 // of a given one: OIDs of the catalog's rows by which it holds the table
}

// replicaIdentity is what an UPDATE or DELETE of a table sends of the old row.
type replicaIdentity struct {
	usable bool // it sends something, and so it will for a partition that is attached later
	full   bool // it sends the whole row
}

// right returns the publication that a version of the table belongs into. Without a key an old row serves only whole.
func (m *membership) right(t *schema.Table) int {
	if m.identity.usable && (len(t.Key) > 0 || m.identity.full) {
		return fullPublication
	}
	return insertPublication
}

// settled reports whether the table is where it belongs, and nowhere else.
func (m *membership) settled(t *schema.Table) bool {
	if m == nil || m.keyLost(t) {
		return false
	}
	which := m.right(t)
	other := fullPublication + insertPublication - which
	return m.in[which] && !m.in[other] && !m.filtered[other]
}

// keyLost reports whether a version has a key that updates and deletes do not send.
func (m *membership) keyLost(t *schema.Table) bool {
	return len(t.Key) > 0 && m.right(t) == insertPublication
}

// usableIdentity tells whether the relation "leaf" of a query has a replica identity. Its index must be valid and checked
// at once (RelationGetIndexList in relcache.c).
const usableIdentity = `CASE leaf.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS (
           SELECT FROM pg_catalog.pg_index i
           WHERE i.indrelid = leaf.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
             AND CASE leaf.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END) END`

// membershipQuery reads the membership of relations: of those in $2, or without it of all in the publications named in
// $1. A partitioned table is judged by its leaves, where its rows are; its primary key is what gives the leaves that
// come later an identity, so that there it is required.
const membershipQuery = `
WITH RECURSIVE member AS (
	SELECT m.prrelid, p.pubname, ` + wholeMember + ` AS whole, NULL::oid[] AS by
	FROM pg_catalog.pg_publication_rel m JOIN pg_catalog.pg_publication p ON p.oid = m.prpubid
	WHERE p.pubname = ANY($1) AND ($2::oid[] IS NULL OR m.prrelid = ANY($2))
), ` + membershipOfMembers

// wholeMember tells of a row m of pg_publication_rel that no row filter or column list (15 and later) is on the table.
const wholeMember = `to_jsonb(m)->>'prqual' IS NULL AND to_jsonb(m)->>'prattrs' IS NULL`

const membershipOfMembers = `wanted AS (
	SELECT DISTINCT prrelid AS oid FROM member WHERE $2::oid[] IS NULL UNION SELECT unnest($2::oid[])
), tree AS (
	SELECT oid AS root, oid FROM wanted
	UNION ALL
	SELECT t.root, i.inhrelid FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid AND c.relkind = 'p'
	JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)
SELECT root.oid,
       coalesce(bool_and(` + usableIdentity + `), true)
         AND (root.relkind <> 'p' OR EXISTS (
           SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = root.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate)),
       coalesce(bool_and(leaf.relreplident = 'f'), false), root.relkind = 'p',
       (SELECT m.by FROM member m WHERE m.prrelid = root.oid LIMIT 1),
       ARRAY(SELECT EXISTS (SELECT FROM member m WHERE m.prrelid = root.oid AND m.pubname = n.name AND m.whole)
             FROM unnest($1::text[]) WITH ORDINALITY n(name, i) ORDER BY n.i),
       ARRAY(SELECT EXISTS (SELECT FROM member m WHERE m.prrelid = root.oid AND m.pubname = n.name AND NOT m.whole)
             FROM unnest($1::text[]) WITH ORDINALITY n(name, i) ORDER BY n.i)
FROM wanted JOIN pg_catalog.pg_class root ON root.oid = wanted.oid
LEFT JOIN (tree JOIN pg_catalog.pg_class leaf ON leaf.oid = tree.oid AND leaf.relkind <> 'p') ON tree.root = root.oid
GROUP BY root.oid, root.relkind`

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readMembership reads one table's, or with oid 0 that of all tables of our publications.
func (s *Source) readMembership(ctx context.Context, q querier, oid uint32) (map[uint32]*membership, error) {
	var wanted []uint32
	if oid != 0 {
		wanted = []uint32{oid}
	}
	return s.membershipOf(ctx, q, wanted)
}

func (s *Source) membershipOf(ctx context.Context, q querier, wanted []uint32) (map[uint32]*membership, error) {
	query := membershipQuery
	if s.given {
		query = s.coverageQuery()
	}
	rows, err := q.Query(ctx, query, s.publicationNames(), wanted)
	if err != nil {
		return nil, err
	}
	found := map[uint32]*membership{}
	var relation uint32
	var m membership
	var in, filtered []bool
	_, err = pgx.ForEachRow(rows, []any{&relation, &m.identity.usable, &m.identity.full, &m.partitioned, &m.by, &in, &filtered}, func() error {
		one := m
		copy(one.in[:], in)
		copy(one.filtered[:], filtered)
		found[relation] = &one
		return nil
	})
	return found, err
}

// Uncovered finds the selected tables of which not all changes are published any more: somebody has altered a publication,
// or a table's place in it; see connector.Coverer.
func (st *stream) Uncovered(ctx context.Context) (map[schema.ID]string, error) {
	const op = "look at the publications"
	pubs, err := st.source.findPublications(ctx)
	if err != nil {
		return nil, err
	}
	if err := st.source.checkPublications(pubs, position{system: st.source.server.system, timeline: st.source.server.timeline, lsn: st.start}); err != nil {
		return nil, err
	}
	if st.source.given { // it refuses the tables that it does not cover, see refuseUncovered
		return nil, nil
	}
	st.adding.Lock() // no table is on its way into a publication
	defer st.adding.Unlock()
	selected := *st.selected.Load()
	oids := slices.Collect(maps.Keys(selected))
	if len(oids) == 0 {
		return nil, nil
	}
	now, err := st.source.membershipOf(ctx, st.source.pool, oids)
	if err != nil {
		return nil, wrapError(err, sourceSystem, op, schema.Name{})
	}
	uncovered := map[schema.ID]string{}
	for oid, chosen := range selected {
		if m := now[oid]; m != nil { // else it was dropped
			if why := m.lacks(chosen.table); why != "" {
				uncovered[chosen.table.ID] = why
			}
		}
	}
	return uncovered, nil
}

// lacks says what keeps changes of a table from being sent; "" if nothing does. A table in both publications gets the
// changes of both.
func (m *membership) lacks(t *schema.Table) string {
	whole := m.in[fullPublication] || len(t.Key) == 0 && m.in[insertPublication]
	switch {
	case m.keyLost(t):
		return "its replica identity does not send its key any more"
	case whole:
		return ""
	case m.filtered[fullPublication] || m.filtered[insertPublication]:
		return "it has a row filter or a column list in a publication of the mirror"
	}
	return "it was taken out of the publication"
}

// publish puts a table into the publication that suits it, and out of the other one. It reports whether that changed
// anything. A table whose key is not in its replica identity is taken out of both, which is a fault of the table.
func (s *Source) publish(ctx context.Context, oid uint32, t *schema.Table) (changed bool, err error) {
	now, err := s.readMembership(ctx, s.pool, oid)
	if err != nil || now[oid].settled(t) {
		return false, publishError(err, t)
	}
	lost := false
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		changed = false
		name, err := lockForPublishing(ctx, tx, oid, t)
		if err != nil {
			return err
		}
		m, err := s.readMembership(ctx, tx, oid)
		if err != nil {
			return err
		}
		if m[oid] == nil {
			return tableGone(t)
		}
		which := m[oid].right(t)
		if lost = m[oid].keyLost(t); lost {
			which = noPublication
		}
		changed, err = s.alterMembership(ctx, tx, m[oid], which, name)
		return err
	})
	if err == nil && lost {
		err = identityLost(t)
	}
	return changed, publishError(err, t)
}

// alterMembership makes a table a member of publication which alone.
func (s *Source) alterMembership(ctx context.Context, tx pgx.Tx, m *membership, which int, name string) (changed bool, err error) {
	for p := range publicationCount {
		if (m.in[p] || m.filtered[p]) && (p != which || m.filtered[p]) {
			changed = true
			if _, err := tx.Exec(ctx, "ALTER PUBLICATION "+quoteIdent(s.publicationName(p))+" DROP TABLE ONLY "+name); err != nil {
				return false, err
			}
		}
	}
	if which != noPublication && !m.in[which] {
		changed = true
		_, err = tx.Exec(ctx, "ALTER PUBLICATION "+quoteIdent(s.publicationName(which))+" ADD TABLE ONLY "+name)
	}
	return changed, err
}

// lockForPublishing takes the lock of ALTER PUBLICATION early, on the leaves too: no replica identity of the table changes
// until the end of the transaction. It blocks no reader and no writer. It returns the quoted name as it is now.
func lockForPublishing(ctx context.Context, tx pgx.Tx, oid uint32, t *schema.Table) (string, error) {
	name, partitioned, err := relationName(ctx, tx, oid)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", tableGone(t)
	}
	if err != nil {
		return "", err
	}
	only := "ONLY "
	if partitioned {
		only = ""
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+only+name+" IN SHARE UPDATE EXCLUSIVE MODE"); err != nil {
		return "", err
	}
	again, _, err := relationName(ctx, tx, oid)
	if err == nil && again != name || errors.Is(err, pgx.ErrNoRows) {
		return "", &connector.Error{
			Kind: connector.Conflict, System: sourceSystem, Op: "publish", Table: t.Name,
			Err: errors.New("the table was renamed or dropped at this moment"),
		}
	}
	return name, err
}

func relationName(ctx context.Context, tx pgx.Tx, oid uint32) (quoted string, partitioned bool, err error) {
	var n schema.Name
	err = tx.QueryRow(ctx, `SELECT n.nspname, c.relname, c.relkind = 'p' FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1`, oid).Scan(&n.Schema, &n.Table, &partitioned)
	return quoteName(n), partitioned, err
}

// unpublish takes a table out of our publications. One that is gone has left them by itself.
func (s *Source) unpublish(ctx context.Context, oid uint32, t *schema.Table) error {
	if s.given {
		return nil
	}
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		m, err := s.readMembership(ctx, tx, oid)
		if err != nil || m[oid] == nil {
			return err
		}
		name, _, err := relationName(ctx, tx, oid)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			_, err = s.alterMembership(ctx, tx, m[oid], noPublication, name)
		}
		return err
	})
	if isState(err, "42P01", "3F000") {
		return nil
	}
	return publishError(err, t)
}

func tableGone(t *schema.Table) error {
	return &connector.Error{
		Kind: connector.TableFault, System: sourceSystem, Op: "publish", Table: t.Name,
		Err: fmt.Errorf("the table (oid %s) does not exist any more", t.ID),
	}
}

// identityLost says that a table with a key does not send it with its updates and deletes.
func identityLost(t *schema.Table) error {
	return &connector.Error{
		Kind: connector.TableFault, System: sourceSystem, Op: "publish", Table: t.Name,
		Err:  errors.New("the replica identity is not usable, so that updates and deletes are not in the log"),
		Hint: identityRemedy(t.Name),
	}
}

func identityRemedy(table schema.Name) string {
	return fmt.Sprintf("ALTER TABLE %[1]s ADD PRIMARY KEY (...), or ALTER TABLE %[1]s REPLICA IDENTITY FULL; of a "+
		"partitioned table each partition must have one, and the table itself a primary key", quoteName(table))
}

// publishError makes a missing right a fault of the table: the other ones can go on.
func publishError(err error, t *schema.Table) error {
	err = wrapError(err, sourceSystem, "publish", t.Name)
	if isState(err, "42501") {
		if e, ok := errors.AsType[*connector.Error](err); ok {
			e.Kind = connector.TableFault
			e.Hint = "publishing a table takes its owner: ALTER TABLE " + quoteName(t.Name) + " OWNER TO, or grant the owner's role"
		}
	}
	return err
}
