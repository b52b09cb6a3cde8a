package apply

import (
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// textLog orders positions by their text; its snapshots hold the transactions with tags below 10.
type textLog struct{}

func (textLog) Compare(a, b connector.Position) (int, error) {
	return strings.Compare(string(a), string(b)), nil
}

func (textLog) Contains(_ string, c connector.Commit) (bool, error) { return c.Tag < 10, nil }

func (textLog) Decoder(*schema.Table) (connector.Decoder, error) { return nil, nil }

func TestSchemaChangeThatTheDestinationAccountsForIsNotNew(t *testing.T) {
	for name, c := range map[string]struct {
		at     Checkpoint
		change connector.Commit
		want   bool
	}{
		"before the checkpoint":          {Checkpoint{Position: "5", Tag: 20, Count: 3}, connector.Commit{Position: "4", Tag: 19}, true},
		"behind the checkpoint":          {Checkpoint{Position: "5", Tag: 20, Count: 3}, connector.Commit{Position: "6", Tag: 21}, false},
		"in the snapshot":                {Checkpoint{Position: "5", Token: "t"}, connector.Commit{Position: "6", Tag: 9}, true},
		"behind the snapshot":            {Checkpoint{Position: "5", Token: "t"}, connector.Commit{Position: "6", Tag: 11}, false},
		"before rows that were applied":  {Checkpoint{Position: "5", Tag: 20, Count: 3}, connector.Commit{Position: "5", Tag: 20, First: 2}, true},
		"behind the last applied row":    {Checkpoint{Position: "5", Tag: 20, Count: 3}, connector.Commit{Position: "5", Tag: 20, First: 3}, false},
		"at the position the copy began": {Checkpoint{Position: "5", Token: "t"}, connector.Commit{Position: "5", Tag: 11}, true},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := NewTable(&connector.Target{Table: &schema.Table{ID: "1"}}, nil, c.at, nil, textLog{}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if had, err := table.Has(c.change); err != nil || had != c.want {
				t.Errorf("Has = %v, %v; want %v", had, err, c.want)
			}
		})
	}
}
