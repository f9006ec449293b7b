// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestUnawaited sends packets of every kind to a pod in which no program listens. Only some reach the node: answers to
// a port of the loop, with their fragments, and ICMP errors about packets of the loop.
func TestUnawaited(t *testing.T) {
	host, pod := two(t)
	w := nl.Wiring{
		{host, nl.Veth{Name: "eni", Peer: "eth0", PeerNS: pod}},
		{host, nl.Veth{Name: "veth1", Peer: "eth1", PeerNS: pod}},
		{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}},
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	const answer, own, first, later = nl.SpliceFirst, nl.SpliceOwn, 0x2000, 0x0010
	link := wire{t: t, in: raw(t, host, "eni"), out: raw(t, host, "veth1")}
	for _, tt := range []struct {
		name   string
		packet []byte
		node   string // how the packet reaches the node
	}{
		{"another protocol", append([]byte{14: 0xff}, make([]byte, 60)...), no},
		{"tcp", ip4(0, 0, tcp(80)), no},
		{"tcp, a port of the pod's", ip4(0, 0, tcp(answer-1)), no},
		{"tcp, the first of the loop's", ip4(0, 0, tcp(answer)), changed},
		{"tcp, the last of the loop's", ip4(0, 0, tcp(65535)), changed},
		{"udp", ip4(0, 0, udp(80)), no},
		{"udp, a port of the pod's", ip4(0, 0, udp(answer-1)), no},
		{"udp, the loop's", ip4(0, 0, udp(answer)), changed},
		{"sctp with such a port", ip4(0, 0, segment{132, tcp(answer).bytes}), no},
		{"options, tcp", ip4(2, 0, tcp(80)), no},
		{"options like a port of the loop's, tcp", ip4(2, 0, tcp(80)), no},
		{"options, tcp, the loop's", ip4(2, 0, tcp(answer)), changed},
		{"a fragment of nothing", ip4(0, later, segment{17, tcp(answer).bytes}), no},
		{"the first fragment", ip4(0, first, udp(answer)), changed},
		{"a later fragment", ip4(0, later, segment{17, tcp(answer).bytes}), as},
		{"a later fragment like another port", ip4(0, first|later, segment{17, tcp(80).bytes}), as},
		{"the first fragment of another with its number", ip4(0, first, udp(80)), no},
		{"a later fragment of that", ip4(0, later, segment{17, tcp(answer).bytes}), no},
		{"echo", ip4(0, 0, icmp(1, 8, nil)), no},
		{"an error about the pod's port", ip4(0, 0, icmp(1, 3, ip4(0, 0, from(answer-1)))), no},
		{"an error about the loop's", ip4(0, 0, icmp(1, 3, ip4(0, 0, from(answer)))), changed},
		{"an error about options and the loop's", ip4(0, 0, icmp(1, 3, ip4(1, 0, from(answer)))), changed},
		{"the first fragment of an error about the loop's",
			ip4(0, first, icmp(1, 3, ip4(0, 0, from(answer)))), changed},
		{"a later fragment of that", ip4(0, later, segment{1, make([]byte, 8)}), as},
		{"the first fragment of a message with its number", ip4(0, first, icmp(1, 8, nil)), no},
		{"a later fragment of that message", ip4(0, later, segment{1, make([]byte, 8)}), no},
		{"a first fragment, for the next", ip4(0, first, tcp(answer)), changed},
		{"a first fragment, of the flags cut off", ip4(0, first, segment{6, tcp(answer).bytes[:12]}), no},
		{"a later fragment of what was cut off", ip4(0, later, segment{6, tcp(answer).bytes}), no},
		{"tcp cut off", ip4(0, 0, segment{6, nil}), no},

		{"ipv6, tcp", ip6(tcp(80)), no},
		{"ipv6, tcp, a port of the pod's", ip6(tcp(answer - 1)), no},
		{"ipv6, tcp, the loop's", ip6(tcp(answer)), changed},
		{"ipv6, udp, a port of the pod's", ip6(udp(own)), no},
		{"ipv6, udp, the loop's", ip6(udp(65535)), changed},
		{"ipv6, a later fragment of nothing", ip6(fragment(8, segment{17, tcp(answer).bytes})), no},
		{"ipv6, the first fragment", ip6(fragment(1, udp(answer))), changed},
		{"ipv6, a later fragment", ip6(fragment(8, segment{17, tcp(80).bytes})), as},
		{"ipv6, the first fragment of another with its number", ip6(fragment(1, udp(80))), no},
		{"ipv6, a later fragment of that", ip6(fragment(8, segment{17, tcp(80).bytes})), no},
		{"ipv6, echo", ip6(icmp(58, 128, nil)), no},
		{"ipv6, an error about the pod's port", ip6(icmp(58, 1, ip6(from(answer-1)))), no},
		{"ipv6, an error about the loop's", ip6(icmp(58, 1, ip6(from(answer)))), changed},
		{"ipv6, another header", ip6(segment{60, tcp(answer).bytes}), no},
	} {
		if node := link.how(tt.packet); node != tt.node {
			t.Errorf("%s: it comes to the node %s, want %s", tt.name, node, tt.node)
		}
	}
}

// A wire sends frames into a pod through one link, and reads the frames that leave through the other.
type wire struct {
	t       *testing.T
	in, out int
	sent    int
}

