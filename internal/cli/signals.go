package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reloadOnSignal returns a channel that receives at each SIGHUP; several that come at once may be one.
func reloadOnSignal() (reload <-chan struct{}, stop func()) {
	signals, asked, done := make(chan os.Signal, 1), make(chan struct{}), make(chan struct{})
	signal.Notify(signals, syscall.SIGHUP)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-signals:
			case <-done:
				return
			}
			select {
			case asked <- struct{}{}:
			case <-done:
				return
			}
		}
	})
	return asked, func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
	}
}

// drainOnSignal returns a context that the first SIGINT or SIGTERM ends, so that the command can bring what it has begun
// to an end. The second one calls exit: nobody wants to wait then, and nothing is lost, only left to the next start.
func drainOnSignal(ctx context.Context, stderr io.Writer, exit func(code int)) (drained context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2) // the two that count
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, onSignal := range []func(){
			func() {
				fmt.Fprintln(stderr, "sluice: stopping when what was begun is done; a second signal stops at once")
				cancel()
			},
			func() { exit(exitAtOnce) },
		} {
			select {
			case <-signals:
				onSignal()
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
		cancel()
	}
}
