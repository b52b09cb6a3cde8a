package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/sluicehq/sluice/connector"
	"github.com/sluicehq/sluice/internal/nearest"
	"github.com/sluicehq/sluice/schema"
)

// decoder puts a YAML tree into structs, as their fields are declared, and gathers what does not fit.
type decoder struct {
	path, dir string
	drivers   []connector.Driver
	lookupEnv func(name string) (string, bool)
	readFile  func(path string, limit int64) ([]byte, error)
	findings  []Finding
}

// place is where a value stands.
type place struct {
	key   string // from the file's root
	token *token.Token
}

func (p place) child(key string) string {
	if p.key == "" {
		return key
	}
	return p.key + "." + key
}

func (d *decoder) find(at place, format string, args ...any) {
	f := Finding{Key: at.key, Text: fmt.Sprintf(format, args...)}
	if at.token != nil && at.token.Position != nil {
		f.Line, f.Column = at.token.Position.Line, at.token.Position.Column
	}
	d.findings = append(d.findings, f)
}

// entry is one key and its value. A value's own token is where it stands; a missing one stands where its key does.
type entry struct {
	key   string
	at    place // of the key
	value ast.Node
}

func (e *entry) valueAt() place { return place{e.at.key, tokenOf(e.value, e.at.token)} }

func tokenOf(n ast.Node, otherwise *token.Token) *token.Token {
	if n == nil || n.GetToken() == nil {
		return otherwise
	}
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle {
		return otherwise // its own token is the first colon
	}
	if _, ok := n.(*ast.MappingValueNode); ok {
		return otherwise
	}
	return n.GetToken()
}

func keyText(k ast.MapKeyNode) string {
	if s, ok := k.(*ast.StringNode); ok {
		return s.Value
	}
	return k.GetToken().Value
}

// entries returns a mapping's entries without duplicates; none where nothing stands (null).
func (d *decoder) entries(n ast.Node, at place) []entry {
	if n == nil || n.Type() == ast.NullType {
		return nil
	}
	m, ok := n.(ast.MapNode)
	if !ok {
		d.find(at, "expected keys and values, found %s", describe(n))
		return nil
	}
	var entries []entry
	lines := map[string]int{}
	for it := m.MapRange(); it.Next(); {
		if it.Key().GetToken() == nil {
			continue // the parser made it up
		}
		e := entry{key: keyText(it.Key()), value: it.Value()}
		e.at = place{at.child(e.key), it.Key().GetToken()}
		if it.Key().IsMergeKey() || it.Key().Type() == ast.MappingKeyType {
			d.find(e.at, "expected a plain key")
			continue
		}
		if line, ok := lines[e.key]; ok {
			d.find(e.at, "stands here a second time; the first is in line %d", line)
			continue
		}
		lines[e.key] = e.at.token.Position.Line
		entries = append(entries, e)
	}
	return entries
}

// object decodes a mapping into a struct and returns the places of the keys that it has.
func (d *decoder) object(n ast.Node, at place, out reflect.Value, side string) map[string]place {
	return d.fill(d.entries(n, at), at, out, side)
}

func (d *decoder) fill(entries []entry, at place, out reflect.Value, side string) map[string]place {
	fields := fieldsOf(out.Type())
	seen := map[string]place{}
	for i := range entries {
		e := &entries[i]
		f := slices.IndexFunc(fields, func(f field) bool { return f.key == e.key })
		switch {
		case f < 0:
			d.find(e.at, "unknown key%s", nearest.Hint(e.key, keysOf(fields, side)))
		case !fields[f].on(side):
			d.find(e.at, "belongs to a %s, not to a %s", fields[f].side, side)
		default:
			seen[e.key] = e.valueAt()
			d.setting(e, &fields[f], out.Field(fields[f].index))
		}
	}
	for i := range fields {
		if _, ok := seen[fields[i].key]; !ok && fields[i].required {
			d.find(place{at.child(fields[i].key), at.token}, "is missing. %s", fields[i].doc)
		}
	}
	return seen
}

// setting decodes one value and refuses what is not available yet.
func (d *decoder) setting(e *entry, f *field, out reflect.Value) {
	before, findings := reflect.ValueOf(out.Interface()), len(d.findings)
	d.value(e.value, e.valueAt(), f, out)
	if len(d.findings) > findings {
		return
	}
	if f.defaultOnly && !reflect.DeepEqual(before.Interface(), out.Interface()) {
		d.find(e.at, "is not available yet")
	}
	if out.Kind() == reflect.String && slices.Contains(f.later, out.String()) {
		d.find(e.valueAt(), "%s is not available yet; expected %s", out.String(), oneOf(f.available()))
	}
}

