package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sluicehq/sluice/connector"
)

const (
	// maxFileBytes bounds a config file; the YAML parser needs a multiple of it in memory.
	maxFileBytes = 256 << 10
	// maxFindings bounds what is told at once.
	maxFindings = 100
)

// nameForm keeps a name usable in the names of slots, files and entries of every system.
var nameForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// Load reads a config file and checks it against the drivers' settings. It opens no connection. The error is an
// [*Error] with everything that is wrong at once.
func Load(path string, drivers []connector.Driver) (*File, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, wholeFile(path, err)
	}
	data, err := readLimited(path, maxFileBytes)
	if err != nil {
		return nil, wholeFile(path, err)
	}
	d := &decoder{path: path, dir: filepath.Dir(absolute), drivers: drivers, lookupEnv: os.LookupEnv, readFile: readLimited}
	return d.load(data)
}

func wholeFile(path string, err error) *Error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // the path stands in front already
	}
	return &Error{Path: path, Findings: []Finding{{Text: err.Error()}}}
}

// readLimited reads a whole file of at most limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("is larger than %v", Size(limit))
	}
	return data, err
}

func (d *decoder) load(data []byte) (*File, error) {
	file := newFile()
	file.Path, file.Dir = d.path, d.dir
	if root := d.parse(data); root != nil {
		d.file(root, file)
	}
	if len(d.findings) > 0 {
		slices.SortStableFunc(d.findings, func(a, b Finding) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		if len(d.findings) > maxFindings {
			d.findings = append(d.findings[:maxFindings], Finding{Text: "and more"})
		}
		return nil, &Error{Path: d.path, Findings: d.findings}
	}
	return file, nil
}

// parse returns the file's one document, or nil after a finding.
func (d *decoder) parse(data []byte) ast.Node {
	tree, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey()) // we tell of all duplicates, at their places
	if err != nil {
		d.syntaxError(err)
		return nil
	}
	var root ast.Node
	for _, doc := range tree.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			d.find(place{token: firstToken(doc.Body)}, "a second document begins here; a config file is one document")
			return nil
		default:
			root = doc.Body
		}
	}
	if root == nil {
		d.find(place{}, "the file is empty; `sluice init` writes one to begin with")
	}
	return root
}

func (d *decoder) syntaxError(err error) {
	if e, ok := errors.AsType[yaml.Error](err); ok {
		d.find(place{token: e.GetToken()}, "not valid YAML: %s", e.GetMessage())
		return
	}
	d.find(place{}, "not valid YAML: %v", err)
}

// file decodes the root and fills in what the name and the folder give.
func (d *decoder) file(root ast.Node, file *File) {
	if d.versionRefused(root) {
		return // nothing can be said about settings of a version that we do not know
	}
	seen := d.object(root, place{token: firstToken(root)}, reflect.ValueOf(file).Elem(), "")
	if at, ok := seen["name"]; ok && !nameForm.MatchString(file.Name) && !d.found("name") {
		d.find(at, "expected letters, digits, - and _, 40 at most")
	}
	d.softHistory(seen["mirror"], file.Mirror.Mode, file.Mirror.Deletes)
	if file.State.Path == "" {
		file.State.Path = filepath.Join(".sluice", file.Name, "state.db")
	}
	if file.Mirror.Spool.Path == "" {
		file.Mirror.Spool.Path = filepath.Join(".sluice", file.Name, "spool")
	}
	for _, path := range []*string{&file.State.Path, &file.Mirror.Spool.Path} {
		if !filepath.IsAbs(*path) {
			*path = filepath.Join(d.dir, *path)
		}
	}
}

// firstToken is where what the file lacks is told.
func firstToken(root ast.Node) *token.Token {
	if m, ok := root.(ast.MapNode); ok {
		if it := m.MapRange(); it.Next() {
			return it.Key().GetToken()
		}
	}
	return root.GetToken()
}

func (d *decoder) found(key string) bool {
	return slices.ContainsFunc(d.findings, func(f Finding) bool { return f.Key == key })
}

func (d *decoder) versionRefused(root ast.Node) bool {
	m, ok := root.(ast.MapNode)
	if !ok {
		return false
	}
	for it := m.MapRange(); it.Next(); {
		n, ok := it.Value().(*ast.IntegerNode)
		if keyText(it.Key()) == "version" && ok && n.GetToken().Value != "1" {
			d.find(place{"version", n.GetToken()}, "expected 1, the one version that this program knows")
			return true
		}
	}
	return false
}
