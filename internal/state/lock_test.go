package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestRunningTellsOwnerAndWritesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	if pid, running, err := Running(path); pid != 0 || running || err != nil {
		t.Errorf("no state: %d, %t, %v", pid, running, err)
	}
	if exists(lockPath(path)) {
		t.Error("a look made the lock's file")
	}
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, running, err := Running(path); pid != os.Getpid() || !running || err != nil {
		t.Errorf("held: %d, %t, %v", pid, running, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, running, err := Running(path); running || err != nil {
		t.Errorf("given back: %t, %v", running, err)
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
