package sluice

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/sluicehq/sluice/internal/config"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/nearest"
	"github.com/sluicehq/sluice/internal/state"
	"github.com/sluicehq/sluice/schema"
)

// CommandOptions is how a command for tables is given.
type CommandOptions struct {
	Row     string              // of RetryQuarantined and DropQuarantined: the key of a row, as Quarantine shows it; "": all rows
	NoWait  bool                // return when the running mirror has accepted it
	Timeout time.Duration       // how long to wait at most; 0: no limit
	Notify  func(CommandResult) // told of each table as soon as its result is there; may be nil
}

// CommandResult is what a command came to for one table.
type CommandResult struct {
	Table     schema.Name
	Done      bool   // it was carried out; else it is recorded, for the run or for the next start
	Fulfilled bool   // Done: the table is what was asked for
	Outcome   string // for people
}

// ErrTimeout says that a command was not carried out within CommandOptions.Timeout. It stays recorded.
var ErrTimeout = errors.New("not done within the time; it goes on")

// NoTableError says that a pattern matches no table that is mirrored.
type NoTableError struct {
	Pattern  string
	Nearest  []string // names that are like it
	NeverRun bool     // the mirror has no tables yet
}

// Error names the tables that might have been meant.
func (e *NoTableError) Error() string {
	text := fmt.Sprintf("no table of the mirror matches %q", e.Pattern)
	switch {
	case e.NeverRun:
		text += ": it was never run"
	case len(e.Nearest) > 0:
		text += "; did you mean " + strings.Join(e.Nearest, " or ") + "?"
	}
	return text
}

// Pause stops tables until Resume, whatever else happens. It returns when nothing of them is being written. Tables are
// names or patterns. What the source changes meanwhile is kept as long as the spool has room, so that they go on without a
// new copy.
func (m *Mirror) Pause(ctx context.Context, tables []string, o CommandOptions) ([]CommandResult, error) {
	return m.command(ctx, state.Pause, tables, o)
}

// Resume takes up tables that a person or a fault has paused, and returns when each has caught up or is paused again.
func (m *Mirror) Resume(ctx context.Context, tables []string, o CommandOptions) ([]CommandResult, error) {
	return m.command(ctx, state.Resume, tables, o)
}

// Resync copies tables again, and accepts settings that were changed. It returns when the new copies are in place.
func (m *Mirror) Resync(ctx context.Context, tables []string, o CommandOptions) ([]CommandResult, error) {
	return m.command(ctx, state.Resync, tables, o)
}

// command records a command for each of the tables and waits for what the running mirror makes of it. The end of ctx ends
// the waiting alone. While the mirror does not run it returns at once: the next start carries the commands out.
func (m *Mirror) command(ctx context.Context, kind state.CommandKind, tables []string, o CommandOptions) ([]CommandResult, error) {
	return m.commandFor(ctx, kind, tables, o, func(t state.Table) ([]string, error) { return []string{""}, nil })
}

// commandFor does so for rows of tables, which rows tells; "" stands for all of a table.
func (m *Mirror) commandFor(
	ctx context.Context, kind state.CommandKind, tables []string, o CommandOptions, rows func(state.Table) ([]string, error),
) ([]CommandResult, error) {
	store, err := state.OpenBeside(ctx, m.file.State.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &NoTableError{Pattern: strings.Join(tables, " "), NeverRun: true}
	}
	if err != nil {
		return nil, err
	}
	defer store.Close()
	known, err := store.Tables(ctx)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(known, tables)
	if err != nil {
		return nil, err
	}
	var commands []state.Command
	for _, t := range chosen {
		rows, err := rows(t)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			commands = append(commands, state.Command{Kind: kind, Table: t.ID, Name: t.Name, Row: row, AskedAt: time.Now(), AskedBy: askedBy()})
		}
	}
	if len(commands) == 0 {
		return nil, nil
	}
	numbers, err := store.AddCommands(ctx, commands...)
	if err != nil {
		return nil, err
	}
	w := &waiter{store: store, path: m.file.State.Path, kind: kind, numbers: numbers, options: o}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.Timeout, ErrTimeout)
		defer cancel()
	}
	err = w.wait(ctx)
	return w.results, err
}

