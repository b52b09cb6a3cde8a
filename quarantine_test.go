package sluice

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicehq/sluice/internal/apply"
	"github.com/sluicehq/sluice/internal/mirror"
	"github.com/sluicehq/sluice/internal/testdb"
)

func (o *operated) inQuarantine() []apply.Quarantined {
	o.t.Helper()
	rows, err := o.Quarantine(o.t.Context(), []string{"items"}, o.log)
	if err != nil {
		o.t.Fatal(err)
	}
	return rows
}

func (o *operated) keysInQuarantine() string {
	o.t.Helper()
	var keys []string
	for _, q := range o.inQuarantine() {
		keys = append(keys, ShownKey(&q))
	}
	return strings.Join(keys, " ")
}

// differing tells the keys whose rows are not the same on both sides.
func (o *operated) differing() string {
	o.t.Helper()
	query := "SELECT id || ' ' || name FROM items ORDER BY id"
	in := map[string]int{}
	for _, row := range testdb.Query(o.t, o.source, query) {
		in[row[0]]++
	}
	for _, row := range testdb.Query(o.t, o.sink, query) {
		in[row[0]]--
	}
	keys := map[string]bool{}
	for row, n := range in {
		if n != 0 {
			keys[strings.Fields(row)[0]] = true
		}
	}
	return fmt.Sprint(keys)
}

// TestRowsThatAConstraintOfTheSinkRefusesGoIntoQuarantine holds each of many refused rows among others to be found, the
// others to be there, and the quarantine to be told of, tried again and emptied by a new copy.
func TestRowsThatAConstraintOfTheSinkRefusesGoIntoQuarantine(t *testing.T) {
	o := newOperated(t)
	o.Mirror = load(t, o.source, o.sink, "mirror: {tables: {include: [items]}, on_bad_row: quarantine}\n")
	o.once()
	testdb.Exec(t, o.sink, `ALTER TABLE items ADD CHECK (name NOT LIKE 'bad%')`)
	testdb.Exec(t, o.source, `UPDATE items SET name = CASE WHEN id % 100 = 0 THEN 'bad ' ELSE 'good ' END || id; DELETE FROM items WHERE id = 100;
		UPDATE items SET id = 2000 WHERE id = 200; INSERT INTO items VALUES (3000, 'bad'), (3001, 'good')`)
	o.once()
	want := "300 400 500 600 700 800 900 1000 2000 3000"
	for _, key := range strings.Fields(want) {
		if !strings.Contains(" "+o.keysInQuarantine()+" ", " "+key+" ") {
			t.Errorf("%s is not in quarantine, but %s", key, o.keysInQuarantine())
		}
	}
	first := o.inQuarantine()[0]
	if len(o.inQuarantine()) != 10 || first.Position == "" || first.Attempts != 1 || !strings.Contains(first.Reason, "items_name_check") || strings.Contains(first.Reason, "bad ") {
		t.Errorf("%d rows in quarantine, the first %+v", len(o.inQuarantine()), first)
	}
	differ := "map[1000:true 2000:true 300:true 3000:true 400:true 500:true 600:true 700:true 800:true 900:true]"
	if got := o.differing(); got != differ {
		t.Errorf("%s differ, want %s", got, differ)
	}
	if s := items(o.status()); s.Quarantined != 10 || s.Phase != string(mirror.Streaming) {
		t.Errorf("status: %+v", s)
	}
	events, err := o.Events(t.Context(), nil, 100)
	told := 0
	for _, e := range events {
		if e.Kind == "quarantined" {
			told++
		}
	}
	if err != nil || told != 1 {
		t.Errorf("%d events of rows in quarantine, %v", told, err)
	}

	results, err := o.RetryQuarantined(t.Context(), []string{"items"}, CommandOptions{Row: "900"})
	if err != nil || len(results) != 1 || results[0].Done {
		t.Errorf("of a mirror that does not run: %v, %+v", err, results)
	}
	if _, err := o.DropQuarantined(t.Context(), []string{"items"}, CommandOptions{Row: "901"}); err == nil {
		t.Error("a row that is not in quarantine is dropped")
	}
	if _, err := o.DropQuarantined(t.Context(), []string{"items"}, CommandOptions{Row: "300"}); err != nil {
		t.Error(err)
	}
	testdb.Exec(t, o.source, `UPDATE items SET name = 'mended' WHERE id = 900; DELETE FROM items WHERE id = 800`)
	o.once()
	if got := len(o.inQuarantine()); got != 7 || strings.Contains(o.keysInQuarantine(), "900") || strings.Contains(" "+o.keysInQuarantine(), " 300 ") {
		t.Errorf("in quarantine: %s", o.keysInQuarantine())
	}

	testdb.Exec(t, o.sink, `ALTER TABLE items DROP CONSTRAINT items_name_check`)
	stop := o.follow()
	defer stop()
	testdb.Eventually(t, func() error {
		if !o.status().Running {
			return errors.New("it does not run")
		}
		return nil
	})
	results, err = o.RetryQuarantined(t.Context(), []string{"items"}, CommandOptions{Row: "3000", Timeout: 30 * time.Second})
	if err != nil || len(results) != 1 || !results[0].Fulfilled || results[0].Outcome != "1 rows are as at the source again" {
		t.Errorf("%v, %+v", err, results)
	}
	if got, want := o.differing(), "map[1000:true 2000:true 300:true 400:true 500:true 600:true 700:true]"; got != want {
		t.Errorf("%s differ, want %s", got, want)
	}
	if _, err := o.Resync(t.Context(), []string{"items"}, CommandOptions{Timeout: 30 * time.Second}); err != nil {
		t.Error(err)
	}
	if o.differing() != "map[]" || len(o.inQuarantine()) != 0 {
		t.Errorf("after a new copy %s differ, in quarantine: %s", o.differing(), o.keysInQuarantine())
	}
}
