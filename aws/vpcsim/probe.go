// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// How long a probe waits for an answer, and how often meanwhile it looks whether its datagram was too big for the path.
const (
	patience = 5 * time.Second
	glance   = 100 * time.Millisecond
)

// small is what Call sends.
const small = 10

// Call calls a port where a Namespace answers, by "tcp" or "udp", and returns as whom it sees us.
func (n *Namespace) Call(network string, to netip.AddrPort) (seen netip.AddrPort, err error) {
	return n.Send(network, to, small)
}

// Send is Call with that many bytes, by "udp" in one datagram: 65507 at most, and in fragments if it is larger than the
// path takes. It is an error if the other end has not got them all.
func (n *Namespace) Send(network string, to netip.AddrPort, size int) (seen netip.AddrPort, err error) {
	err = n.Do(func() error {
		c, err := net.DialTimeout(network, to.String(), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if tcp, ok := c.(*net.TCPConn); ok {
			seen, err = sendStream(tcp, size)
			return err
		}
		d, err := newDatagrams(c, to.Addr())
		if err != nil {
			return err
		}
		seen, err = d.send(func(int) int { return size })
		return err
	})
	if err != nil {
		return seen, fmt.Errorf("%s: %w", n.Name, err)
	}
	return seen, nil
}

func sendStream(c *net.TCPConn, size int) (seen netip.AddrPort, err error) {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return seen, err
	}
	if _, err := c.Write(make([]byte, size)); err != nil {
		return seen, err
	}
	if err := c.CloseWrite(); err != nil {
		return seen, err
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return seen, err
	}
	return parseAnswer(answer, size)
}

// Ping sends one ICMP echo request and waits for its reply.
func (n *Namespace) Ping(to netip.Addr) error {
	network, kind := "ip4:icmp", echo4
	if to.Is6() {
		network, kind = "ip6:ipv6-icmp", echo6
	}
	err := n.Do(func() error {
		c, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		return kind.ask(c)
	})
	if err != nil {
		return fmt.Errorf("%s: ping %s: %w", n.Name, to, err)
	}
	return nil
}

// An echo is the types of its two messages: RFC 792, and RFC 4443, section 4.
type echo struct{ request, reply byte }

var (
	echo4 = echo{8, 0}
	echo6 = echo{128, 129}
)

// ask asks with the time of day for identifier and sequence number, so that it knows its own reply.
func (e echo) ask(c *net.IPConn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	const atSum, atID, length = 2, 4, 8
	request := make([]byte, length)
	request[0] = e.request
	byteOrder.PutUint32(request[atID:], uint32(time.Now().UnixNano()))
	byteOrder.PutUint16(request[atSum:], checksum(request)) // by IPv6, the kernel does it
	if _, err := c.Write(request); err != nil {
		return err
	}
	// A raw socket gets all that comes from there, also what others have asked for.
	for reply := make([]byte, ethernet); ; {
		size, _, err := c.ReadFrom(reply) // without the IP header
		if err != nil {
			return err
		}
		if size == length && reply[0] == e.reply && bytes.Equal(reply[atID:size], request[atID:]) {
			return nil
		}
	}
}
