package mirror

import (
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
)

// byText orders the test's positions, which are of equal length.
func byText(a, b connector.Position) (int, error) { return strings.Compare(string(a), string(b)), nil }

func at(position connector.Position, count int64) *apply.Checkpoint {
	return &apply.Checkpoint{Position: position, Count: count, Copy: 2, Ready: true, Settings: "s", Fingerprint: "f"}
}

// begun is the evidence of copy 2 that was cut off with two of three chunks missing.
func begun(change func(*evidence)) evidence {
	e := evidence{entry: at("5", 0), newest: 2, unfinished: &unfinished{chunks: 3, missing: make([]connector.Chunk, 2)}}
	e.entry.Ready = false
	if change != nil {
		change(&e)
	}
	return e
}

func TestReconcileTruthTable(t *testing.T) {
	with := func(c *apply.Checkpoint, change func(*apply.Checkpoint)) *apply.Checkpoint {
		change(c)
		return c
	}
	for name, c := range map[string]struct {
		e    evidence
		want action
		why  string
	}{
		"new table":              {evidence{}, recopy, ""},
		"nothing was lost":       {evidence{entry: at("5", 1), saved: at("5", 1), copy: 2}, resume, ""},
		"applied after the save": {evidence{entry: at("7", 1), saved: at("5", 1), copy: 2}, resume, ""},
		"split transaction":      {evidence{entry: at("5", 9), saved: at("5", 1), copy: 2}, resume, ""},
		"state lost":             {evidence{entry: at("5", 1), copy: 2}, resume, ""},
		"sink recreated":         {evidence{saved: at("5", 1)}, recopy, "recreated"},
		"destination dropped":    {evidence{entry: at("5", 1), saved: at("5", 1)}, recopy, "not in the sink"},
		"failover":               {evidence{entry: at("5", 1), saved: at("5", 1), copy: 2, elsewhere: "another timeline"}, recopy, "another timeline"},
		"destination of another copy": {
			evidence{entry: at("5", 1), saved: at("5", 1), copy: 1}, recopy, "copy 1",
		},
		"copy interrupted": {
			evidence{entry: with(at("5", 1), func(c *apply.Checkpoint) { c.Ready = false }), copy: 2}, recopy, "interrupted",
		},
		"copy goes on":                      {begun(nil), carryOn, ""},
		"copy goes on, the state was lost":  {begun(func(e *evidence) { e.saved = nil }), carryOn, ""},
		"second copy goes on":               {begun(func(e *evidence) { e.saved, e.copy = with(at("1", 1), func(c *apply.Checkpoint) { c.Copy = 1 }), 1 }), carryOn, ""},
		"copy without a complete chunk":     {begun(func(e *evidence) { e.unfinished.missing = make([]connector.Chunk, 3) }), recopy, "interrupted"},
		"copy under other settings":         {begun(func(e *evidence) { e.settings = "other" }), recopy, "interrupted"},
		"columns changed during a copy":     {begun(func(e *evidence) { e.fingerprint = "other" }), recopy, "interrupted"},
		"log begins anew during a copy":     {begun(func(e *evidence) { e.fresh = true }), recopy, "anew"},
		"failover during a copy":            {begun(func(e *evidence) { e.elsewhere = "another timeline" }), recopy, "interrupted"},
		"sink restored into a copy":         {begun(func(e *evidence) { e.sinkBehind = true }), recopy, "interrupted"},
		"sink restored into an older copy":  {begun(func(e *evidence) { e.newest = 3 }), recopy, "interrupted"},
		"sink restored to before its Ready": {begun(func(e *evidence) { e.saved = at("5", 1) }), recopy, "interrupted"},
		"sink restored, table changed since": {
			evidence{entry: at("3", 1), saved: at("5", 1), copy: 2, sinkBehind: true}, recopy, "restored",
		},
		"sink restored within one floor": {evidence{entry: at("3", 1), saved: at("5", 1), copy: 2}, recopy, "restored"},
		"sink restored inside a split transaction": {
			evidence{entry: at("5", 1), saved: at("5", 9), copy: 2}, recopy, "restored",
		},
		"sink restored, table idle since": {evidence{entry: at("5", 1), saved: at("5", 1), copy: 2, sinkBehind: true}, resume, ""},
		"sink restored to before a copy": {
			evidence{entry: at("5", 1), saved: with(at("5", 1), func(c *apply.Checkpoint) { c.Copy = 3 }), copy: 2}, recopy, "restored",
		},
		"state restored from an older copy": {
			evidence{entry: at("9", 1), saved: with(at("5", 1), func(c *apply.Checkpoint) { c.Copy = 1 }), copy: 2}, resume, "",
		},
		"sink restored to before its rows were given up": {
			evidence{entry: at("5", 1), saved: with(at("5", 1), func(c *apply.Checkpoint) { c.Ready = false }), copy: 2}, recopy, "restored",
		},
		"copy made after the rows were given up": {
			evidence{entry: at("5", 1), saved: with(at("5", 1), func(c *apply.Checkpoint) { c.Ready, c.Copy = false, 1 }), copy: 2}, resume, "",
		},
		"sink restored, copy was under way": {evidence{entry: at("5", 1), copy: 2, sinkBehind: true}, recopy, "restored"},
		"sink restored to a copy that the state never saw": {
			evidence{entry: at("5", 1), saved: with(at("5", 1), func(c *apply.Checkpoint) { c.Copy = 1 }), copy: 2, sinkBehind: true},
			recopy, "restored",
		},
		"log begins anew":                          {evidence{entry: at("5", 1), saved: at("5", 1), copy: 2, fresh: true}, recopy, "anew"},
		"settings changed":                         {evidence{entry: at("5", 1), saved: at("5", 1), copy: 2, settings: "other"}, refuse, "config_changed"},
		"stored under a version that nobody knows": {evidence{entry: at("5", 1), saved: at("5", 1), copy: 2, fingerprint: "other"}, recopy, "not known"},
		"renamed to another destination": {
			evidence{entry: at("5", 1), saved: at("5", 1), copy: 2, settings: "other", renamed: true}, recopy, "another name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.e.settings == "" {
				c.e.settings = "s"
			}
			if c.e.fingerprint == "" {
				c.e.fingerprint = "f"
			}
			got, why, err := reconcile(c.e, byText)
			if err != nil || got != c.want || !strings.Contains(why, c.why) || (c.why == "") != (why == "") {
				t.Errorf("reconcile = %d, %q, %v; want %d, …%s…", got, why, err, c.want, c.why)
			}
		})
	}
}
