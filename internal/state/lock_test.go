package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestRunningTellsOwnerAndWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	if owner, err := Running(path); owner != nil || err != nil {
		t.Errorf("no state: %v, %v", owner, err)
	}
	if exists(lockPath(path)) {
		t.Error("a look made the lock's file")
	}
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if owner, err := Running(path); err != nil || owner == nil || owner.PID != os.Getpid() || time.Since(owner.Since) > time.Minute {
		t.Errorf("held: %v, %v", owner, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if owner, err := Running(path); owner != nil || err != nil {
		t.Errorf("given back: %v, %v", owner, err)
	}
}

func TestRemovedStateLeavesNoFileAndNoLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	late, err := os.OpenFile(lockPath(path), os.O_RDWR, 0) // as a run that starts at this moment
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := errors.Join(s.AddEvent(t.Context(), Event{Kind: "k"}), s.Remove()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	open(t, path)
	if err := lockFile(late, path); err != nil {
		t.Fatal(err)
	}
	if isAt(late, lockPath(path)) {
		t.Error("the lock of a removed state counts as that of the new one")
	}
}
