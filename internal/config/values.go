package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/sluicehq/sluice/schema"
)

// Duration is a time span of a config file: 5m, 1h30m, 250ms, or 0.
type Duration time.Duration

// Units of a [Duration].
const (
	Second = Duration(time.Second)
	Minute = Duration(time.Minute)
)

// UnmarshalText reads a time span; only 0 may stand without a unit.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return errors.New("expected a time span such as 250ms, 5m or 1h30m, or 0")
	}
	*d = Duration(v)
	return nil
}

// String writes the time span without zero parts: 5m, not 5m0s.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	if s == "0s" {
		return "0"
	}
	return s
}

func (Duration) jsonSchema() *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Const: 0},
		{Type: "string", Pattern: `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`},
	}}
}

// Size is a number of bytes of a config file: 64MiB, 1GB, or 4096.
type Size int64

// Units of a [Size].
const (
	KiB Size = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

// sizeUnits has longer suffixes before those that end them.
var sizeUnits = []struct {
	suffix string
	factor Size
}{
	{"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1}, {"", 1},
}

// UnmarshalText reads a whole number and a unit.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimRight(digits, " "), 10, 63)
		if err != nil || n > math.MaxInt64/uint64(u.factor) {
			break
		}
		*s = Size(n) * u.factor
		return nil
	}
	return errors.New("expected a number of bytes such as 4096, 64MiB or 1GB")
}

// String writes the size in the largest unit that leaves a whole number.
func (s Size) String() string {
	for _, u := range sizeUnits[:4] {
		if s != 0 && s%u.factor == 0 {
			return strconv.FormatInt(int64(s/u.factor), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

func (Size) jsonSchema() *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Type: "integer", Minimum: "0"},
		{Type: "string", Pattern: `^[0-9]+ *(TiB|GiB|MiB|KiB|TB|GB|MB|kB|B)?$`},
	}}
}

// Template is a name in which {schema} and {table} stand for the names at the source.
type Template string

// UnmarshalText refuses a template that could give no name, and braces that stand for nothing.
func (t *Template) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("expected a name, which may hold {schema} and {table}")
	}
	rest := strings.NewReplacer("{schema}", "", "{table}", "").Replace(string(text))
	if i := strings.IndexAny(rest, "{}"); i >= 0 {
		return fmt.Errorf("only {schema} and {table} may stand in braces")
	}
	*t = Template(text)
	return nil
}

// Expand puts the names in.
func (t Template) Expand(n schema.Name) string {
	return strings.NewReplacer("{schema}", n.Schema, "{table}", n.Table).Replace(string(t))
}

func (Template) jsonSchema() *jsonschema.Schema {
	one := uint64(1)
	return &jsonschema.Schema{Type: "string", MinLength: &one}
}
