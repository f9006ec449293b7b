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

const (
	answerTimeout = time.Minute            // how long a probe waits for an answer; enough for a busy machine
	pollInterval  = 100 * time.Millisecond // how often a probe checks whether its datagram was too big for the path
	silence       = 2 * time.Second        // how long Silent waits
	pingInterval  = time.Second            // the time between two echo requests, as in ping(8)
)

// callSize is the number of bytes that Call sends.
const callSize = 10

// Call connects by TCP or UDP to a port where a Namespace answers. The argument "network" is "tcp" or "udp". Call
// returns the source address that the other end saw.
func (n *Namespace) Call(network string, to netip.AddrPort) (seen netip.AddrPort, err error) {
	return n.Send(network, to, callSize)
}

// Send is like Call, but the caller chooses the number of bytes. With "udp", the maximum is 65507 bytes, because Send
// sends them in one datagram. If the datagram is larger than the path MTU, the kernel sends it in fragments. If the
// other end does not get all bytes, Send returns an error.
func (n *Namespace) Send(network string, to netip.AddrPort, size int) (seen netip.AddrPort, err error) {
	err = n.Do(func() error {
		c, err := net.DialTimeout(network, to.String(), answerTimeout)
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
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
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

// Ping sends an ICMP echo request each second until there is a reply, for at most a minute. The receiver's kernel drops
// packets to a new IPv6 address until it has added the local route (net/ipv6/addrconf.c: addrconf_dad_start).
func (n *Namespace) Ping(to netip.Addr) error { return n.ping(to, answerTimeout) }

// Silent sends ICMP echo requests for two seconds, and returns an error if there is a reply.
func (n *Namespace) Silent(to netip.Addr) error {
	if err := n.ping(to, silence); err != nil {
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
		return kind.exchange(c, patience)
	})
	if err != nil {
		return fmt.Errorf("%s: ping %s: %w", n.Name, to, err)
	}
	return nil
}

// An echo has the ICMP types of a request and its reply: RFC 792, and RFC 4443, section 4.
type echo struct{ request, reply byte }

var (
	echo4 = echo{8, 0}
	echo6 = echo{128, 129}
)

// atID is the offset of the identifier in the messages. The sequence number follows the identifier.
const atID = 4

// exchange sends requests until a reply comes. The requests have the time of day as their identifier and sequence
// number. By these numbers, exchange recognises the reply to its own request.
func (e echo) exchange(c *net.IPConn, patience time.Duration) error {
	const atSum, length = 2, 8
	request := make([]byte, length)
	request[0] = e.request
	byteOrder.PutUint32(request[atID:], uint32(time.Now().UnixNano()))
	byteOrder.PutUint16(request[atSum:], checksum(request)) // for IPv6, the kernel computes the checksum
	for end := time.Now().Add(patience); ; {
		if _, err := c.Write(request); err != nil {
			return err
		}
		err := e.awaitReply(c, request[atID:], time.Now().Add(pingInterval))
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
			return err
		}
	}
}

// awaitReply reads until the reply with this identifier and sequence number comes. A raw socket also gets replies to
// requests of other processes.
func (e echo) awaitReply(c *net.IPConn, id []byte, deadline time.Time) error {
	if err := c.SetReadDeadline(deadline); err != nil {
		return err
	}
	for reply := make([]byte, internetMTU); ; {
		size, _, err := c.ReadFrom(reply) // without the IP header
		if err != nil {
			return err
		}
		if size == atID+len(id) && reply[0] == e.reply && bytes.Equal(reply[atID:size], id) {
			return nil
		}
	}
}
