// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package bpf has the BPF programs that package nl attaches to links. [Onward] and [Unawaited] are the programs of an
// nl.Splice. [Refuse] is the program of an nl.Forbid, and [Count] is the program of an nl.Limit. Package bpf only
// returns instructions, and does not load them into the kernel.
package bpf

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// The programs of a Splice translate ports in both directions. They set the bit PortBit of ports from OwnPort to
// FirstPort-1. To translate back, they clear the bit. src/program.h must have the same constants.
const (
	OwnPort   = 0x8000
	FirstPort = OwnPort | PortBit
	PortBit   = 0x4000
)

// InsnSize is the size of an instruction, in bytes.
const InsnSize = 8

// Maps has the file descriptors of the BPF maps that the two programs of a Splice share: see src/memory.h.
type Maps struct {
	// Kept is a map that remembers packets.
	Kept int
	// Looped is a map that remembers TCP connections whose first packet arrived through the veth.
	Looped int
}

// Revision returns the first 16 characters of a hash of the programs' sources.
func Revision() string { return sources[:16] }

// Onward returns the program of a Splice for the veth. If the destination of a packet is the MAC address mac, the
// program translates the source port. It then sends the packet through the link with the index eni. In the marks of all
// other packets, the program sets the bits that are 1 in the argument "mark".
func Onward(mac net.HardwareAddr, mark uint32, m Maps, eni int) []byte {
	return onwardProgram.withValues(map[string]uint64{
		"mac_head": uint64(binary.LittleEndian.Uint32(mac)),
		"mac_tail": uint64(binary.LittleEndian.Uint16(mac[4:])),
		"mark":     uint64(mark),
		"eni":      uint64(eni),
		"kept":     uint64(m.Kept),
		"looped":   uint64(m.Looped),
	})
}

// Unawaited returns the program of a Splice for the ENI. It gives packets to the other end of a veth pair if no socket
// of the namespace awaits them (see nl.Splice). The pair's end in this namespace has the index veth.
func Unawaited(m Maps, veth int) []byte {
	return unawaitedProgram.withValues(map[string]uint64{"veth": uint64(veth), "kept": uint64(m.Kept),
		"looped": uint64(m.Looped)})
}

// Refuse returns the program of a Forbid: it drops packets to the addresses. Refuse panics if two of the addresses are
// of the same family.
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
	return refuseProgram.withValues(values)
}

// Count returns the program of a Limit. It matches all packets, or with onlyOwn, only packets that the namespace itself
// sends.
func Count(onlyOwn bool) []byte {
	var v uint64
	if onlyOwn {
		v = 1
	}
	return countProgram.withValues(map[string]uint64{"own": v})
}
