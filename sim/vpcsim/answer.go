// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
)

// Answer serves a TCP port and the UDP port with the same number until the Namespace is closed. An answer is a text:
// the source address and port that the Namespace has seen, and the number of received bytes.
func (n *Namespace) Answer(port uint16) error {
	return n.Do(func() error {
		any := netip.AddrPortFrom(netip.IPv6Unspecified(), port) // this address also accepts IPv4: ipv6(7), IPV6_V6ONLY
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(any))
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		n.open = append(n.open, tcp)
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(any))
		if err != nil {
			return fmt.Errorf("%s: %w", n.Name, err)
		}
		n.open = append(n.open, udp)
		go answerTCP(tcp)
		go answerUDP(udp)
		return nil
	})
}

func answerTCP(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			size, err := io.Copy(io.Discard, c)
			if err == nil {
				_, _ = io.WriteString(c, answerText(c.RemoteAddr().(*net.TCPAddr).AddrPort(), int(size)))
			}
		}()
	}
}

func answerUDP(l *net.UDPConn) {
	question := make([]byte, 1<<16)
	for {
		size, from, err := l.ReadFromUDPAddrPort(question)
		if err != nil {
			return
		}
		_, _ = l.WriteToUDPAddrPort([]byte(answerText(from, size)), from)
	}
}

func answerText(from netip.AddrPort, size int) string {
	return fmt.Sprintf("%s %d", netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), size)
}

// parseAnswer returns the source address in an answer. It returns an error if the other end did not get exactly
// wantSize bytes.
func parseAnswer(b []byte, wantSize int) (seen netip.AddrPort, err error) {
	var from string
	var size int
	if _, err := fmt.Sscan(string(b), &from, &size); err != nil {
		return seen, fmt.Errorf("answer %q: %w", b, err)
	}
	if size != wantSize {
		return seen, fmt.Errorf("%d of %d bytes have come", size, wantSize)
	}
	return netip.ParseAddrPort(from)
}

var byteOrder = binary.BigEndian // network byte order

// checksum computes the internet checksum (RFC 1071) of a message of even length.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(byteOrder.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
