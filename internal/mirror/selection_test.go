package mirror

import (
	"slices"
	"strings"
	"testing"

	"github.com/sluicehq/sluice/connector/connectortest"
	"github.com/sluicehq/sluice/schema"
)

// people has a primary key id and a second unique index over email, which updates and deletes do not send.
func people() *schema.Table {
	return &schema.Table{
		ID: "1", Version: 1, Name: schema.Name{Schema: "public", Table: "people"}, Key: []int{0},
		Columns: []schema.Column{connectortest.Int64("id"), connectortest.Text("email"), connectortest.Text("secret"), connectortest.Text("code")},
		Unique: []schema.UniqueKey{
			{Columns: []int{0}}, {Columns: []int{1}, Unfit: "the identity does not send it; ALTER TABLE people REPLICA IDENTITY FULL"}, {Columns: []int{3, 0}},
		},
	}
}

func TestSettingsThatDoNotFitATableAreRefusedWithTheirPlace(t *testing.T) {
	where := map[string]string{"key": "shop.yaml:3:4", "columns": "shop.yaml:4:4", "exclude_columns": "shop.yaml:5:4"}
	for name, c := range map[string]struct {
		settings Settings
		want     string
	}{
		"unknown excluded column": {Settings{ExcludeColumns: []string{"secrt"}}, `shop.yaml:5:4: exclude_columns: the table has no column secrt; did you mean "secret"?`},
		"unknown column":          {Settings{Columns: []string{"id", "mail"}}, `shop.yaml:4:4: columns: the table has no column mail; did you mean "email"?`},
		"excluded key":            {Settings{ExcludeColumns: []string{"id"}}, `shop.yaml:5:4: exclude_columns: column id is of the key, without which no change finds its row; leave it in`},
		"missing key":             {Settings{Columns: []string{"code"}}, `shop.yaml:4:4: columns: column id of the key is missing, without which no change finds its row; add it`},
		"excluded chosen key":     {Settings{Key: []string{"id", "code"}, ExcludeColumns: []string{"code"}}, `shop.yaml:5:4: exclude_columns: column code is of the key, without which no change finds its row; leave it in`},
		"key twice":               {Settings{Key: []string{"id", "id"}}, `shop.yaml:3:4: key: column id stands there twice`},
		"key not unique":          {Settings{Key: []string{"secret"}}, `shop.yaml:3:4: key: the source has no unique index over just these columns, all of them NOT NULL; make one, or take [id] or [email] or [code, id]`},
		"key not sent":            {Settings{Key: []string{"email"}}, `shop.yaml:3:4: key: the identity does not send it; ALTER TABLE people REPLICA IDENTITY FULL`},
	} {
		t.Run(name, func(t *testing.T) {
			c.settings.Where = where
			if _, why := choose(people(), c.settings); why != c.want {
				t.Errorf("refused with\n%q, want\n%q", why, c.want)
			}
		})
	}
}

func TestColumnsThatAreNotMirroredAreNotRead(t *testing.T) {
	for name, c := range map[string]struct {
		settings Settings
		stored   []int
		key      string
	}{
		"all":      {Settings{}, nil, "id"},
		"chosen":   {Settings{Columns: []string{"secret", "id"}}, []int{0, 2}, "id"},
		"excluded": {Settings{ExcludeColumns: []string{"secret"}}, []int{0, 1, 3}, "id"},
		"both":     {Settings{Columns: []string{"secret", "id", "code"}, ExcludeColumns: []string{"secret"}}, []int{0, 3}, "id"},
		"key":      {Settings{Key: []string{"id", "code"}}, nil, "id code"},
	} {
		t.Run(name, func(t *testing.T) {
			source := people()
			got, why := choose(source, c.settings)
			if why != "" {
				t.Fatal(why)
			}
			if key := strings.Join(got.table.KeyNames(), " "); !slices.Equal(got.columns, c.stored) || key != c.key {
				t.Errorf("stored %v, key %s; want %v, %s", got.columns, key, c.stored, c.key)
			}
			for i, col := range got.table.Columns {
				if want := c.stored != nil && !slices.Contains(c.stored, i); col.Unread != want {
					t.Errorf("column %s: unread is %v", col.Name, col.Unread)
				}
				if source.Columns[i].Unread {
					t.Error("the source's table was changed")
				}
			}
		})
	}
}

func TestColumnAddedLaterIsMirroredUnlessColumnsAreListed(t *testing.T) {
	for name, c := range map[string]struct {
		settings Settings
		same     bool
	}{
		"all":      {Settings{}, false},
		"chosen":   {Settings{Columns: []string{"id", "email"}}, true},
		"excluded": {Settings{ExcludeColumns: []string{"secret"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before, why := choose(people(), c.settings)
			if why != "" {
				t.Fatal(why)
			}
			later := people()
			later.Columns = slices.Insert(later.Columns, 3, connectortest.Text("more"))
			later.Columns[3].Number = 9
			later.Unique[2].Columns = []int{4, 0}
			after, why := choose(later, c.settings)
			if why != "" {
				t.Fatal(why)
			}
			if same := fingerprintOf(before.table) == fingerprintOf(after.table); same != c.same {
				t.Errorf("stored rows stay good: %v, want %v", same, c.same)
			}
			if versionOf(before.table) == versionOf(after.table) {
				t.Error("rows of the log would be read with the wrong columns")
			}
		})
	}
}
