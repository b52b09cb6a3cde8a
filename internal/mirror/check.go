package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// Sides opens the two ends of a mirror, for what looks at them and mirrors nothing.
type Sides struct {
	Source func(ctx context.Context) (connector.Source, error)
	Sink   func(ctx context.Context) (connector.Sink, error)
}

// Check is what keeps a mirror from running, all of it at once, and what its user should know.
type Check struct {
	Findings           []Finding
	SourceErr, SinkErr error // why that side, or the rest of it, could not be looked at
}

// Finding is a problem of one side.
type Finding struct {
	Side string // "source" or "sink"
	connector.Problem
}

// Faults returns the number of findings that are more than a note.
func (c *Check) Faults() int {
	n := 0
	for _, f := range c.Findings {
		if !f.Note {
			n++
		}
	}
	return n
}

func (c *Check) add(side string, ps ...connector.Problem) {
	for _, p := range ps {
		c.Findings = append(c.Findings, Finding{side, p})
	}
}

// refuse adds a table that cannot be mirrored; what to do stands behind the first semicolon of the reason.
func (c *Check) refuse(side string, table schema.Name, reason string) {
	what, fix, _ := strings.Cut(reason, "; ")
	c.add(side, connector.Problem{Table: table.String(), What: what, Fix: fix})
}

// MakeCheck looks at both sides, at the one also if the other cannot be reached. It changes nothing.
func MakeCheck(ctx context.Context, sides Sides, sel Selector, retainedMax int64) *Check {
	c := &Check{}
	tables, origin, err := c.checkSource(ctx, sides, sel, retainedMax)
	c.SourceErr = err
	c.SinkErr = c.checkSink(ctx, sides, tables, origin, sel)
	return c
}

// checkSource returns the tables that are selected and that the source can give, and the name of its database.
func (c *Check) checkSource(ctx context.Context, sides Sides, sel Selector, retainedMax int64) (able []*schema.Table, origin string, err error) {
	source, err := sides.Source(ctx)
	if err != nil {
		return nil, "", err
	}
	defer source.Close()
	if origin, err = identityOf(ctx, source); err != nil {
		return nil, "", err
	}
	found, err := source.Tables(ctx)
	if err != nil {
		return nil, "", err
	}
	refused := map[*schema.Table]string{}
	for _, t := range found {
		settings, selected := sel.Select(t)
		if !selected {
			continue
		}
		if refused[t] = refusal(t, settings); refused[t] == "" {
			able = append(able, t)
		}
	}
	if len(refused) == 0 {
		c.add("source", connector.Problem{What: "no table is selected", Fix: "see `mirror.tables.include`; `sluice discover` lists what there is", Note: true})
	}
	for _, what := range sel.unused(found) {
		c.add("source", connector.Problem{What: what, Fix: "a table is named as `sluice discover` writes it"})
	}
	if checker, ok := source.(connector.Checker); ok {
		problems, err := checker.Check(ctx, able)
		c.add("source", problems...)
		if err != nil {
			return able, origin, err
		}
	}
	c.checkRetained(ctx, source, able, retainedMax)
	for _, t := range found {
		if refused[t] != "" {
			c.refuse("source", t.Name, refused[t])
		}
	}
	return able, origin, nil
}

// checkRetained looks whether the source keeps too much log for the mirror. Where it keeps none yet nothing is wrong.
func (c *Check) checkRetained(ctx context.Context, source connector.Source, tables []*schema.Table, limit int64) {
	retainer, ok := source.(connector.Retainer)
	if !ok || limit == 0 {
		return
	}
	logs := map[string]bool{}
	for _, t := range tables {
		logs[t.Log] = true
	}
	for log := range logs {
		kept, err := retainer.Retained(ctx, log)
		if err == nil && kept.Bytes > limit {
			c.add("source", connector.Problem{
				What: fmt.Sprintf("%s keeps %d bytes of log, more than retained_log.max, %d", kept.By, kept.Bytes, limit),
				Fix:  "run the mirror, which frees what it has mirrored; or `sluice teardown`, if there will be no more runs",
			})
		}
	}
}

func (c *Check) checkSink(ctx context.Context, sides Sides, tables []*schema.Table, origin string, sel Selector) error {
	sink, err := sides.Sink(ctx)
	if err != nil {
		return err
	}
	defer sink.Close()
	checker, ok := sink.(connector.Checker)
	var general []connector.Problem
	if ok {
		if general, err = checker.Check(ctx, nil); err != nil { // for the rest it must be reachable
			return err
		}
	}
	entries, err := entriesOf(ctx, sink)
	var ps []planned
	if err == nil {
		ps, err = planTables(ctx, tables, sel.Select, origin, sink, entries)
	}
	if err != nil {
		c.add("sink", general...) // one of them may be why
		return err
	}
	if ok {
		problems, err := checker.Check(ctx, destinationsOf(ps))
		c.add("sink", problems...)
		if err != nil {
			return err
		}
	}
	for _, p := range ps {
		if p.refused != "" {
			c.refuse("sink", p.table.Name, p.refused)
		}
		for _, note := range p.notes() {
			c.add("sink", connector.Problem{Table: p.table.Name.String(), What: note, Note: true})
		}
	}
	return nil
}

// destinationsOf returns the tables under the names that they will have in the sink.
func destinationsOf(ps []planned) []*schema.Table {
	var ts []*schema.Table
	for _, p := range ps {
		if p.target != nil {
			t := *p.table
			t.Name = p.target.Name
			ts = append(ts, &t)
		}
	}
	return ts
}

// Err returns why a side could not be looked at, nil if both could.
func (c *Check) Err() error { return errors.Join(c.SourceErr, c.SinkErr) }
