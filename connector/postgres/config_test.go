package postgres

import (
	"fmt"
	"strings"
	"testing"
)

func TestConfigFaultsAreFoundWithoutAConnection(t *testing.T) {
	for _, c := range []struct {
		config Config
		key    string // at fault; "": none
	}{
		{Config{URL: "postgres://u@h/d", Slot: "sluice_1", Publication: "Any Name"}, ""},
		{Config{URL: "host=h user=u dbname=d"}, ""},
		{Config{}, "url"},
		{Config{URL: "postgres://u:pass%word@h:port/d"}, "url"},
		{Config{URL: "postgres://u@h/d", Slot: "Sluice"}, "slot"},
		{Config{URL: "postgres://u@h/d", Publication: strings.Repeat("p", 64)}, "publication"},
	} {
		problems := c.config.Validate()
		if c.key == "" && len(problems) == 0 {
			continue
		}
		if len(problems) != 1 || problems[0].Table != c.key {
			t.Errorf("%+v: %v, want a finding at %q", c.config, problems, c.key)
		}
		if strings.Contains(fmt.Sprint(problems), "pass%word") {
			t.Errorf("a finding shows a password: %v", problems)
		}
	}
}
