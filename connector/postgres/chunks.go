package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/sluicehq/sluice/connector"
)

const (
	// assumedRowBytes is the size of a row in a table that was never analyzed.
	assumedRowBytes = 128
	// sampleRows is how many rows are looked at for each bound of a key range.
	sampleRows = 30
	// samplePages is the least number of pages that are looked at: one page holds neighbours only.
	samplePages = 300
	// chunksMax bounds the plan of one leaf; beyond it chunks grow.
	chunksMax = 20_000
)

// chunkSpec is a piece of a leaf: a range of keys, a range of pages, or all of it. Its JSON is Chunk.Spec.
type chunkSpec struct {
	Leaf   uint32   `json:"leaf"`             // OID
	Layout string   `json:"layout"`           // hash of the layout it was planned for; a range of pages: of the token too
	After  []string `json:"after,omitempty"`  // the key before the first, as text; none: from the beginning
	UpTo   []string `json:"up_to,omitempty"`  // the last key; none: to the end
	From   int64    `json:"from,omitempty"`   // first page
	Before int64    `json:"before,omitempty"` // page after the last; 0: to the end

	leaf layoutLeaf
}

// leafSize is what planning needs to know of a leaf.
type leafSize struct {
	pages   int64
	rows    int64   // estimate
	perPage float64 // rows, estimate
}

// Chunks plans ranges of keys where the table has a key: they mean the same rows under another snapshot. Without one it
// plans ranges of pages. Every row lies in exactly one chunk, since neighbours share a bound that the server alone
// compares, and the outermost are open.
func (n *snapshot) Chunks(ctx context.Context, rows int64) ([]connector.Chunk, error) {
	const op = "plan the copy"
	rows = max(rows, 1)
	sizes, err := n.leafSizes(ctx)
	if err != nil {
		return nil, copyError(err, op, n.table.Name)
	}
	var chunks []connector.Chunk
	for _, leaf := range n.layout.leaves {
		size := sizes[leaf.oid]
		count := min((size.rows+rows-1)/rows, chunksMax)
		specs := []chunkSpec{{}}
		if count > 1 {
			if len(n.table.Key) == 0 {
				specs = pageRanges(size, count)
			} else if specs, err = n.keyRanges(ctx, leaf, size, count); err != nil {
				return nil, copyError(err, op, n.table.Name)
			}
		}
		for _, spec := range specs {
			spec.Leaf, spec.Layout = leaf.oid, n.layoutHash()
			text, err := json.Marshal(spec)
			if err != nil {
				return nil, &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: op, Table: n.table.Name, Err: err}
			}
			chunks = append(chunks, connector.Chunk{ID: len(chunks), Rows: size.rows / int64(len(specs)), Spec: string(text)})
		}
	}
	return chunks, nil
}

// layoutHash ties a chunk to what it was planned for. A later snapshot can read chunks of keys if no file was exchanged
// since; pages mean nothing under another snapshot, because rows move.
func (n *snapshot) layoutHash() string {
	h := fnv.New64a()
	h.Write([]byte(n.layout.String()))
	if len(n.table.Key) == 0 {
		h.Write([]byte(n.token))
	}
	return strconv.FormatUint(h.Sum64(), 16)
}

func (n *snapshot) parseChunk(c connector.Chunk) (chunkSpec, error) {
	const op = "copy rows"
	var spec chunkSpec
	err := json.Unmarshal([]byte(c.Spec), &spec)
	if key := len(n.table.Key); err == nil && (c.After != "" || len(spec.After) != 0 && len(spec.After) != key || len(spec.UpTo) != 0 && len(spec.UpTo) != key) {
		err = errors.New("not a chunk of this table")
	}
	if err != nil {
		return spec, &connector.Error{Kind: connector.Internal, System: sourceSystem, Op: op, Table: n.table.Name, Err: err}
	}
	for _, leaf := range n.layout.leaves {
		if leaf.oid == spec.Leaf && spec.Layout == n.layoutHash() {
			spec.leaf = leaf
			return spec, nil
		}
	}
	return spec, viewLost(op, n.table.Name, "the chunk was planned before the table was altered, rewritten or emptied")
}

