package connectortest

import (
	"context"
	"errors"
	"io"
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
	rules   []*faultRule
	counts  map[Call]int
	steps   int
	crashAt int
	crashed bool
}

type faultRule struct {
	call   Call
	nth    int
	kind   connector.Kind
	action faultAction
}

type faultAction uint8

const (
	refuse faultAction = iota + 1
	loseAnswer
	hang
)

// Refuse makes the nth call from now, counted from 1, return an error of this Kind and do nothing; nth 0 means every call.
func (f *Faults) Refuse(call Call, nth int, kind connector.Kind) { f.add(call, nth, kind, refuse) }

// LoseAnswer makes the nth call from now take effect and return an error all the same.
func (f *Faults) LoseAnswer(call Call, nth int, kind connector.Kind) {
	f.add(call, nth, kind, loseAnswer)
}

// Hang makes the nth call from now wait for the end of its context and do nothing.
func (f *Faults) Hang(call Call, nth int) { f.add(call, nth, connector.Unavailable, hang) }

// Clear ends all faults but a crash.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
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

func (f *Faults) add(call Call, nth int, kind connector.Kind, action faultAction) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if nth > 0 {
		nth += f.counts[call]
	}
	f.rules = append(f.rules, &faultRule{call: call, nth: nth, kind: kind, action: action})
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

// count counts a call and returns the rule that meets it, if any.
func (f *Faults) count(call Call) *faultRule {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts = make(map[Call]int)
	}
	f.counts[call]++
	for _, r := range f.rules {
		if r.call == call && (r.nth == 0 || r.nth == f.counts[call]) {
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
	rule := f.count(call)
	if err := f.Step(); err != nil {
		return none, err
	}
	if rule != nil && rule.action == hang {
		<-ctx.Done()
		return none, ctx.Err()
	}
	if rule != nil && rule.action == refuse {
		return none, rule.err(system, "refused before it began")
	}
	v, err := do()
	if err != nil {
		return none, err
	}
	err = f.Step()
	if err == nil && rule != nil {
		err = rule.err(system, "connection lost before the answer")
	}
	if err != nil {
		giveBack(v)
		return none, err
	}
	return v, nil
}

func (r *faultRule) err(system, what string) error {
	return &connector.Error{Kind: r.kind, System: system, Op: string(r.call), Err: errors.New(what)}
}

func giveBack[T any](v T) {
	switch v := any(v).(type) {
	case *connector.Rows:
		v.Release()
	case io.Closer:
		v.Close()
	}
}
