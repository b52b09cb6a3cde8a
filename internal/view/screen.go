package view

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Screen is the end of a terminal's output: a picture that is drawn anew in place, and lines that are written above it. Every
// change is one write, so that nothing of others comes in between. Without a picture, what is written passes through. It
// is safe for concurrent use.
//
// The picture stays where a program that is killed leaves it: no setting of the terminal outlives a write.
type Screen struct {
	out  io.Writer
	size func() (width, height int, ok bool)

	mu            sync.Mutex
	lines         []string // the picture; nil: there is none
	width, height int      // of the terminal when it was drawn
}

// The sequences of ECMA-48 and of DEC's terminals that are used.
const (
	lineEnd    = "\x1b[K\r\n" // erase what is left of an older line
	eraseBelow = "\x1b[J"
	eraseAll   = "\x1b[H\x1b[2J" // and go to the top
	wrapOff    = "\x1b[?7l"      // a line that is wider than we think is cut by the terminal
	wrapOn     = "\x1b[?7h"
)

// NewScreen returns a screen that writes to out.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: out, size: func() (int, int, bool) { return 0, 0, false }}
	if file, ok := out.(*os.File); ok {
		s.size = func() (int, int, bool) { return sizeOf(file) }
	}
	return s
}

// sizeOf returns the columns and lines of a terminal; ok is false if file is none.
func sizeOf(file *os.File) (width, height int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	if size.Col == 0 || size.Row == 0 { // a terminal that does not know, as a serial line
		return 80, 24, true
	}
	return int(size.Col), int(size.Row), true
}

// Size returns the columns and lines of the terminal as they are now; ok is false if there is none to draw on.
func (s *Screen) Size() (width, height int, ok bool) { return s.size() }

// Write writes above the picture. p is whole lines, mostly one.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		return s.out.Write(p)
	}
	var b bytes.Buffer
	s.toTop(&b)
	b.WriteString(eraseBelow)
	b.Write(bytes.TrimSuffix(p, []byte("\n")))
	b.WriteString("\r\n")
	s.draw(&b)
	if _, err := s.out.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Show puts lines in place of the picture. They are not wider than the terminal, and fewer than its lines.
func (s *Screen) Show(lines []string, width, height int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	if s.lines != nil && (width != s.width || height != s.height) {
		// Terminals differ in what they do with the lines of another size: where the picture is now is not known.
		b.WriteString(eraseAll)
	} else {
		s.toTop(&b)
	}
	s.lines, s.width, s.height = lines, width, height
	s.draw(&b)
	_, err := s.out.Write(b.Bytes())
	return err
}

// Clear removes the picture.
func (s *Screen) Clear() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lines == nil {
		return nil
	}
	var b bytes.Buffer
	s.toTop(&b)
	b.WriteString(eraseBelow)
	s.lines = nil
	_, err := s.out.Write(b.Bytes())
	return err
}

// toTop goes to where the picture begins.
func (s *Screen) toTop(b *bytes.Buffer) {
	b.WriteString("\r")
	if len(s.lines) > 0 {
		fmt.Fprintf(b, "\x1b[%dA", len(s.lines))
	}
}

// draw writes the picture from where the cursor is, and leaves the cursor below it.
func (s *Screen) draw(b *bytes.Buffer) {
	b.WriteString(wrapOff)
	b.WriteString(strings.Join(s.lines, lineEnd) + lineEnd)
	b.WriteString(eraseBelow + wrapOn)
}