func (n *snapshot) leafSizes(ctx context.Context) (map[uint32]leafSize, error) {
	oids := make([]uint32, len(n.layout.leaves))
	for i, l := range n.layout.leaves {
		oids[i] = l.oid
	}
	rows, err := n.source.pool.Query(ctx, `
		SELECT c.oid, coalesce(pg_catalog.pg_relation_size(c.oid), 0), pg_catalog.current_setting('block_size')::int8,
		       CASE WHEN c.reltuples > 0 AND c.relpages > 0 THEN c.reltuples::float8 / c.relpages ELSE 0 END
		FROM pg_catalog.pg_class c WHERE c.oid = ANY($1::oid[])`, oids)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	sizes := map[uint32]leafSize{}
	for rows.Next() {
		var oid uint32
		var bytes, pageSize int64
		var s leafSize
		if err := rows.Scan(&oid, &bytes, &pageSize, &s.perPage); err != nil {
			return nil, err
		}
		if s.perPage == 0 {
			s.perPage = float64(pageSize) / assumedRowBytes
		}
		s.pages = bytes / pageSize
		s.rows = int64(float64(s.pages) * s.perPage)
		sizes[oid] = s
	}
	return sizes, rows.Err()
}

func pageRanges(size leafSize, count int64) []chunkSpec {
	count = min(count, size.pages)
	specs := make([]chunkSpec, count)
	for i := range specs {
		specs[i].From = int64(i) * size.pages / count
		if i > 0 {
			specs[i-1].Before = specs[i].From
		}
	}
	return specs
}

// keyRanges takes bounds from a sample of the leaf's pages.
func (n *snapshot) keyRanges(ctx context.Context, leaf layoutLeaf, size leafSize, count int64) ([]chunkSpec, error) {
	whole := []chunkSpec{{}}
	if !n.comparable() {
		return whole, nil
	}
	rows, err := n.source.pool.Query(ctx, n.boundsSQL(leaf, size, count), pgx.QueryExecModeExec)
	var bounds [][]string
	if err == nil {
		bounds, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (key []string, err error) {
			err = row.Scan(&key)
			return key, err
		})
	}
	if isState(err, "42883") { // the type has no order
		return whole, nil
	}
	if err != nil {
		return nil, err
	}
	specs := make([]chunkSpec, len(bounds)+1)
	for i, b := range bounds {
		specs[i].UpTo, specs[i+1].After = b, b
	}
	return specs, nil
}

// comparable reports whether keys can be compared in SQL. Operators are found by name in pg_catalog alone: for a type of an
// extension that may be another order than the one that sorted the bounds, or none.
func (n *snapshot) comparable() bool {
	return !slices.ContainsFunc(n.table.Key, func(c int) bool {
		return !strings.HasPrefix(n.table.types[c].output, "pg_catalog.")
	})
}

// boundsSQL sorts the sample's keys and takes every so manieth.
func (n *snapshot) boundsSQL(leaf layoutLeaf, size leafSize, count int64) string {
	var names, texts []string
	for _, c := range n.table.Key {
		name := n.table.Columns[c].Name
		names, texts = append(names, quoteIdent(name)), append(texts, outputText(n.table.types[c], name))
	}
	pages := min(max(float64(count*sampleRows)/size.perPage, samplePages), float64(size.pages))
	return fmt.Sprintf(`SELECT ARRAY[%s] FROM (
			SELECT %s, pg_catalog.row_number() OVER (ORDER BY %[2]s) AS _sluice_place, pg_catalog.count(*) OVER () AS _sluice_total
			FROM ONLY %s TABLESAMPLE SYSTEM (%g)) s
		WHERE _sluice_place < _sluice_total AND _sluice_place * %d / _sluice_total > (_sluice_place - 1) * %[5]d / _sluice_total
		ORDER BY _sluice_place`,
		strings.Join(texts, ", "), strings.Join(names, ", "), quoteName(leaf.name), 100*pages/float64(size.pages), count)
}

// where returns the condition that a row of the leaf lies in the chunk, "" if all do.
func (c chunkSpec) where(t *catalogTable) string {
	var conditions []string
	if c.After != nil {
		conditions = append(conditions, keyList(t)+" > "+keyLiteral(t, c.After))
	}
	if c.UpTo != nil {
		conditions = append(conditions, keyList(t)+" <= "+keyLiteral(t, c.UpTo))
	}
	if c.From != 0 {
		conditions = append(conditions, fmt.Sprintf("ctid >= '(%d,0)'::pg_catalog.tid", c.From))
	}
	if c.Before != 0 {
		conditions = append(conditions, fmt.Sprintf("ctid < '(%d,0)'::pg_catalog.tid", c.Before))
	}
	return strings.Join(conditions, " AND ")
}

func keyList(t *catalogTable) string { return "(" + quoteList(t.KeyNames()) + ")" }

func keyLiteral(t *catalogTable, key []string) string {
	parts := make([]string, len(key))
	for i, k := range key {
		parts[i] = quoteLiteral(k) + "::" + t.Columns[t.Key[i]].Type.Native
	}
	return "(" + strings.Join(parts, ", ") + ")"
}
