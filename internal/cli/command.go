package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicehq/sluice"
)

// give is a method of the library that has something done to tables.
type give func(m *sluice.Mirror, ctx context.Context, tables []string, o sluice.CommandOptions) ([]sluice.CommandResult, error)

const commandHelp = `

TABLE is a name or a pattern like public.* (in quotes, so that the shell leaves it alone). A mirror that does not run
carries the command out at its next start. Ctrl-C ends the waiting, not what was asked for.

Exit codes: 0 done, or recorded; 1 a table is not what was asked for, or --timeout has passed; 2 no such table.`

func (a *app) pauseCommand() *cobra.Command {
	return a.tableCommand("pause", "Stop tables until they are resumed; waits until nothing of them is being written",
		`Stop tables until they are resumed; what happens to the others does not change. Returns when nothing of them is being
written. What the source changes meanwhile is kept while the spool has room, so that they go on without a new copy. A copy
under way is stopped.`, (*sluice.Mirror).Pause)
}

func (a *app) resumeCommand() *cobra.Command {
	return a.tableCommand("resume", "Take up paused tables; waits until they have caught up",
		`Take up tables that a person or a fault has paused, at once, and forget their earlier faults. Returns when each has caught
up, or is paused again.`, (*sluice.Mirror).Resume)
}

func (a *app) resyncCommand() *cobra.Command {
	return a.tableCommand("resync", "Copy tables again in place of what the sink holds; waits until the copies are in place",
		`Copy tables again. Readers of the sink see the old rows until the new ones take their place in one step. It accepts
settings that were changed, and ends a pause.`, (*sluice.Mirror).Resync)
}

func (a *app) tableCommand(name, short, long string, run give) *cobra.Command {
	return a.commandWith(new(sluice.CommandOptions), name, short, long, run)
}

// commandWith is tableCommand with options of which flags of the caller's own may set more.
func (a *app) commandWith(o *sluice.CommandOptions, name, short, long string, run give) *cobra.Command {
	c := &cobra.Command{
		Use:               name + " FILE TABLE...",
		Short:             short,
		Long:              long + commandHelp,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: completeTables,
		RunE: func(c *cobra.Command, args []string) error {
			m, err := sluice.Load(args[0])
			if err != nil {
				return err
			}
			o.Notify = func(r sluice.CommandResult) { fmt.Fprintf(a.stdout, "%s: %s\n", r.Table, r.Outcome) }
			results, err := run(m, c.Context(), args[1:], *o)
			for _, r := range results {
				if r.Done && !r.Fulfilled && err == nil {
					err = errNotInOrder
				}
			}
			if errors.Is(err, context.Canceled) {
				err = fmt.Errorf("not waiting any more; what was asked for goes on: %w", err)
			}
			return err
		},
	}
	c.Flags().BoolVar(&o.NoWait, "no-wait", false, "return when the running mirror has accepted it")
	c.Flags().DurationVar(&o.Timeout, "timeout", 0, "wait so long at most, like 30s; 0: as long as it takes")
	return c
}

// completionTime is how long the completion of names of tables may take.
const completionTime = 2 * time.Second

// completeTables completes the names of tables from the state.
func completeTables(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
	}
	m, err := sluice.Load(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), completionTime)
	defer cancel()
	names, err := m.TableNames(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = n.String()
	}
	return texts, cobra.ShellCompDirectiveNoFileComp
}
