package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// A publication may be given: the user names one that somebody else has made. It is never altered or dropped, and needs no
// right to make one and no ownership of tables. What it must have is checked table by table, each time the catalog is read
// and when a table is added to a stream.

// findGiven reports whether the publication is somebody else's: the settings name one that exists and bears no mirror's
// mark. One that is gone was given if a slot of ours says so; it is not to be made anew then.
func (s *Source) findGiven(ctx context.Context) (bool, error) {
	if s.config.Publication == "" {
		return false, nil
	}
	var exists, marked, slot bool
	err := s.pool.QueryRow(ctx, `
		SELECT coalesce(bool_or(pubname = $1), false),
		       coalesce(bool_or(starts_with(pg_catalog.obj_description(oid, 'pg_publication'), $3)), false),
		       EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $4)
		FROM pg_catalog.pg_publication WHERE pubname IN ($1, $2)`,
		s.publicationName(fullPublication), s.publicationName(insertPublication), markPrefix, s.markedSlotName()).
		Scan(&exists, &marked, &slot)
	if err != nil {
		return false, wrapError(err, sourceSystem, "read the publications", schema.Name{})
	}
	return !marked && (exists || slot && s.env.ID != ""), nil
}

var _ connector.Noter = (*Source)(nil)

// Notes tells whether the publication that the settings name is used as it is, or made; see connector.Noter.
func (s *Source) Notes(ctx context.Context) ([]string, error) {
	ps, err := s.findPublications(ctx)
	return s.notesOn(ps), err
}

func (s *Source) notesOn(ps publications) []string {
	name := s.config.Publication
	switch {
	case name == "" || len(ps) == 0:
	case ps[0].given:
		return []string{fmt.Sprintf("publication %q was made by somebody else: it is used as it is, never altered and never dropped", name)}
	case !ps[0].exists && !s.given && !ps.anyOurs():
		return []string{fmt.Sprintf("publication %q does not exist: a run makes it, as this mirror's own; one that is to be used as it is must be made before", name)}
	}
	return nil
}

// givenGone refuses to begin without the publication that was given.
func (s *Source) givenGone() error {
	return &connector.Error{
		Kind: connector.Setup, System: sourceSystem, Op: "open the stream",
		Err:  errors.New(s.goneText()),
		Hint: s.goneHint(),
	}
}

func (s *Source) goneText() string {
	return fmt.Sprintf("publication %q, which was given to this mirror, does not exist any more", s.config.Publication)
}

func (s *Source) goneHint() string {
	return "CREATE PUBLICATION " + quoteIdent(s.config.Publication) + " FOR TABLE ...; then " + hintNewCopies
}

// coverageQuery is membershipQuery for a publication that was given, which may hold a table also by its schema (15 and
// later) or hold all tables. Then no row filter or column list counts (get_rel_sync_entry in pgoutput.c).
func (s *Source) coverageQuery() string {
	schemas := "SELECT NULL::oid AS oid, NULL::oid AS pnpubid, NULL::oid AS pnnspid"
	if s.server.version >= 150000 {
		schemas = "SELECT oid, pnpubid, pnnspid FROM pg_catalog.pg_publication_namespace"
	}
	return `
WITH RECURSIVE member AS (
	SELECT c.oid AS prrelid, p.pubname, p.puballtables OR s.oid IS NOT NULL OR ` + wholeMember + ` AS whole,
	       array_remove(ARRAY[CASE WHEN p.puballtables THEN p.oid END, s.oid, m.oid], NULL) AS by
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_publication p ON p.pubname = ANY($1)
	LEFT JOIN pg_catalog.pg_publication_rel m ON m.prpubid = p.oid AND m.prrelid = c.oid
	LEFT JOIN (` + schemas + `) s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
	WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND ($2::oid[] IS NULL OR c.oid = ANY($2))
	  AND (p.puballtables OR m.oid IS NOT NULL OR s.oid IS NOT NULL)
), ` + membershipOfMembers
}