func (d *decoder) value(n ast.Node, at place, f *field, out reflect.Value) {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.find(at, "anchors, aliases and tags are not used in config files")
		return
	}
	switch v := out.Addr().Interface().(type) {
	case *Block:
		d.block(n, at, f.side, v)
		return
	case *map[schema.Name]*PerTable:
		*v = d.perTable(n, at)
		return
	case encoding.TextUnmarshaler:
		d.scalar(n, at, f, out)
		return
	}
	switch out.Kind() {
	case reflect.Pointer:
		d.object(n, at, out.Elem(), "")
	case reflect.Struct:
		d.object(n, at, out, "")
	case reflect.Slice:
		d.list(n, at, f, out)
	default:
		d.scalar(n, at, f, out)
	}
}

func (d *decoder) list(n ast.Node, at place, f *field, out reflect.Value) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.find(at, "expected a list in brackets, found %s", describe(n))
		return
	}
	list := reflect.MakeSlice(out.Type(), len(s.Values), len(s.Values))
	for i, item := range s.Values {
		d.value(item, place{fmt.Sprintf("%s[%d]", at.key, i), tokenOf(item, at.token)}, f, list.Index(i))
	}
	out.Set(list)
}

// block decodes a source or a sink. Its type decides which other keys there are.
func (d *decoder) block(n ast.Node, at place, side string, out *Block) {
	entries := d.entries(n, at)
	i := slices.IndexFunc(entries, func(e entry) bool { return e.key == "type" })
	names := d.driverNames(side)
	if i < 0 {
		d.find(place{at.child("type"), at.token}, "is missing; expected %s", oneOf(names))
		return
	}
	e := entries[i]
	text, ok := d.text(e.value, e.valueAt(), &field{})
	if !ok {
		return
	}
	driver := slices.IndexFunc(d.drivers, func(dr connector.Driver) bool { return dr.Name == text.value })
	if driver < 0 || !slices.Contains(names, text.value) {
		d.find(e.valueAt(), "%s is no %s; expected %s%s", text.shown, side, oneOf(names), nearest.Hint(text.value, names))
		return
	}
	out.Type, out.Driver = text.value, d.drivers[driver]
	out.Config = out.Driver.NewConfig()
	findings := len(d.findings)
	seen := d.fill(slices.Delete(entries, i, i+1), at, reflect.ValueOf(out.Config).Elem(), side)
	if len(d.findings) == findings {
		d.validate(out.Config, at, seen)
	}
}

func (d *decoder) driverNames(side string) []string {
	var names []string
	for _, dr := range d.drivers {
		if side == "source" && dr.Source != nil || side == "sink" && dr.Sink != nil {
			names = append(names, dr.Name)
		}
	}
	return names
}

func (d *decoder) validate(c connector.Config, at place, seen map[string]place) {
	for _, p := range c.Validate() {
		where, ok := seen[p.Table]
		if !ok {
			where = place{at.child(p.Table), at.token}
		}
		text := p.What
		if p.Fix != "" {
			text += "; " + p.Fix
		}
		d.find(where, "%s", text)
	}
}

func (d *decoder) perTable(n ast.Node, at place) map[schema.Name]*PerTable {
	tables := map[schema.Name]*PerTable{}
	for _, e := range d.entries(n, at) {
		name, err := schema.ParseName(e.key)
		if err != nil {
			d.find(e.at, "expected the exact name of a table: %v", err)
			continue
		}
		if name.String() != e.key && strings.ContainsAny(e.key, "*?") && !strings.Contains(e.key, `"`) {
			d.find(e.at, "expected the exact name of a table; a * or ? that is part of it stands in double quotes")
			continue
		}
		if twin := namesake(tables, name); twin != nil {
			d.find(e.at, "the same table as %s", twin)
			continue
		}
		own := &PerTable{Where: map[string]string{"": d.where(e.at)}}
		tables[name] = own
		for key, at := range d.object(e.value, e.at, reflect.ValueOf(own).Elem(), "") {
			own.Where[key] = d.where(at)
		}
		d.columnLists(e.at, own)
		d.softHistory(e.at, own.Mode, own.Deletes)
	}
	return tables
}

