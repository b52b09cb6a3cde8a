package view

import (
	"slices"
	"time"

	"github.com/sluicehq/sluice/internal/mirror"
)

// refreshEvery is how often the view is drawn.
const refreshEvery = 250 * time.Millisecond

// Watch draws how a run stands until the channel ended is closed, and then removes the picture. Draining is closed when the
// run is asked to end. A screen that cannot be written ends it early: the run goes on without.
func Watch(screen *Screen, monitor *mirror.Monitor, colors bool, draining, ended <-chan struct{}) {
	defer func() { _ = screen.Clear() }()
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	var r rates
	var shown Frame
	var last []string
	for {
		if live, ok := monitor.Live(); ok {
			now := time.Now()
			f := Frame{Live: live, Now: now, Rates: r.take(now, &live), Colors: colors}
			select {
			case <-draining:
				f.Draining = true
			default:
			}
			if f.Width, f.Height, ok = screen.Size(); !ok {
				return
			}
			lines := f.Lines()
			same := slices.Equal(lines, last) && f.Width == shown.Width && f.Height == shown.Height
			if !same && screen.Show(lines, f.Width, f.Height) != nil {
				return
			}
			shown, last = f, lines
		}
		select {
		case <-tick.C:
		case <-ended:
			return
		}
	}
}
