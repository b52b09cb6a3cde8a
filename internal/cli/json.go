package cli

import (
	"encoding/json"
	"io"
)

// writeJSON prints a result for programs.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
