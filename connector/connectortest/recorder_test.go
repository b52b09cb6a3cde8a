package connectortest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// recorder is a testing.TB whose failures are noted and fail nothing.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failed   bool
	skipped  bool
	messages []string
	cleanups []func()
}

// record runs a check and returns what it reported.
func record(t *testing.T, check func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // FailNow ends the goroutine that calls it
		defer close(done)
		check(r)
	}()
	<-done
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return r
}

func (r *recorder) note(failed, skipped bool, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.skipped = r.skipped || skipped
	if message != "" {
		r.messages = append(r.messages, message)
	}
}

func (r *recorder) Helper()                      {}
func (r *recorder) Fail()                        { r.note(true, false, "") }
func (r *recorder) Error(args ...any)            { r.note(true, false, fmt.Sprint(args...)) }
func (r *recorder) Errorf(f string, args ...any) { r.note(true, false, fmt.Sprintf(f, args...)) }
func (r *recorder) Log(args ...any)              { r.note(false, false, fmt.Sprint(args...)) }
func (r *recorder) Logf(f string, args ...any)   { r.note(false, false, fmt.Sprintf(f, args...)) }

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(f string, args ...any) {
	r.Errorf(f, args...)
	runtime.Goexit()
}

func (r *recorder) SkipNow() {
	r.note(false, true, "")
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) {
	r.note(false, true, fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Skipf(f string, args ...any) {
	r.note(false, true, fmt.Sprintf(f, args...))
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) Skipped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.skipped
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}
