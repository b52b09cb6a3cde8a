package postgres

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fdWire is the wire on a plain socket, in blocking mode and off the runtime's poller: the poller is woken for each
// message even while nobody waits for it, and SO_RCVLOWAT makes the kernel wake us once for many.
type fdWire struct {
	fd    int
	lowat int // SO_RCVLOWAT as last set

	mu    sync.Mutex // a late wake must not write to a descriptor that is closed, and somebody else's by then
	event int        // an eventfd, readable after wake; -1: closed
}

// newWire takes over a connection. It owns conn also when it fails.
func newWire(conn net.Conn) (wire, error) {
	if t, ok := conn.(*tls.Conn); ok {
		if raw, ok := t.NetConn().(syscall.Conn); ok {
			setSilenceTimeout(raw)
		}
		return &netWire{conn: conn}, nil
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return &netWire{conn: conn}, nil
	}
	setSilenceTimeout(c)
	fd, err := duplicate(c)
	conn.Close() // the duplicate keeps the connection open
	if err != nil {
		return nil, err
	}
	w := &fdWire{fd: fd, event: -1}
	sendTimeout := unix.NsecToTimeval(writeTimeout.Nanoseconds())
	if err = unix.SetNonblock(fd, false); err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &sendTimeout)
	}
	if err == nil {
		w.event, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	}
	if err == nil {
		receiveTimeout := unix.NsecToTimeval(gatherTime.Nanoseconds())
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &receiveTimeout)
	}
	// A mark above the receive buffer makes the kernel enlarge the buffer (tcp_set_rcvlowat); SO_RCVBUF would too, but end
	// its own tuning for distant servers. Small messages take several times their length of it.
	for _, mark := range []int{bufferBytes, 1} {
		if err == nil {
			err = w.setLowat(mark)
		}
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func duplicate(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	err = raw.Control(func(from uintptr) { fd, dupErr = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil && dupErr != nil {
		err = os.NewSyscallError("dup", dupErr)
	}
	return fd, err
}

// setSilenceTimeout makes the kernel give a connection up whose peer does not acknowledge bytes; a server that is busy
// with a long transaction still does. A unix socket has no such option and needs none.
func setSilenceTimeout(c syscall.Conn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceTimeout.Milliseconds()))
	})
}

func (w *fdWire) setLowat(n int) error {
	if w.lowat == n {
		return nil
	}
	w.lowat = n
	return unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, n)
}

func (w *fdWire) read(p []byte, wait time.Duration, gather bool) (int, error) {
	if gather {
		if err := w.setLowat(gatherBytes); err != nil {
			return 0, err
		}
		return w.receive(p)
	}
	if err := w.setLowat(1); err != nil {
		return 0, err
	}
	if ready, err := w.poll(wait); !ready || err != nil {
		return 0, err
	}
	return w.receive(p)
}

// poll waits until the socket is readable; false after wait or a wake.
func (w *fdWire) poll(wait time.Duration) (bool, error) {
	millis := -1
	if wait >= 0 {
		millis = int(wait.Milliseconds())
	}
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(w.event), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, millis)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false, os.NewSyscallError("poll", err)
		}
		if fds[1].Revents != 0 {
			var count [8]byte
			_, _ = unix.Read(w.event, count[:]) // resets it
			return false, nil
		}
		return fds[0].Revents != 0, nil
	}
}

// receive returns 0 when the receive time-out passes without a byte.
func (w *fdWire) receive(p []byte) (int, error) {
	for {
		n, err := unix.Read(w.fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, nil
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (w *fdWire) write(p []byte) error {
	for len(p) > 0 {
		n, err := unix.SendmsgN(w.fd, p, nil, nil, unix.MSG_NOSIGNAL)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		p = p[n:]
	}
	return nil
}

func (w *fdWire) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.event < 0 {
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(w.event, one[:]) // fails only if the counter is full: it is readable then
}

func (w *fdWire) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.event >= 0 {
		unix.Close(w.event)
		w.event = -1
	}
	return unix.Close(w.fd)
}
