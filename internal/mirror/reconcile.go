package mirror

import (
	"fmt"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/apply"
)

// evidence is what the sink, the state and the source say of one table when a session starts. The sink is the truth for
// what is applied; the state tells a sink that was restored or recreated from one that is merely ahead of it.
type evidence struct {
	entry       *apply.Checkpoint // the sink's; nil: none
	saved       *apply.Checkpoint // the sink's as the state saw it last; nil: none, the table is new or the state was lost
	copy        int               // the last ready copy in the sink; 0: the destination is not there
	fresh       bool              // the log starts now: nobody has the changes since the checkpoint
	elsewhere   string            // why the entry is not of the log's history; "": it is
	sinkBehind  bool              // the sink's floor is before the state's: the sink is older than what was acknowledged
	settings    string            // as configured now
	fingerprint string            // of the version that its rows are stored under, as far as that is known, else the present one
	renamed     bool              // it has another name than its rows are stored under
	unfinished  *unfinished       // the copy that the sink's entries say was begun; nil: none that can be gone on with
	newest      int               // the newest copy that the state knows of
}

// action is what a session does with a table.
type action uint8

const (
	resume  action = iota // go on from the entry
	carryOn               // go on with the copy that was begun
	recopy                // copy it (again)
	refuse                // leave it alone until a person has acted
)

// reconcile decides what to do with a table, and why where it is not to go on.
func reconcile(e evidence, compare func(a, b connector.Position) (int, error)) (action, string, error) {
	switch {
	case e.entry == nil && e.saved == nil:
		return recopy, "", nil
	case e.entry == nil:
		return recopy, "the sink has no checkpoint of it any more: the sink was recreated", nil
	case e.fresh:
		return recopy, "the log starts anew", nil
	case !e.entry.Ready && e.copyGoesOn():
		return carryOn, "", nil
	case !e.entry.Ready:
		return recopy, "its last copy was interrupted, or it was left out since", nil
	case e.entry.Settings != e.settings && e.renamed:
		return recopy, "it has another name now, and with it another destination", nil
	case e.entry.Settings != e.settings:
		return refuse, settingsDiffer(e.entry.Settings, e.settings), nil
	case e.elsewhere != "":
		return recopy, e.elsewhere, nil
	case e.copy == 0:
		return recopy, "its destination is not in the sink any more", nil
	case e.copy != e.entry.Copy:
		return recopy, fmt.Sprintf("its destination holds copy %d, its checkpoint belongs to copy %d", e.copy, e.entry.Copy), nil
	case e.entry.Fingerprint != e.fingerprint:
		return recopy, "the version that its rows are stored under is not known", nil
	case e.saved == nil:
		return olderUnless(!e.sinkBehind)
	case !e.saved.Ready || e.saved.Copy != e.entry.Copy:
		return olderUnless(e.saved.Copy < e.entry.Copy && !e.sinkBehind)
	}
	order, err := compare(e.entry.Position, e.saved.Position)
	if err != nil {
		return recopy, "", err
	}
	switch {
	case order == 0 && e.entry.Count >= e.saved.Count, order > 0 && !e.sinkBehind:
		return resume, "", nil
	case order > 0:
		return recopy, "the sink was restored: changes between its floor and the acknowledged position may be missing", nil
	default:
		return olderUnless(false)
	}
}

// olderUnless lets a table go on where the sink is known to be the newer of the two.
func olderUnless(newer bool) (action, string, error) {
	if newer {
		return resume, "", nil
	}
	return recopy, "the sink holds an older state of it than was seen there before: the sink was restored", nil
}

// copyGoesOn reports whether the chunks that the sink has of a copy are those that were loaded last, of the table as it is.
func (e *evidence) copyGoesOn() bool {
	restored := e.sinkBehind || e.newest > e.entry.Copy || e.saved != nil && e.saved.Ready && e.saved.Copy >= e.entry.Copy
	return e.unfinished != nil && e.elsewhere == "" && len(e.unfinished.missing) < e.unfinished.chunks && !restored && e.copy < e.entry.Copy &&
		e.entry.Settings == e.settings && e.entry.Fingerprint == e.fingerprint
}