// TableNames returns the names of the tables that are mirrored, as the state knows them.
func (m *Mirror) TableNames(ctx context.Context) ([]schema.Name, error) {
	store, err := state.OpenRead(ctx, m.file.State.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer store.Close()
	tables, err := store.Tables(ctx)
	var names []schema.Name
	for _, t := range tables {
		if t.Phase != string(mirror.Dropped) {
			names = append(names, t.Name)
		}
	}
	return names, err
}

// choose returns the tables that the patterns match, each once, by name. Those that cannot be mirrored are taken only where
// a pattern matches nothing else.
func choose(known []state.Table, patterns []string) ([]state.Table, error) {
	var chosen []state.Table
	for _, text := range patterns {
		pattern, err := config.ParsePattern(text)
		if err != nil {
			return nil, &NoTableError{Pattern: text}
		}
		var able, refused []state.Table
		for _, t := range known {
			switch {
			case t.Phase == string(mirror.Dropped) || !pattern.Match(t.Name):
			case t.Phase == string(mirror.Refused):
				refused = append(refused, t)
			default:
				able = append(able, t)
			}
		}
		if len(able) == 0 {
			able = refused
		}
		if len(able) == 0 {
			return nil, &NoTableError{Pattern: text, Nearest: likely(text, known)}
		}
		chosen = append(chosen, able...)
	}
	slices.SortFunc(chosen, func(a, b state.Table) int { return strings.Compare(a.Name.String(), b.Name.String()) })
	return slices.CompactFunc(chosen, func(a, b state.Table) bool { return a.ID == b.ID }), nil
}

// likely returns the names of mirrored tables that are most like a text.
func likely(text string, known []state.Table) []string {
	var names []string
	for _, t := range known {
		if t.Phase == string(mirror.Dropped) {
			continue
		}
		name := t.Name
		if name.Schema == "public" && !strings.Contains(text, ".") { // as config.ParsePattern has it
			name.Schema = ""
		}
		names = append(names, name.String())
	}
	return nearest.Some(text, names)
}

// askedBy tells people who gave a command.
func askedBy() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("%s@%s, process %d", name, host, os.Getpid())
}

// lookEvery is how often a command that waits looks at the state.
const lookEvery = 100 * time.Millisecond

// doing is what carrying a command out does.
var doing = map[state.CommandKind]string{
	state.Pause: "pause it", state.Resume: "resume it", state.Resync: "resync it",
	state.Retry: "try its rows in quarantine again", state.Drop: "drop its rows from quarantine",
}

// waiter waits for commands.
type waiter struct {
	store   *state.Store
	path    string // of the state
	kind    state.CommandKind
	numbers []int64 // the first is the lowest
	options CommandOptions
	results []CommandResult
}

// wait collects the results of the commands as they come.
func (w *waiter) wait(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		owner, err := state.Running(w.path) // before the look: what it had done when it ended is seen
		if err != nil {
			return err
		}
		pending, err := w.look(ctx)
		switch {
		case ctx.Err() != nil && err != nil:
			return context.Cause(ctx)
		case err != nil || len(pending) == 0:
			return err
		}
		if owner == nil {
			for _, c := range pending {
				w.add(CommandResult{Table: c.Name, Outcome: "recorded: the mirror does not run, its next start will " + doing[w.kind]})
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look takes the results that are there now, and returns the commands that have none.
func (w *waiter) look(ctx context.Context) (pending []state.Command, err error) {
	commands, err := w.store.CommandsFrom(ctx, w.numbers[0])
	if err != nil {
		return nil, err
	}
	open := w.numbers[:0:0]
	for _, c := range commands {
		switch {
		case !slices.Contains(w.numbers, c.Number):
		case !c.DoneAt.IsZero():
			w.add(CommandResult{Table: c.Name, Done: true, Fulfilled: !c.Failed, Outcome: c.Outcome})
		case w.options.NoWait && !c.AcceptedAt.IsZero():
			w.add(CommandResult{Table: c.Name, Outcome: "accepted"})
		default:
			pending, open = append(pending, c), append(open, c.Number)
		}
	}
	w.numbers = open
	return pending, nil
}

func (w *waiter) add(r CommandResult) {
	w.results = append(w.results, r)
	if w.options.Notify != nil {
		w.options.Notify(r)
	}
}
