package config

import (
	"reflect"
	"slices"
	"strings"
)

// Differences returns the keys of the settings that are not the same in two config files, the shortest that say it:
// "sink", "mirror.apply.batch_rows", "mirror.per_table.filter" for whichever tables. No values, some of which are secret.
func Differences(a, b *File) []string {
	return differences("", reflect.ValueOf(*a), reflect.ValueOf(*b))
}

// Keys returns the keys that Differences may return, but for one of a whole struct.
func Keys() []string { return keysUnder("", reflect.TypeFor[File]()) }

func keysUnder(key string, t reflect.Type) []string {
	if !hasKeys(t) {
		return []string{key}
	}
	if t.Kind() != reflect.Struct {
		return keysUnder(key, t.Elem())
	}
	var keys []string
	for _, f := range fieldsOf(t) {
		keys = append(keys, keysUnder(join(key, f.key), t.Field(f.index).Type)...)
	}
	return keys
}

func join(key, name string) string { return strings.TrimPrefix(key+"."+name, ".") }

func differences(key string, a, b reflect.Value) []string {
	switch {
	case a.Type() == reflect.TypeFor[Block](): // a driver's functions do not compare
		is, other := a.Interface().(Block), b.Interface().(Block)
		if is.Type == other.Type && reflect.DeepEqual(is.Config, other.Config) {
			return nil
		}
		return []string{key}
	case !hasKeys(a.Type()):
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			return nil
		}
		return []string{key}
	case a.Kind() == reflect.Pointer:
		return differences(key, elem(a), elem(b))
	case a.Kind() == reflect.Map:
		return differencesOfMaps(key, a, b)
	}
	var keys []string
	for _, f := range fieldsOf(a.Type()) {
		keys = append(keys, differences(join(key, f.key), a.Field(f.index), b.Field(f.index))...)
	}
	return keys
}

// elem returns what a pointer points to; of nil a struct in which nothing is set.
func elem(v reflect.Value) reflect.Value {
	if v.IsNil() {
		return reflect.Zero(v.Type().Elem())
	}
	return v.Elem()
}

// differencesOfMaps returns what differs in any of the entries, each key once. An entry that is missing has nothing set.
func differencesOfMaps(key string, a, b reflect.Value) []string {
	var keys []string
	for _, k := range slices.Concat(a.MapKeys(), b.MapKeys()) {
		of := [2]reflect.Value{a.MapIndex(k), b.MapIndex(k)}
		for i := range of {
			if !of[i].IsValid() {
				of[i] = reflect.Zero(a.Type().Elem())
			}
		}
		keys = append(keys, differences(key, of[0], of[1])...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// hasKeys reports whether a type is a struct of settings, or leads to some.
func hasKeys(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Map:
		return hasKeys(t.Elem())
	case reflect.Struct:
		return len(fieldsOf(t)) > 0
	}
	return false
}
