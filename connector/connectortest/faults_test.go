package connectortest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicehq/sluice/connector"
)

func TestFaultsMeetTheCallsThatTheyAreMeantForAndTellWhichNeverDid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Faults
		call := func(c Call) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := guard(ctx, &f, "memory", c, func() (struct{}, error) { return struct{}{}, nil })
			return err
		}
		ok := func(c Call) {
			t.Helper()
			if err := call(c); err != nil {
				t.Errorf("%s: %v", c, err)
			}
		}
		fails := func(c Call, kind connector.Kind) {
			t.Helper()
			if err := call(c); connector.KindOf(err) != kind {
				t.Errorf("%s: %v, want %v", c, err, kind)
			}
		}
		ok(CallNext)
		second := f.Refuse(CallNext, 2, connector.Gap) // from now
		never := f.LoseAnswer(CallAck, 2, connector.Unavailable)
		ok(CallNext)
		fails(CallNext, connector.Gap)
		ok(CallNext)
		ok(CallAck)
		if second.Happened() != 1 || never.Happened() != 0 {
			t.Errorf("happened %d and %d times", second.Happened(), never.Happened())
		}
		missed := []string{`call 2 of ["ack"], of which there were 1`}
		if got := f.Missed(); !slices.Equal(got, missed) {
			t.Errorf("missed: %q", got)
		}
		f.Clear()
		ok(CallAck)
		f.RefuseAll(connector.Fenced, CallClaim, CallBegin)
		f.RefuseAll(connector.Fenced, CallPlan)
		fails(CallBegin, connector.Fenced)
		hang := f.HangFrom(CallRead, 2)
		ok(CallRead)
		for range 2 {
			if err := call(CallRead); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a call that hangs: %v", err)
			}
		}
		missed = append(missed, `every call of ["plan"]`)
		if got := f.Missed(); hang.Happened() != 2 || !slices.Equal(got, missed) {
			t.Errorf("hung %d times; missed: %q", hang.Happened(), got)
		}
	})
}