// where writes a place as findings do.
func (d *decoder) where(at place) string {
	if at.token == nil || at.token.Position == nil {
		return d.path
	}
	return fmt.Sprintf("%s:%d:%d", d.path, at.token.Position.Line, at.token.Position.Column)
}

// softHistory refuses soft deletes in a history, which keeps every deletion as a row of its own.
func (d *decoder) softHistory(at place, mode Mode, deletes Deletes) {
	if mode == History && deletes == SoftDeletes {
		d.find(place{at.child("deletes"), at.token}, "soft goes with `mode: current` only; a history keeps every deletion")
	}
}

// columnLists refuses lists of columns that name none: nothing is meant by them that leaving the key out would not say.
func (d *decoder) columnLists(at place, own *PerTable) {
	for _, l := range []struct {
		key  string
		list []string
	}{{"key", own.Key}, {"columns", own.Columns}, {"exclude_columns", own.ExcludeColumns}} {
		if l.list != nil && (len(l.list) == 0 || slices.Contains(l.list, "")) {
			d.find(place{at.child(l.key), at.token}, "expected the names of columns")
		}
	}
}

// namesake returns the name under which a table stands in tables already, nil if it does not.
func namesake(tables map[schema.Name]*PerTable, n schema.Name) *schema.Name {
	other := n
	switch n.Schema {
	case "":
		other.Schema = defaultSchema
	case defaultSchema:
		other.Schema = ""
	}
	for _, name := range []schema.Name{n, other} {
		if tables[name] != nil {
			return &name
		}
	}
	return nil
}

// scalar decodes a single value: one that reads text, a string, a number or a boolean.
func (d *decoder) scalar(n ast.Node, at place, f *field, out reflect.Value) {
	text, ok := d.text(n, at, f)
	if !ok {
		return
	}
	if len(f.enum) > 0 && !slices.Contains(f.enum, text.value) {
		d.find(at, "%s is not possible; expected %s%s", text.shown, oneOf(f.available()), nearest.Hint(text.value, f.available()))
		return
	}
	if err := parseScalar(text.value, out); err != nil {
		d.find(at, "%v%s", err, text.found())
		return
	}
	if why := outside(f, out); why != "" {
		d.find(at, "%s%s", why, text.found())
	}
}

// parseScalar puts text into out. Its errors say what was expected and do not repeat the text, which may be secret.
func parseScalar(text string, out reflect.Value) error {
	if u, ok := out.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	if out.Type() == reflect.TypeFor[time.Duration]() {
		return (*Duration)(out.Addr().Interface().(*time.Duration)).UnmarshalText([]byte(text))
	}
	switch out.Kind() {
	case reflect.String:
		out.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("expected true or false")
		}
		out.SetBool(text == "true")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v, err := strconv.ParseInt(text, 10, out.Type().Bits())
		if err != nil {
			return fmt.Errorf("expected a whole number")
		}
		out.SetInt(v)
	default:
		panic("config: no setting can be a " + out.Type().String())
	}
	return nil
}

// outside says which limit a number lies beyond; "" if none. All limited kinds are integers underneath.
func outside(f *field, out reflect.Value) string {
	limit := func(text string) (int64, bool) {
		if text == "" {
			return 0, false
		}
		v := reflect.New(out.Type()).Elem()
		if err := parseScalar(text, v); err != nil {
			panic(fmt.Sprintf("config: limit of %s: %v", f.key, err))
		}
		return v.Int(), true
	}
	lowest, hasMin := limit(f.min)
	highest, hasMax := limit(f.max)
	if !(hasMin && out.Int() < lowest) && !(hasMax && out.Int() > highest) {
		return ""
	}
	switch {
	case hasMin && hasMax:
		return fmt.Sprintf("expected a value from %s to %s", f.min, f.max)
	case hasMin:
		return "expected at least " + f.min
	default:
		return "expected at most " + f.max
	}
}

// describe names what stands in a file where something else is expected; never its value.
func describe(n ast.Node) string {
	switch {
	case n == nil || n.Type() == ast.NullType:
		return "nothing"
	case n.Type() == ast.MappingType || n.Type() == ast.MappingValueType:
		return "keys and values"
	case n.Type() == ast.SequenceType:
		return "a list"
	default:
		return "a single value"
	}
}
