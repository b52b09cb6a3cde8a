package view

import (
	"fmt"
	"io"
	"strings"
)

// Grid is text in aligned columns.
type Grid struct{ rows [][]string }

// NewGrid returns a grid with this head line.
func NewGrid(head ...string) *Grid { return &Grid{rows: [][]string{head}} }

// Add adds a line.
func (g *Grid) Add(cells ...string) {
	for i, cell := range cells {
		cells[i] = Safe(cell)
	}
	g.rows = append(g.rows, cells)
}

// Print writes the lines, each behind indent.
func (g *Grid) Print(w io.Writer, indent string) {
	var widths []int
	for _, row := range g.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Width(cell))
		}
	}
	for _, row := range g.rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(pad(cell, widths[i]+2))
		}
		fmt.Fprintf(w, "%s%s\n", indent, strings.TrimRight(b.String(), " "))
	}
}

// Empty reports whether there is nothing but the head line.
func (g *Grid) Empty() bool { return len(g.rows) <= 1 }
