package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sluicehq/sluice/schema"
)

// The first byte of a message of pgoutput, protocol version 1 (protocol-logicalrep-message-formats.html and
// src/backend/replication/logical/proto.c). Streaming and two_phase are off, so a transaction comes whole, after its commit.
const (
	messageBegin    = 'B'
	messageCommit   = 'C'
	messageOrigin   = 'O'
	messageRelation = 'R'
	messageType     = 'Y'
	messageInsert   = 'I'
	messageUpdate   = 'U'
	messageDelete   = 'D'
	messageTruncate = 'T'
	messageLogical  = 'M'
)

// rowEnvelope is the type, the relation's oid and the kind of the first tuple, which stand in front of a row's values.
const rowEnvelope = 6

var errShortMessage = errors.New("pgoutput message ends too early")

// serverEpoch is the zero of the server's clock, which counts microseconds (PostgreSQL: timestamp.h, TimestampTz).
var serverEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func serverTime(micros int64) time.Time {
	return time.Unix(serverEpoch.Unix()+micros/1e6, micros%1e6*1e3).UTC()
}

func serverMicros(t time.Time) int64 { return t.UnixMicro() - serverEpoch.UnixMicro() }

// beginMessage stands before the rows of a transaction; final is where its commit record begins.
type beginMessage struct {
	final LSN
	time  int64 // of the commit, by the server's clock
	xid   uint32
}

// commitMessage stands behind them; end is where the commit record ends.
type commitMessage struct {
	end  LSN
	time int64
}

// relationMessage describes the columns that the rows after it have; generated ones are not among them.
type relationMessage struct {
	oid      uint32
	name     schema.Name
	identity byte // pg_class.relreplident
	columns  []relationColumn
}

type relationColumn struct {
	name string
	typ  columnType
	key  bool // part of the replica identity, which sends it with each update and delete
}

type columnType struct {
	oid      uint32
	modifier int32
}

// messageCursor reads the parts of a message. A part that is not there is zero and sets short.
type messageCursor struct {
	b     []byte
	short bool
}

func (c *messageCursor) take(n int) []byte {
	if n > len(c.b) {
		c.short, c.b = true, nil
		return make([]byte, n) // n is at most 8 here
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *messageCursor) uint8() byte    { return c.take(1)[0] }
func (c *messageCursor) uint16() uint16 { return binary.BigEndian.Uint16(c.take(2)) }
func (c *messageCursor) uint32() uint32 { return binary.BigEndian.Uint32(c.take(4)) }
func (c *messageCursor) uint64() uint64 { return binary.BigEndian.Uint64(c.take(8)) }

func (c *messageCursor) text() string {
	end := bytes.IndexByte(c.b, 0)
	if end < 0 {
		c.short, c.b = true, nil
		return ""
	}
	s := string(c.b[:end])
	c.b = c.b[end+1:]
	return s
}

func (c *messageCursor) err() error {
	if c.short {
		return errShortMessage
	}
	return nil
}

func parseBegin(m []byte) (beginMessage, error) {
	c := messageCursor{b: m[1:]}
	b := beginMessage{final: LSN(c.uint64()), time: int64(c.uint64()), xid: c.uint32()}
	return b, c.err()
}

func parseCommit(m []byte) (commitMessage, error) {
	c := messageCursor{b: m[1:]}
	c.uint8()  // flags, unused
	c.uint64() // where the record begins: Begin has told it
	msg := commitMessage{end: LSN(c.uint64()), time: int64(c.uint64())}
	return msg, c.err()
}

func parseRelation(m []byte) (relationMessage, error) {
	c := messageCursor{b: m[1:]}
	r := relationMessage{oid: c.uint32()}
	r.name = schema.Name{Schema: c.text(), Table: c.text()}
	if r.name.Schema == "" {
		r.name.Schema = "pg_catalog"
	}
	r.identity = c.uint8()
	n := int(c.uint16())
	for i := 0; i < n && !c.short; i++ {
		key := c.uint8()&1 != 0
		col := relationColumn{key: key, name: c.text()}
		col.typ = columnType{oid: c.uint32(), modifier: int32(c.uint32())}
		r.columns = append(r.columns, col)
	}
	return r, c.err()
}

// parseRow returns the relation of an Insert, Update or Delete. What follows the envelope is the decoder's.
func parseRow(m []byte) (uint32, error) {
	if len(m) < rowEnvelope {
		return 0, errShortMessage
	}
	switch tuple := m[5]; {
	case m[0] == messageInsert && tuple == 'N',
		m[0] == messageUpdate && (tuple == 'N' || tuple == 'K' || tuple == 'O'),
		m[0] == messageDelete && (tuple == 'K' || tuple == 'O'):
		return binary.BigEndian.Uint32(m[1:]), nil
	}
	return 0, fmt.Errorf("pgoutput message %q: unknown tuple %q", m[0], m[5])
}

// parseTruncate appends the relations that a Truncate names to oids.
func parseTruncate(m []byte, oids []uint32) ([]uint32, error) {
	c := messageCursor{b: m[1:]}
	n := int(c.uint32())
	c.uint8() // CASCADE and RESTART IDENTITY: what they did to other tables is named here too
	if c.short || n != len(c.b)/4 {
		return oids, errShortMessage
	}
	for range n {
		oids = append(oids, c.uint32())
	}
	return oids, nil
}
