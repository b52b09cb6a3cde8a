package crash

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/testdb"
	"github.com/sluicehq/sluice/test/process"
)

const (
	exitOK     = 0
	exitUnable = 3 // source, sink or state cannot be used: taken by another process
	onceLimit  = 2 * time.Minute
)

// awaitStreaming waits until a row inserted now arrives.
func (m *mirror) awaitStreaming(t *testing.T, p *process.Process) {
	t.Helper()
	key := testdb.QueryText(t, m.source, "INSERT INTO keyed SELECT max(id) + 1, nextval('version') FROM keyed RETURNING id")
	testdb.Eventually(t, func() error {
		select {
		case <-p.Exited():
			t.Fatalf("the process ended by itself, exit code %d\n%s", p.ExitCode(), p.Log.Tail(40))
		default:
		}
		rows, err := testdb.TryQuery(m.sink, "SELECT FROM keyed WHERE id = "+key)
		if err == nil && len(rows) == 0 {
			return fmt.Errorf("row %s has not arrived", key)
		}
		return err
	})
}

func TestRunOnceEndsWithWhatTheSourceHeld(t *testing.T) {
	m := newMirror(t, *seedFlag)
	m.stopWriter(t)
	m.sluice.Once(t, exitOK, onceLimit)
	if err := m.compare(t); err != nil {
		t.Errorf("after the first run: %v", err)
	}
	m.writer = startWriter(t, m.source, *seedFlag+1, 8, *rateFlag)
	testdb.Eventually(t, func() error {
		if n := m.writer.transactions.Load(); n < 300 {
			return fmt.Errorf("%d transactions", n)
		}
		return nil
	})
	m.stopWriter(t)
	m.sluice.Once(t, exitOK, onceLimit)
	if err := m.compare(t); err != nil {
		t.Errorf("after the second run: %v", err)
	}
}

// A writer that never ends must not keep --once from ending.
func TestRunOnceEndsUnderLoad(t *testing.T) {
	m := newMirror(t, *seedFlag)
	m.sluice.Once(t, exitOK, onceLimit)
	m.stopWriter(t)
	m.sluice.Once(t, exitOK, onceLimit)
	if err := m.compare(t); err != nil {
		t.Error(err)
	}
}

func TestGracefulStopDrains(t *testing.T) {
	m := newMirror(t, *seedFlag)
	p := m.sluice.Run(t)
	m.awaitStreaming(t, p)
	if code, err := p.Stop(stopLimit); err != nil || code != exitOK {
		t.Fatalf("after SIGTERM under load: exit code %d, %v; want 0", code, err)
	}
	m.stopWriter(t)
	p = m.sluice.Run(t)
	m.finish(t, p)
}

func TestSecondProcessOnTheSameStateIsRefused(t *testing.T) {
	m := newMirror(t, *seedFlag)
	first := m.sluice.Run(t)
	m.awaitStreaming(t, first)
	second := m.sluice.Run(t)
	if code, err := second.Wait(stopLimit); err != nil || code != exitUnable {
		t.Errorf("second process: exit code %d, %v; want %d\n%s", code, err, exitUnable, second.Log.Tail(20))
	}
	m.finish(t, first)
}

func TestSecondProcessWithItsOwnStateIsRefusedOrFencesTheFirst(t *testing.T) {
	m := newMirror(t, *seedFlag)
	first := m.sluice.Run(t)
	m.awaitStreaming(t, first)
	second := process.New(t, program, m.config()).Run(t)
	m.oneSurvives(t, first, second)
}

// A process that was frozen, and replaced meanwhile, must not write when it wakes up.
func TestFrozenProcessThatWakesUpCannotWrite(t *testing.T) {
	m := newMirror(t, *seedFlag)
	first := m.sluice.Run(t)
	m.awaitStreaming(t, first)
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := process.New(t, program, m.config()).Run(t)
	if second.Log.Await("streaming", 10*time.Second) {
		m.awaitStreaming(t, second)
	}
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	m.oneSurvives(t, first, second)
}

// oneSurvives waits until one of two processes has ended, with the exit code of one that cannot have what it needs, and
// lets the other end the mirror.
func (m *mirror) oneSurvives(t *testing.T, first, second *process.Process) {
	t.Helper()
	loser, winner := first, second
	select {
	case <-first.Exited():
	case <-second.Exited():
		loser, winner = second, first
	case <-time.After(time.Minute):
		t.Fatalf("two processes write one mirror\nfirst:\n%s\nsecond:\n%s", first.Log.Tail(20), second.Log.Tail(20))
	}
	if loser.ExitCode() != exitUnable {
		t.Errorf("the process that lost: exit code %d, want %d\n%s", loser.ExitCode(), exitUnable, loser.Log.Tail(20))
	}
	t.Logf("the first process survived: %v", winner == first)
	m.finish(t, winner)
}
