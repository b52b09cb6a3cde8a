package state

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicehq/sluice/schema"
)

func TestCommandGivenBesideTheOwnerReachesItAndItsOutcomeComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	if _, err := OpenBeside(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no state: %v", err)
	}
	owner := open(t, path)
	beside, err := OpenBeside(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	asked := Command{Kind: Pause, Table: "1", AskedAt: time.Unix(9, 0).UTC(), AskedBy: "ann"}
	numbers, err := beside.AddCommands(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	open, err := owner.OpenCommands(t.Context())
	asked.Number = numbers[0]
	if diff := cmp.Diff([]Command{asked}, open); err != nil || diff != "" {
		t.Fatalf("%v, -asked +seen by the owner:\n%s", err, diff)
	}
	asked.AcceptedAt, asked.DoneAt, asked.Outcome = time.Unix(10, 0).UTC(), time.Unix(11, 0).UTC(), "paused"
	if err := owner.SaveCommand(t.Context(), asked); err != nil {
		t.Fatal(err)
	}
	seen, err := beside.CommandsFrom(t.Context(), asked.Number)
	if diff := cmp.Diff([]Command{asked}, seen); err != nil || diff != "" {
		t.Errorf("%v, -done +seen by who asked:\n%s", err, diff)
	}
}

func TestLaterCommandTakesThePlaceOfOneOfItsTable(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	ask := func(kind CommandKind, table schema.ID) {
		t.Helper()
		if err := addCommands(t.Context(), s, Command{Kind: kind, Table: table, AskedAt: time.Unix(9, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	wantOpen := func(want ...string) {
		t.Helper()
		commands, err := s.OpenCommands(t.Context())
		var got []string
		for _, c := range commands {
			got = append(got, fmt.Sprintf("%s %s", c.Kind, c.Table))
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatalf("%v, -want +open:\n%s", err, diff)
		}
	}
	ask(Pause, "a")
	ask(Pause, "b")
	ask(Resync, "a")
	ask(Resume, "a")
	wantOpen("pause b", "resync a", "resume a")
	ask(Resync, "a")
	wantOpen("pause b", "resume a", "resync a")
	commands, err := s.OpenCommands(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commands[2].AcceptedAt = time.Unix(10, 0)
	if err := s.SaveCommand(t.Context(), commands[2]); err != nil {
		t.Fatal(err)
	}
	ask(Resync, "a")
	wantOpen("pause b", "resume a", "resync a", "resync a")
}

func TestCommandsThatAreDoneAreBounded(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "s.db"))
	var many []Command
	for i := range maxCommands + 50 { // each but the last takes the place of the one before
		many = append(many, Command{Kind: []CommandKind{Pause, Resume}[i%2], Table: "1", AskedAt: time.Unix(9, 0)})
	}
	if err := addCommands(t.Context(), s, many...); err != nil {
		t.Fatal(err)
	}
	all, err := s.CommandsFrom(t.Context(), 0)
	if err != nil || len(all) != maxCommands+1 || all[len(all)-1].Number != int64(len(many)) {
		t.Errorf("%v, %d commands kept", err, len(all))
	}
	if all[0].Outcome != superseded || !all[0].Failed {
		t.Errorf("the oldest: %+v", all[0])
	}
}
