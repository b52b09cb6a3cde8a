// Package nearest finds what somebody meant who mistyped a name.
package nearest

import (
	"fmt"
	"slices"
	"strings"
)

// Hint returns a question about the option that is most like word, to stand behind a message; "" if none is.
func Hint(word string, options []string) string {
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, o := range options {
		if d := distance(word, o); d < bestDistance && d < len(o) {
			best, bestDistance = o, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// Some returns the options that are like word or hold it, the likest first: three at most.
func Some(word string, options []string) []string {
	limit := max(2, len(word)/3)
	like := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return distance(word, o) > limit && !strings.Contains(o, word) })
	slices.SortStableFunc(like, func(a, b string) int { return distance(word, a) - distance(word, b) })
	return like[:min(3, len(like))]
}

// distance is the number of characters to insert, delete or replace that turns a into b (Levenshtein).
func distance(a, b string) int {
	previous := make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replace := previous[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(replace, previous[j+1]+1, row[j]+1)
		}
		previous = row
	}
	return previous[len(b)]
}
