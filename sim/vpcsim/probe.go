// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// How long a probe waits for an answer: long enough for a busy machine. A probe that expects silence waits only
// briefly. While a probe waits, it checks at this interval whether its datagram was too big for the path. A ping is
// repeated as ping(8) repeats it.
const (
	patience = time.Minute
	glance   = 100 * time.Millisecond
	while    = 2 * time.Second
	again    = time.Second
)

// small is the number of bytes of a Call.
const small = 10

// Call calls a port where a Namespace answers, by "tcp" or "udp", and returns the address that the other end saw.
func (n *Namespace) Call(network string, to netip.AddrPort) (seen netip.AddrPort, err error) {
	return n.Send(network, to, small)
}

// Send is Call with this number of bytes. By "udp" it is one datagram, at most 65507 bytes, in fragments if it is
// larger than the path MTU. It is an error if the other end does not get all bytes.
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

// Ping sends an ICMP echo request each second until there is a reply. One request is not enough: the kernel adds an
// IPv6 address before the local route to it, which a work item adds (net/ipv6/addrconf.c: addrconf_dad_start). A packet
// that arrives in between is dropped.
func (n *Namespace) Ping(to netip.Addr) error { return n.ping(to, patience) }

// Silent sends ICMP echo requests for two seconds, and returns an error if there is a reply.
func (n *Namespace) Silent(to netip.Addr) error {
	if err := n.ping(to, while); err != nil {
		return nil
	}
	return fmt.Errorf("%s: %s answers", n.Name, to)
}

func (n *Namespace) ping(to netip.Addr, patience time.Duration) error {
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
		return kind.ask(c, patience)
	})
	if err != nil {
		return fmt.Errorf("%s: ping %s: %w", n.Name, to, err)
	}
	return nil
}

// An echo has the types of its two messages: RFC 792, and RFC 4443, section 4.
type echo struct{ request, reply byte }

var (
	echo4 = echo{8, 0}
	echo6 = echo{128, 129}
)

// atID is the offset of identifier and sequence number in the messages.
const atID = 4

// ask uses the time of day as identifier and sequence number, so that it recognises its own reply.
func (e echo) ask(c *net.IPConn, patience time.Duration) error {
	const atSum, length = 2, 8
	request := make([]byte, length)
	request[0] = e.request
	byteOrder.PutUint32(request[atID:], uint32(time.Now().UnixNano()))
	byteOrder.PutUint16(request[atSum:], checksum(request)) // for IPv6, the kernel computes it
	for end := time.Now().Add(patience); ; {
		if _, err := c.Write(request); err != nil {
			return err
		}
		err := e.await(c, request[atID:], time.Now().Add(again))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return err
		}
	}
}

// await reads until the reply with that identifier and sequence number comes. A raw socket gets all replies from there,
// also the replies to other processes.
func (e echo) await(c *net.IPConn, id []byte, deadline time.Time) error {
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	for reply := make([]byte, ethernet); ; {
		size, _, err := c.ReadFrom(reply) // without the IP header
		if err != nil {
			return err
		}
		if size == atID+len(id) && reply[0] == e.reply && bytes.Equal(reply[atID:size], id) {
			return nil
		}
	}
}
