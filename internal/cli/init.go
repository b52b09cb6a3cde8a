package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// starter is a config file to begin with. It is valid as it stands.
//
//go:embed starter.yaml
var starter []byte

// fileError says that a file named on the command line cannot be written.
type fileError struct{ error }

func (e fileError) Unwrap() error { return e.error }

func (a *app) initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a config file to begin with, sluice.yaml by default",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			path := "sluice.yaml"
			if len(args) > 0 {
				path = args[0]
			}
			if err := writeNew(path, starter); err != nil {
				return err
			}
			fmt.Fprintf(a.stdout, "%s is written; change it, then: sluice plan %s\n", path, path)
			return nil
		},
	}
}

// writeNew writes a file that must not exist yet.
func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fileError{fmt.Errorf("%s exists already and is left as it is", path)}
	}
	if err != nil {
		return fileError{err}
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		return fileError{err}
	}
	return nil
}
