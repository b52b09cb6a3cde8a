package config

import (
	"reflect"
	"strings"
)

// Differences returns the keys of the settings that are not the same in two config files, the shortest that say it:
// "sink", "mirror.apply.batch_rows". No values, some of which are secret.
func Differences(a, b *File) []string {
	return differences("", reflect.ValueOf(*a), reflect.ValueOf(*b))
}

func differences(key string, a, b reflect.Value) []string {
	if a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil() {
		return differences(key, a.Elem(), b.Elem())
	}
	if block, ok := a.Interface().(Block); ok { // a driver's functions do not compare
		other := b.Interface().(Block)
		if block.Type == other.Type && reflect.DeepEqual(block.Config, other.Config) {
			return nil
		}
		return []string{key}
	}
	if !hasKeys(a.Type()) {
		if reflect.DeepEqual(a.Interface(), b.Interface()) {
			return nil
		}
		return []string{key}
	}
	var keys []string
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("yaml"), ",")
		if name == "" || name == "-" {
			continue
		}
		keys = append(keys, differences(strings.TrimPrefix(key+"."+name, "."), a.Field(i), b.Field(i))...)
	}
	return keys
}

// hasKeys reports whether a type is a struct of settings.
func hasKeys(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("yaml") != "" {
			return true
		}
	}
	return false
}