// how sends a packet, and returns how the packet reaches the node.
func (w *wire) how(packet []byte) string {
	w.t.Helper()
	switch got := w.pass(packet); {
	case got == nil:
		return no
	case bytes.Equal(got, packet):
		return as
	case translated(packet, got):
		return changed
	default:
		return fmt.Sprintf("as %x", got)
	}
}

// pass sends a packet, and then a marked packet. It returns the frame that leaves for the first packet, or nil if only
// the marked packet leaves.
func (w *wire) pass(packet []byte) (got []byte) {
	w.t.Helper()
	mark := ip4(0, 0, udp(65535))
	copy(mark[len(mark)-4:], "mark")
	w.sent++
	tail := fmt.Appendf(nil, "%04d", w.sent)
	copy(packet[len(packet)-4:], tail)
	for _, p := range [][]byte{packet, mark} {
		if _, err := unix.Write(w.in, p); err != nil {
			w.t.Fatal(err)
		}
	}
	for buf := make([]byte, 2048); ; {
		n, err := unix.Read(w.out, buf)
		switch {
		case err != nil:
			w.t.Fatalf("what follows the packet has not come: %v", err)
		case bytes.HasSuffix(buf[:n], []byte("mark")):
			return got
		case bytes.HasSuffix(buf[:n], tail):
			got = slices.Clone(buf[:n])
		}
	}
}

// translated reports whether got differs from sent only in one translated port. A right checksum must still be right,
// and a wrong one wrong.
func translated(sent, got []byte) bool {
	if len(sent) != len(got) {
		return false
	}
	var changed, before, after []uint16
	for i := 0; i+1 < len(sent); i += 2 {
		b, a := binary.BigEndian.Uint16(sent[i:]), binary.BigEndian.Uint16(got[i:])
		before, after = append(before, b), append(after, a)
		if a != b {
			changed = append(changed, a^b)
		}
	}
	return len(changed) == 2 && slices.Contains(changed, nl.SpliceFirst-nl.SpliceOwn) && sum(before) == sum(after)
}

// sum is the sum of the internet checksum (RFC 1071).
func sum(words []uint16) (s uint32) {
	for _, w := range words {
		s += uint32(w)
		s = s&0xffff + s>>16
	}
	return s
}

// raw opens a packet socket on a link.
func raw(t *testing.T, n *nl.NS, dev string) (fd int) {
	t.Helper()
	const every = 0x0300 // ETH_P_ALL as the network has it
	l, err := n.LinkByName(dev)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Do(func() error {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, every)
		if err != nil {
			return err
		}
		wait := unix.NsecToTimeval(time.Minute.Nanoseconds())
		return errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: l.Index, Protocol: every}),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait))
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// A segment is the payload of an IP packet.
type segment struct {
	proto byte
	bytes []byte
}

func tcp(port uint16) segment {
	s := ports(unix.IPPROTO_TCP, 443, port, 24)
	s.bytes[12], s.bytes[13] = 5<<4, 0x10 // the length of the header, and ACK
	return s
}

func udp(port uint16) segment { return ports(unix.IPPROTO_UDP, 443, port, 12) }

// from returns a UDP datagram from a port.
func from(port uint16) segment { return ports(unix.IPPROTO_UDP, port, 443, 12) }

func ports(proto byte, src, dst uint16, size int) segment {
	b := make([]byte, size)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	for i := range 2 { // any checksum: it must change together with the port
		b[checkAt(proto)+i] = 0x55
	}
	return segment{proto, b}
}

func checkAt(proto byte) int {
	if proto == unix.IPPROTO_TCP {
		return 16
	}
	return 6
}

// icmp returns an ICMP message. If about is not nil, the message quotes this frame.
func icmp(proto, kind byte, about []byte) segment {
	b := []byte{kind, 0, 0x55, 0x55, 0, 0, 0, 0}
	if about != nil {
		b = append(b, about[14:]...)
	}
	return segment{proto, append(b, "tail"...)}
}

// fragment returns a fragment of an IPv6 packet. The last bit of offset says that more fragments follow.
func fragment(offset uint16, s segment) segment {
	head := []byte{s.proto, 0, 0, 0, 0, 0, 0, 9}
	binary.BigEndian.PutUint16(head[2:], offset)
	return segment{unix.IPPROTO_FRAGMENT, append(head, s.bytes...)}
}

// ip4 returns an IPv4 frame. The argument options is the number of words of options, and fragment is the field with
// flags and offset.
func ip4(options int, fragment uint16, s segment) []byte {
	b := append(make([]byte, 12), 8, 0, byte(4<<4|5+options), 0, 0, 0, 0, 7, 0, 0, 64, s.proto, 0, 0)
	binary.BigEndian.PutUint16(b[20:], fragment)
	b = append(b, 10, 0, 2, 20, 10, 0, 1, 50)
	b = append(b, bytes.Repeat([]byte{0xff}, 4*options)...)
	b = append(b, s.bytes...)
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
	return b
}

func ip6(s segment) []byte {
	b := append(make([]byte, 12), 0x86, 0xdd, 6<<4, 0, 0, 0, 0, byte(len(s.bytes)), s.proto, 64)
	b = append(b, append([]byte{0xfd, 15: 20}, []byte{0xfd, 15: 50}...)...)
	return append(b, s.bytes...)
}
