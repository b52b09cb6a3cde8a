package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector"
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

func TestUnreadableURLShowsNoPassword(t *testing.T) {
	c := &Config{URL: "host=h password = geheim port=abc", Connections: 2}
	_, source := OpenSource(t.Context(), c, connector.Env{Mirror: "m"})
	_, sink := OpenSink(t.Context(), c, connector.Env{Mirror: "m"})
	_, replication := connectReplication(t.Context(), c, "m")
	for _, err := range []error{source, sink, replication} {
		if connector.KindOf(err) != connector.Setup || strings.Contains(err.Error(), "geheim") {
			t.Errorf("kind %s: %v", connector.KindOf(err), err)
		}
	}
}
