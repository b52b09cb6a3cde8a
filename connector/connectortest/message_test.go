package connectortest

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/sluicehq/sluice/connector"
)

func FuzzMemoryDecoderRefusesDamage(f *testing.F) {
	var good []byte
	for _, c := range []change{
		{op: connector.Insert, row: Row{"1", "a", Null}},
		{op: connector.Update, before: Row{"1", Unsent, Unsent}, row: Row{"2", "b", Unsent}},
		{op: connector.Truncate},
	} {
		good = appendMessage(good, c)
	}
	f.Add(good, 3)
	f.Add(good[:len(good)-1], 3)
	f.Add(good, 2)
	db := NewDatabase()
	table := db.CreateTable(TableSpec{Name: items, Columns: itemColumns[:3], Key: []string{"id"}})
	f.Fuzz(func(t *testing.T, data []byte, rows int) {
		alloc := memory.NewCheckedAllocator(memory.DefaultAllocator)
		defer alloc.AssertSize(t, 0)
		d := &memoryDecoder{table: table, alloc: alloc}
		got, err := d.Decode(&connector.Frames{Table: table, Data: data, Commits: []connector.Commit{{Rows: rows}}})
		if err == nil {
			got.Release()
		} else if connector.KindOf(err) != connector.TableFault {
			t.Fatalf("damaged frames: %v", err)
		}
	})
}
