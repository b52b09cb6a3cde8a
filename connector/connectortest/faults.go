package connectortest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/sluicehq/sluice/connector"
)

// Call names a method of the memory connectors for [Faults].
type Call string

// The calls that faults can meet.
const (
	CallTables   Call = "tables"
	CallStream   Call = "stream"
	CallSnapshot Call = "snapshot"
	CallHead     Call = "head"
	CallFind     Call = "find"
	CallChunks   Call = "chunks"
	CallRead     Call = "read"
	CallReadNext Call = "read next"
	CallAdd      Call = "add"
	CallDrop     Call = "drop"
	CallNext     Call = "next" // a failed Next is a lost connection: the stream is dead
	CallAck      Call = "ack"
	CallPlan     Call = "plan"
	CallClaim    Call = "claim"
	CallCreate   Call = "create"
	CallReady    Call = "ready"
	CallChange   Call = "change"
	CallBegin    Call = "begin"
	CallLoad     Call = "load"
	CallWrite    Call = "write"
	CallCommit   Call = "commit"
)

// ErrCrash is returned by every call once the process is to be thought dead; see [Faults.CrashAt].
var ErrCrash = errors.New("connectortest: crashed here")

// Faults makes calls of a memory source and a memory sink fail. Both may share one; its zero value lets all succeed.
type Faults struct {
	// OnStep, if set, is called before each step with its number, with no lock held; by several goroutines at once. Set
	// before use.
	OnStep func(step int)

	mu      sync.Mutex
	faults  []*Fault
	cleared []string // those that Clear ended before they happened
	counts  map[Call]int
	steps   int
	crashAt int
	crashed bool
}

// Fault is one that a test has asked for. A test that never meets its fault proves nothing: see [Faults.Missed].
type Fault struct {
	faults   *Faults
	calls    []Call
	nth      int  // 0: every
	later    bool // each call after the nth too
	kind     connector.Kind
	action   faultAction
	happened int
}

// Happened returns how many calls the fault has met.
func (r *Fault) Happened() int {
	r.faults.mu.Lock()
	defer r.faults.mu.Unlock()
	return r.happened
}

// meets reports whether the fault is one of the nth call.
func (r *Fault) meets(nth int) bool { return r.nth == 0 || nth == r.nth || r.later && nth > r.nth }

// text names the fault. The caller holds faults.mu.
func (r *Fault) text() string {
	if r.nth == 0 {
		return fmt.Sprintf("every call of %q", r.calls)
	}
	return fmt.Sprintf("call %d of %q, of which there were %d", r.nth, r.calls, r.faults.counts[r.calls[0]])
}

type faultAction uint8

const (
	refuse faultAction = iota + 1
	loseAnswer
	hang
)

// Refuse makes the nth call from now, counted from 1, return an error of this Kind and do nothing; nth 0 means every call.
func (f *Faults) Refuse(call Call, nth int, kind connector.Kind) *Fault {
	return f.add(&Fault{calls: []Call{call}, nth: nth, kind: kind, action: refuse})
}

// RefuseAll makes every one of these calls return an error of this Kind and do nothing: a side is away.
func (f *Faults) RefuseAll(kind connector.Kind, calls ...Call) *Fault {
	return f.add(&Fault{calls: calls, kind: kind, action: refuse})
}

// LoseAnswer makes the nth call from now take effect and return an error all the same.
func (f *Faults) LoseAnswer(call Call, nth int, kind connector.Kind) *Fault {
	return f.add(&Fault{calls: []Call{call}, nth: nth, kind: kind, action: loseAnswer})
}

// Hang makes the nth call from now wait for the end of its context and do nothing.
func (f *Faults) Hang(call Call, nth int) *Fault {
	return f.add(&Fault{calls: []Call{call}, nth: nth, kind: connector.Unavailable, action: hang})
}

// HangFrom makes the nth call from now and each later one wait for the end of its context and do nothing.
func (f *Faults) HangFrom(call Call, nth int) *Fault {
	return f.add(&Fault{calls: []Call{call}, nth: nth, later: true, kind: connector.Unavailable, action: hang})
}

// Clear ends all faults but a crash.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cleared = append(f.cleared, f.missed()...)
	f.faults = nil
}

// Missed returns the faults that were asked for and have met no call.
func (f *Faults) Missed() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Concat(f.cleared, f.missed())
}

func (f *Faults) missed() (texts []string) {
	for _, r := range f.faults {
		if r.happened == 0 {
			texts = append(texts, r.text())
		}
	}
	return texts
}

// CrashAt ends the process, as far as its connectors can tell, at a step counted from 1 over all calls: the step fails
// with [ErrCrash] and so does every later call, none of which takes effect. A call is two steps, before and after its
// effect. 0 never crashes.
func (f *Faults) CrashAt(step int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = step
}

// Crashed reports whether the crash has happened.
func (f *Faults) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Steps returns the number of steps made.
func (f *Faults) Steps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps
}

// Count returns how often a call was made.
func (f *Faults) Count(call Call) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[call]
}

func (f *Faults) add(r *Fault) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.faults = f
	if r.nth > 0 {
		r.nth += f.counts[r.calls[0]]
	}
	f.faults = append(f.faults, r)
	return r
}

// Step counts one step and reports a crash. Tests call it for what else lives and dies with the process.
func (f *Faults) Step() error {
	f.mu.Lock()
	f.steps++
	n := f.steps
	f.mu.Unlock()
	if f.OnStep != nil {
		f.OnStep(n)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed || n == f.crashAt {
		f.crashed = true
		return ErrCrash
	}
	return nil
}

// count counts a call and returns the fault that meets it, if any.
func (f *Faults) count(call Call) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts = make(map[Call]int)
	}
	f.counts[call]++
	for _, r := range f.faults {
		if slices.Contains(r.calls, call) && r.meets(f.counts[call]) {
			r.happened++
			return r
		}
	}
	return nil
}

// guard makes one call, do, under faults. What do returned is given back to it where the caller does not get it.
func guard[T any](ctx context.Context, f *Faults, system string, call Call, do func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	fault := f.count(call)
	if err := f.Step(); err != nil {
		return none, err
	}
	if fault != nil && fault.action == hang {
		<-ctx.Done()
		return none, ctx.Err()
	}
	if fault != nil && fault.action == refuse {
		return none, fault.err(system, call, "refused before it began")
	}
	v, err := do()
	if err != nil {
		return none, err
	}
	err = f.Step()
	if err == nil && fault != nil {
		err = fault.err(system, call, "connection lost before the answer")
	}
	if err != nil {
		giveBack(v)
		return none, err
	}
	return v, nil
}

func (r *Fault) err(system string, call Call, what string) error {
	return &connector.Error{Kind: r.kind, System: system, Op: string(call), Err: errors.New(what)}
}

func giveBack[T any](v T) {
	switch v := any(v).(type) {
	case *connector.Rows:
		v.Release()
	case io.Closer:
		v.Close()
	}
}
