package postgres

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// gatherBytes is what a read waits for while much comes. The walsender sends each message by itself: a reader that is
	// woken for each spends most of its time, and of the server's, on being woken.
	gatherBytes = 64 << 10
	// gatherTime is how long such a read waits at most. It bounds the delay of a change, as gatherBytes does the cost.
	gatherTime = 2 * time.Millisecond
	// bufferBytes is what the kernel should hold for us at least, so that the walsender need not wait while we work.
	bufferBytes = 512 << 10
	// writeTimeout bounds the sending of a status update.
	writeTimeout = 10 * time.Second
	// silenceTimeout is how long the peer's kernel may leave bytes unacknowledged before the connection counts as lost.
	silenceTimeout = time.Minute
)

// wire carries a walsender's bytes. One goroutine reads, another one writes; wake may be called by any.
type wire interface {
	// read waits for a byte, at most for wait, without limit if it is negative. With gather it waits for gatherBytes or
	// takes what came within gatherTime. No bytes and no error: nothing came, or wake was called.
	read(p []byte, wait time.Duration, gather bool) (int, error)
	write(p []byte) error
	wake() // ends a read that waits without limit, or the next one
	close() error
}

// netWire is the wire on any connection, TLS included.
type netWire struct {
	conn net.Conn

	mu    sync.Mutex // orders wake and the setting of a read's deadline
	woken bool
}

func (w *netWire) read(p []byte, wait time.Duration, gather bool) (int, error) {
	if gather {
		wait = gatherTime
	}
	if !w.setDeadline(wait) {
		return 0, nil
	}
	total := 0
	for {
		n, err := w.conn.Read(p[total:])
		total += n
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.clearWake()
			return total, nil
		case total > 0 && (err != nil || !gather || total >= min(gatherBytes, len(p))):
			return total, nil // an error shows again at the next read
		case err != nil:
			return 0, err
		}
	}
}

// setDeadline arms the next read; false if wake came before it.
func (w *netWire) setDeadline(wait time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.woken {
		w.woken = false
		return false
	}
	var deadline time.Time
	if wait >= 0 {
		deadline = time.Now().Add(wait)
	}
	_ = w.conn.SetReadDeadline(deadline) // a closed connection shows in the read
	return true
}

func (w *netWire) clearWake() {
	w.mu.Lock()
	w.woken = false
	w.mu.Unlock()
}

func (w *netWire) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = true
	_ = w.conn.SetReadDeadline(serverEpoch) // long past
}

func (w *netWire) write(p []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := w.conn.Write(p)
	return err
}

func (w *netWire) close() error { return w.conn.Close() }