// takenOut reports whether a table that was held by some rows of the catalog, and is by others now, was not held by any
// meanwhile. Rows that are made again have new OIDs.
func takenOut(was, is []uint32) bool {
	return len(was) > 0 && !slices.ContainsFunc(was, func(oid uint32) bool { return slices.Contains(is, oid) })
}

// refuseUncovered refuses the tables of which the given publication does not send every change. Where it does not exist
// that is a gap for all of them, which the stream tells.
func (s *Source) refuseUncovered(ctx context.Context, q querier, tables []*catalogTable) error {
	p, err := s.readPublication(ctx, q, s.config.Publication)
	if err != nil || !p.exists || !p.given {
		return err
	}
	oids := []uint32{}
	for _, t := range tables {
		if t.Refused == "" {
			oids = append(oids, t.oid)
		}
	}
	members, err := s.membershipOf(ctx, q, oids)
	if err != nil {
		return err
	}
	for _, t := range tables {
		if m := members[t.oid]; m != nil && t.Refused == "" {
			t.Refused, t.storage.Published = p.unfit(t.Table, m), m.by
		}
	}
	return nil
}

// checkCoverage refuses a table of which the given publication does not send every change.
func (s *Source) checkCoverage(ctx context.Context, oid uint32, t *schema.Table) error {
	const op = "select a table"
	p, err := s.readPublication(ctx, s.pool, s.config.Publication)
	if err != nil {
		return wrapError(err, sourceSystem, op, t.Name)
	}
	if !p.exists {
		return &connector.Error{Kind: connector.Gap, System: sourceSystem, Op: op, Err: errors.New(s.goneText()), Hint: hintPublicationLost}
	}
	members, err := s.membershipOf(ctx, s.pool, []uint32{oid})
	if err != nil {
		return wrapError(err, sourceSystem, op, t.Name)
	}
	m := members[oid]
	if m == nil {
		return tableGone(t)
	}
	why, fix, _ := strings.Cut(p.unfit(t, m), "; ")
	if why == "" {
		return nil
	}
	return &connector.Error{Kind: connector.TableFault, System: sourceSystem, Op: op, Table: t.Name, Err: errors.New(why), Hint: fix}
}

// unfit says why not every change of a table comes through a publication that was given, and the statement that mends it;
// "" if it does.
func (p *publication) unfit(t *schema.Table, m *membership) string {
	alter, table := "ALTER PUBLICATION "+quoteIdent(p.name)+" ", quoteName(t.Name)
	const everything = "SET (publish = 'insert, update, delete, truncate')"
	switch {
	case p.publishes == noPublication:
		return fmt.Sprintf("publication %q does not publish every kind of change; %s%s", p.name, alter, everything)
	case m.filtered[0]:
		return fmt.Sprintf("it has a row filter or a column list in publication %q; BEGIN; %[2]sDROP TABLE %[3]s; %[2]sADD TABLE %[3]s; COMMIT", p.name, alter, table)
	case !m.in[0]:
		return fmt.Sprintf("it is not in publication %q; %sADD TABLE %s", p.name, alter, table)
	case m.partitioned && !p.viaRoot:
		return fmt.Sprintf("publication %q does not publish its partitions' changes as its own; %sSET (publish_via_partition_root = true)", p.name, alter)
	case p.generated && hasGenerated(t):
		return fmt.Sprintf("publication %q publishes its generated columns, which the sink computes itself; %sSET (publish_generated_columns = none)", p.name, alter)
	case m.right(t) == p.publishes:
		return ""
	case p.publishes == insertPublication:
		return fmt.Sprintf("publication %q publishes inserts and truncates only, and it has updates and deletes to follow; %s%s", p.name, alter, everything)
	case m.identity.usable:
		return fmt.Sprintf("it has no key, and publication %q publishes its updates and deletes, which do not send whole old rows; ALTER TABLE %s REPLICA IDENTITY FULL", p.name, table)
	}
	return fmt.Sprintf("publication %q publishes its updates and deletes, and it has no usable replica identity: its UPDATE and DELETE statements fail; %s",
		p.name, identityRemedy(t.Name))
}

func hasGenerated(t *schema.Table) bool {
	for i := range t.Columns {
		if t.Columns[i].Generated != "" {
			return true
		}
	}
	return false
}
