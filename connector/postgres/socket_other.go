//go:build !linux

package postgres

import "net"

// newWire takes over a connection.
func newWire(conn net.Conn) (wire, error) { return &netWire{conn: conn}, nil }
