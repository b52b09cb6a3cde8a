// Package apply turns a batch of a table's frames into rows of the sink: it leaves out what the sink has, decodes, folds
// the changes of each key into one, and writes them in one transaction with the checkpoint that accounts for them.
package apply

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/schema"
)

// checkpointFormat is the version of a checkpoint's text. A newer one is refused.
const checkpointFormat = 1

// Checkpoint is what the sink's entry of a table says: what the destination holds. (Position, Count) covers all earlier
// transactions and the first Count row messages of the one at Position.
type Checkpoint struct {
	Format      int                `json:"v"`
	Table       string             `json:"table"`             // the source's name for it, for people
	Settings    string             `json:"settings"`          // how it is mirrored: destination, mode, key
	Fingerprint string             `json:"fingerprint"`       // of the version that the rows are stored under
	Ignored     bool               `json:"ignored,omitempty"` // rows of a later version are among them, without what it has more
	Copy        int                `json:"copy"`
	Ready       bool               `json:"ready"` // false while copy number Copy is under way
	Position    connector.Position `json:"position"`
	Part        string             `json:"part,omitempty"`
	Count       int64              `json:"count,omitempty"`
	Tag         uint64             `json:"tag,omitempty"`   // of the transaction at Position, with its time: to notice another history
	Time        time.Time          `json:"time,omitzero"`   //
	Token       string             `json:"token,omitempty"` // of the copy's snapshot, while changes that it holds may still come
	Until       connector.Position `json:"until,omitempty"` // no change beyond it is in the snapshot
	// Overlap is set while the table converges: beyond it no change is older than a row of the destination. Token is that
	// of the first of the copy's snapshots, for no other holds all that the rows do.
	Overlap connector.Position `json:"overlap,omitempty"`
}

// Key returns the key of a table's entry.
func Key(id schema.ID) string { return "table/" + string(id) }

// String returns the text of the entry.
func (c *Checkpoint) String() string {
	c.Format = checkpointFormat
	text, err := json.Marshal(c)
	if err != nil {
		panic("apply: a checkpoint cannot be written: " + err.Error()) // it holds text and numbers only
	}
	return string(text)
}

// ParseCheckpoint reads an entry's text.
func ParseCheckpoint(text string) (*Checkpoint, error) {
	var c Checkpoint
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return nil, fmt.Errorf("read a checkpoint: %w", err)
	}
	if c.Format != checkpointFormat {
		return nil, fmt.Errorf("checkpoint of format %d, this version knows %d: use the version of sluice that wrote it, or a newer one", c.Format, checkpointFormat)
	}
	return &c, nil
}

// Converged returns where in the log the table will have converged, nil if it has.
func (c *Checkpoint) Converged() connector.Positions {
	if c.Overlap == "" {
		return nil
	}
	return connector.Positions{c.Part: c.Overlap}
}

// advance moves c behind the last of runs, the runs of a batch in the order of the log.
func (c *Checkpoint) advance(last connector.Commit) {
	c.Part, c.Position, c.Count = last.Part, last.Position, last.First+int64(last.Rows)
	c.Tag, c.Time = last.Tag, last.Time
}
