// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package bpf has BPF programs. Package nl attaches the programs to links, and the kernel runs them on the links'
// packets. A Splice uses [Onward] and [Unawaited], a Forbid uses [Refuse], and a Limit uses [Count]. Package nl
// explains Splice, Forbid and Limit. Package bpf does not use namespaces, and does not talk to the kernel.
package bpf

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// The programs of a Splice change the ports from Own to First - 1 into the ports from First to the highest port, and
// back. A port and its replacement differ by one bit. src/program.h must have the same constants.
const (
	Own   = 0x8000
	First = Own | Bit
	Bit   = 0x4000
)

// InsnSize is the size of an instruction, in bytes.
const InsnSize = 8

// Maps are the file descriptors of the maps that the programs of a Splice share: see src/memory.h.
type Maps struct {
	Kept   int // the keys of packets for which the sockets do not show correctly whether they are awaited
	Looped int // the last connections of TCP that have begun by the veth, to recognise their answers
}

// Revision returns 16 characters that identify the sources of the programs. TestSources checks that the programs are
// made of these sources.
func Revision() string { return sources[:16] }

// Onward returns the program of a Splice for the veth. If the destination of a packet is the MAC address to, the
// program forwards the packet by the link with the index eni. A source port of this packet from Own to First - 1
// becomes the port that stands for it. All other packets get the bits of the mark.
func Onward(to net.HardwareAddr, mark uint32, m Maps, eni int) []byte {
	return onwardProgram.with(map[string]uint64{
		"mac_head": uint64(binary.LittleEndian.Uint32(to)),
		"mac_tail": uint64(binary.LittleEndian.Uint16(to[4:])),
		"mark":     uint64(mark),
		"eni":      uint64(eni),
		"kept":     uint64(m.Kept),
		"looped":   uint64(m.Looped),
	})
}

// Unawaited returns the program of a Splice for the ENI. If no socket of the namespace awaits a packet, the program
// sends the packet to the other end of the link with the index veth.
func Unawaited(m Maps, veth int) []byte {
	return unawaitedProgram.with(map[string]uint64{"veth": uint64(veth), "kept": uint64(m.Kept),
		"looped": uint64(m.Looped)})
}

// Refuse returns the program of a Forbid, which drops packets to one of the addresses. Refuse panics if a family has
// more than one address.
func Refuse(addrs []netip.Addr) []byte {
	values := map[string]uint64{"has4": 0, "addr4": 0, "has6": 0, "addr6_0": 0, "addr6_1": 0, "addr6_2": 0,
		"addr6_3": 0}
	for _, a := range addrs {
		has, words := "has4", []string{"addr4"}
		if a.Is6() {
			has, words = "has6", []string{"addr6_0", "addr6_1", "addr6_2", "addr6_3"}
		}
		if values[has] == 1 {
			panic("two addresses of a family")
		}
		values[has] = 1
		b := a.AsSlice()
		for i, word := range words {
			values[word] = uint64(binary.LittleEndian.Uint32(b[4*i:]))
		}
	}
	return refuseProgram.with(values)
}

// Count returns the program of a Limit. The program matches the packets that the limit counts: all packets, or, if own
// is set, only packets that the namespace itself sends.
func Count(own bool) []byte {
	var v uint64
	if own {
		v = 1
	}
	return countProgram.with(map[string]uint64{"own": v})
}
