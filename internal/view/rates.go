package view

import (
	"time"

	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/schema"
)

// rateOver is the time over which a rate is taken: long enough to hold some batches, short enough to show what is now.
const rateOver = 5 * time.Second

// rates tells how fast tables move, from what they had counted some moments ago.
type rates struct{ samples []sample }

type sample struct {
	at     time.Time
	counts map[schema.ID]mirror.TableCounts
}

// take notes what the tables have counted now, and returns how many rows, copied or applied, each moved in a second.
func (r *rates) take(now time.Time, live *mirror.Live) map[schema.ID]float64 {
	counts := make(map[schema.ID]mirror.TableCounts, len(live.Tables))
	for i := range live.Tables {
		counts[live.Tables[i].ID] = live.Counts[i]
	}
	for len(r.samples) > 1 && now.Sub(r.samples[1].at) >= rateOver {
		r.samples = r.samples[1:]
	}
	if last := len(r.samples) - 1; last < 0 || now.Sub(r.samples[last].at) >= rateOver/5 {
		r.samples = append(r.samples, sample{now, counts})
	}
	was := r.samples[0]
	seconds := now.Sub(was.at).Seconds()
	if seconds < 0.5 { // too short to tell
		return nil
	}
	perSecond := map[schema.ID]float64{}
	for id, n := range counts {
		before := was.counts[id]
		if moved := n.RowsCopied - before.RowsCopied + n.ChangesApplied - before.ChangesApplied; moved > 0 {
			perSecond[id] = float64(moved) / seconds
		}
	}
	return perSecond
}
