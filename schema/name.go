package schema

import (
	"errors"
	"fmt"
	"strings"
)

// String writes a name as a person types it: schema.table, each part in double quotes if it holds anything that
// [ParseName] or a glob would read otherwise.
func (n Name) String() string {
	if n.Schema == "" {
		return quotePart(n.Table)
	}
	return quotePart(n.Schema) + "." + quotePart(n.Table)
}

func quotePart(s string) string {
	if s != "" && !strings.ContainsAny(s, " \t\r\n.\"*?,'`") {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// ParseName reads what [Name.String] writes: one part, or two with a dot between them.
func ParseName(s string) (Name, error) {
	first, rest, err := cutPart(s)
	if err != nil {
		return Name{}, fmt.Errorf("table name %q: %w", s, err)
	}
	if rest == "" {
		return Name{Table: first}, nil
	}
	second, rest, err := cutPart(rest[1:])
	if err != nil {
		return Name{}, fmt.Errorf("table name %q: %w", s, err)
	}
	if rest != "" {
		return Name{}, fmt.Errorf("table name %q: more than two parts; put a part that holds a dot in double quotes", s)
	}
	return Name{Schema: first, Table: second}, nil
}

// cutPart takes one part off the front of s; rest is empty or begins with the dot behind it.
func cutPart(s string) (part, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		if i := strings.IndexByte(s, '.'); i >= 0 {
			part, rest = s[:i], s[i:]
		} else {
			part = s
		}
		if part == "" {
			return "", "", errors.New("a part is empty")
		}
		if strings.Contains(part, `"`) {
			return "", "", errors.New("a double quote inside a part; put the whole part in double quotes and double the quote")
		}
		return part, rest, nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		case i+1 < len(s) && s[i+1] != '.':
			return "", "", errors.New("text behind a closing double quote")
		case b.Len() == 0:
			return "", "", errors.New("a part is empty")
		default:
			return b.String(), s[i+1:], nil
		}
	}
	return "", "", errors.New("a double quote is not closed")
}
