// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"
)

// patience is how long a probe waits for an answer.
const patience = 3 * time.Second

// Answer tells everybody who calls a port, by TCP or UDP, with which address and port they are seen, until the
// Namespace is closed.
func (n *Namespace) Answer(port uint16) error {
	return n.Do(func() error {
		any := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
		tcp, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(any))
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		n.open = append(n.open, tcp)
		udp, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(any))
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		n.open = append(n.open, udp)
		go answerTCP(tcp)
		go answerUDP(udp)
		return nil
	})
}

func answerTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.WriteString(c, c.RemoteAddr().String())
		c.Close()
	}
}

func answerUDP(l *net.UDPConn) {
	question := make([]byte, jumbo)
	for {
		_, from, err := l.ReadFromUDPAddrPort(question)
		if err != nil {
			return
		}
		_, _ = l.WriteToUDPAddrPort([]byte(from.String()), from)
	}
}

// Call calls a port where a Namespace answers, by "tcp" or "udp", and returns as whom it sees us.
func (n *Namespace) Call(network string, to netip.AddrPort) (seen netip.AddrPort, err error) {
	err = n.Do(func() error {
		c, err := net.DialTimeout(network, to.String(), patience)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if network == "udp" {
			io.WriteString(c, "who am I?")
		}
		answer := make([]byte, 64)
		size, err := c.Read(answer)
		if err != nil {
			return err
		}
		seen, err = netip.ParseAddrPort(string(answer[:size]))
		return err
	})
	if err != nil {
		return seen, fmt.Errorf("%s: %w", n.Name, err)
	}
	return seen, nil
}

// Ping sends one ICMP echo request and waits for its reply.
func (n *Namespace) Ping(to netip.Addr) error {
	err := n.Do(func() error {
		c, err := net.DialIP("ip4:icmp", nil, &net.IPAddr{IP: to.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		return echo(c)
	})
	if err != nil {
		return fmt.Errorf("%s: ping %s: %w", n.Name, to, err)
	}
	return nil
}

// The types of ICMP messages (RFC 792).
const (
	echoReply   = 0
	echoRequest = 8
)

// echo asks with the time of day for identifier, so that it knows its own reply.
func echo(c *net.IPConn) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	now := uint32(time.Now().UnixNano())
	request := message(echoRequest, now)
	if _, err := c.Write(request); err != nil {
		return err
	}
	// A raw socket gets all that comes from there, also what others have asked for.
	for reply := make([]byte, ethernet); ; {
		size, _, err := c.ReadFrom(reply) // without the IP header
		if err != nil {
			return err
		}
		if bytes.Equal(reply[:size], message(echoReply, now)) {
			return nil
		}
	}
}

// message is an ICMP message with an identifier and a sequence number: RFC 792, "Echo or Echo Reply Message".
func message(kind byte, id uint32) []byte {
	m := binary.BigEndian.AppendUint32([]byte{kind, 0, 0, 0}, id)
	sum := uint32(kind)<<8 + id>>16 + id&0xffff
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return m
}
