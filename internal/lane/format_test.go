package lane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluicehq/sluice/schema"
)

var rewrite = flag.Bool("rewrite", false, "write the frozen segment anew, which is right only with a new format version")

// frozenFile is a segment as the first release writes it.
const frozenFile = "testdata/segment1.lane"

func frozenItems() []Item {
	split := change(3, table1(1), "one", "two")
	split.Frames.Commits = append(split.Frames.Commits, split.Frames.Commits[0])
	split.Frames.Commits[0].Rows, split.Frames.Commits[1].Rows = 1, 1
	split.Frames.Commits[1].First, split.Frames.Commits[1].Position, split.Frames.Commits[1].Part = 12, "server/000031", "shard-1"
	split.Before["shard-1"] = "server/000030"
	return []Item{change(1, table1(1), "row", ""), split, alteration(4, table1(2))}
}

// TestSegmentsOfTheFirstReleaseAreRead keeps the format: what a released version wrote is read by every later one.
func TestSegmentsOfTheFirstReleaseAreRead(t *testing.T) {
	dir := t.TempDir()
	if *rewrite {
		s, l := openSpool(t, dir, nil, roomy)
		l.ends["shard-1"] = runOf(frozenItems()[1].Frames.Commits[1])
		for _, it := range frozenItems() {
			mustAppend(t, l, it)
		}
		text, err := os.ReadFile(s.path("16385", 1))
		if err == nil {
			err = os.WriteFile(frozenFile, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(frozenFile)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "copy", "16385")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "copy", "owner"), []byte("mirror-1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "00000001.lane"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	_, l := openSpool(t, filepath.Join(dir, "copy"), []Segment{{Table: "16385", Number: 1, Size: int64(len(text))}}, roomy)
	if ends := l.Ends(); len(ends) != 2 || ends[0].Position != "server/000003" || ends[1].Position != "server/000031" {
		t.Errorf("it ends with %+v", ends)
	}
	if diff := cmp.Diff(frozenItems(), takeAll(t, l), sameItem); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
}

// FuzzSegment reads any bytes as a segment: an error or items, never a panic, and what is read is written as it was.
func FuzzSegment(f *testing.F) {
	text, err := os.ReadFile(frozenFile)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)-7])
	f.Fuzz(func(t *testing.T, text []byte) {
		r := newSegmentReader(bytes.NewReader(text), 0, nil)
		r.extend(int64(len(text)))
		if _, err := r.readHead("file"); err != nil {
			return
		}
		for {
			it, at, err := r.next()
			if errors.Is(err, io.EOF) && r.off == int64(len(text)) {
				return
			}
			if errors.Is(err, io.EOF) || at > r.off {
				t.Fatalf("ends at %d, behind %d of %d: %v", r.off, at, len(text), err)
			}
			if err != nil {
				return
			}
			checkAgain(t, it)
		}
	})
}

// FuzzRecord does so for the payload of one record, which in a segment a checksum protects.
func FuzzRecord(f *testing.F) {
	for _, it := range frozenItems() {
		b, err := appendItem(nil, &it)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[recordHead], b[recordHead+1:])
	}
	f.Fuzz(func(t *testing.T, kind byte, payload []byte) {
		if it, err := decodeItem(kind, payload, table1(1)); err == nil {
			checkAgain(t, it)
		}
	})
}

// checkAgain writes an item and reads it back.
func checkAgain(t *testing.T, it Item) {
	b, err := appendItem(nil, &it)
	if err != nil {
		t.Fatal(err)
	}
	var table *schema.Table
	if it.Frames != nil {
		table = it.Frames.Table
	}
	if n := binary.BigEndian.Uint32(b); int(n) != len(b)-recordHead {
		t.Fatalf("a record of %d bytes says it has %d", len(b)-recordHead, n)
	}
	again, err := decodeItem(b[recordHead], b[recordHead+1:], table)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(it, again, sameItem); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
}
