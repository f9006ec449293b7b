// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A Tap records the packets from and to some addresses at some links of a namespace, like tcpdump(8). It does not
// change packets. Other packets cost little, because a filter in the kernel discards their copies. Nothing of the Tap
// remains when the process ends.
type Tap struct {
	links map[int]string // maps a socket's file descriptor to the name of the link
	addrs []netip.Addr
}

// A Sighting is a packet that a Tap has recorded at a link.
type Sighting struct {
	At       time.Time
	Link     string
	Out      bool // the packet leaves the namespace through the link
	From, To netip.Addr
	Size     int // the size of the packet in bytes
}

// Tap returns a Tap that records packets from and to addrs at the links.
func (n *NS) Tap(addrs []netip.Addr, links ...string) (*Tap, error) {
	t := &Tap{links: map[int]string{}, addrs: addrs}
	for _, l := range links {
		if err := t.add(n, l); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

func (t *Tap) add(n *NS, link string) error {
	index, err := n.linkIndex(link)
	if err != nil {
		return err
	}
	// Before bind(2), a socket without a protocol gets no packets. So no packet bypasses the filter.
	fd, err := n.openSocket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	t.links[fd] = link
	program := tapFilter(t.addrs)
	return errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)),
		os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index,
			Protocol: binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))})))
}

// The offsets of the addresses in the IP headers. The filter compares only the last four bytes of IPv6 addresses (at
// tailOf6), and Seen compares whole addresses.
const (
	atSource4, atTarget4 = 12, 16
	atSource6, atTarget6 = 8, 24
	tailOf6              = 12
	headers              = 64 // the number of bytes to read of each packet, enough for the addresses
)

// tapFilter returns a classic BPF program that accepts packets from or to one of the addresses.
func tapFilter(addrs []netip.Addr) []unix.SockFilter {
	const load, jump = unix.BPF_LD | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	of := map[Family][]unix.SockFilter{}
	for _, f := range Families {
		source, target := uint32(atSource4), uint32(atTarget4)
		if f == IPv6 {
			source, target = atSource6+tailOf6, atTarget6+tailOf6
		}
		for _, at := range []uint32{source, target} {
			of[f] = append(of[f], unix.SockFilter{Code: load | unix.BPF_W, K: at})
			for _, a := range addrs {
				if b := a.AsSlice(); FamilyOf(a) == f {
					of[f] = append(of[f], unix.SockFilter{Code: jump, K: binary.BigEndian.Uint32(b[len(b)-4:])})
				}
			}
		}
	}
	size4 := len(of[IPv4])
	program := slices.Concat([]unix.SockFilter{
		{Code: load | unix.BPF_B, K: 0}, {Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 4},
		{Code: jump, K: 6, Jt: uint8(size4 + 1)}, // skip the IPv4 part if the packet is IPv6
	}, of[IPv4], []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}, of[IPv6],
		[]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}, {Code: unix.BPF_RET | unix.BPF_K, K: headers}})
	take := len(program) - 1
	for i := 3; i < take; i++ {
		if program[i].Code == jump {
			program[i].Jt = uint8(take - i - 1)
		}
	}
	return program
}

// Seen returns the packets that the Tap has recorded since Seen was last called. The packets are sorted by time.
func (t *Tap) Seen() (all []Sighting) {
	for fd, link := range t.links {
		for {
			s, err := t.read(fd)
			if err != nil {
				break // there are no more packets
			}
			s.Link = link
			if slices.Contains(t.addrs, s.From) || slices.Contains(t.addrs, s.To) {
				all = append(all, s)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Sighting) int { return a.At.Compare(b.At) })
	return all
}

func (t *Tap) read(fd int) (s Sighting, err error) {
	packet, control := make([]byte, headers), make([]byte, headers)
	n, controls, _, from, err := unix.Recvmsg(fd, packet, control, unix.MSG_TRUNC)
	for err == unix.EINTR {
		n, controls, _, from, err = unix.Recvmsg(fd, packet, control, unix.MSG_TRUNC)
	}
	if err != nil {
		return s, err
	}
	if l, ok := from.(*unix.SockaddrLinklayer); ok {
		s.Out = l.Pkttype == unix.PACKET_OUTGOING
	}
	s.Size = n
	s.From, s.To = addressesOf(packet)
	messages, err := unix.ParseSocketControlMessage(control[:controls])
	for _, m := range messages {
		if m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			s.At = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return s, err
}

func addressesOf(packet []byte) (from, to netip.Addr) {
	switch packet[0] >> 4 {
	case 4:
		return netip.AddrFrom4([4]byte(packet[atSource4:])), netip.AddrFrom4([4]byte(packet[atTarget4:]))
	case 6:
		return netip.AddrFrom16([16]byte(packet[atSource6:])), netip.AddrFrom16([16]byte(packet[atTarget6:]))
	}
	return from, to
}

// Close stops the Tap.
func (t *Tap) Close() (err error) {
	for fd := range t.links {
		err = cmp.Or(err, os.NewSyscallError("close", unix.Close(fd)))
	}
	clear(t.links)
	return err
}
