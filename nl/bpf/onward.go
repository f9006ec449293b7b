// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"encoding/binary"
	"net"
)

// Onward is the program of a Splice for the veth: what is addressed to a MAC address goes on
// by the link eni, from the port that stands for its own. All else gets the bits of the mark.
func Onward(to net.HardwareAddr, mark uint32, m Maps, eni int) []byte {
	a := newAsm()
	begin(a)
	a.load(size4, r0, r2, 0)
	a.when(r0, unequal, int32(binary.NativeEndian.Uint32(to)), "pass")
	a.load(size2, r0, r2, 4)
	a.when(r0, unequal, int32(binary.NativeEndian.Uint16(to[4:])), "pass")
	parse(a, "send")
	a.label("later")
	a.label("icmp4")
	a.label("icmp6")
	a.jump("send")

	loadPort(a, 0, "send")
	a.and(r0, First)
	a.when(r0, unequal, Own, "send")
	expectAnswer(a, m)
	translate(a)

	a.label("send")
	a.set(r1, int32(eni))
	a.set(r2, 0)
	a.set(r3, 0)
	a.set(r4, 0)
	a.call(redirectNeigh)
	a.exit()
	short(a)
	a.label("pass")
	if mark != 0 {
		a.load(size4, r0, r6, skbMark)
		a.or(r0, int32(mark))
		a.store(size4, r6, skbMark, r0)
	}
	a.leave(next)
	return a.assemble()
}

// expectAnswer looks whether a socket of the namespace has the port that the answer will come
// to. If one takes anything on that port, this answer is remembered as none of its. If there is
// none, and a connection of TCP begins, that is remembered, so that the answer is not taken for
// one to somebody in the namespace who has no socket.
func expectAnswer(a *asm, m Maps) {
	handshake(a)
	place(a, 0)
	a.load(size4, r0, r7, 0)
	a.xor(r0, int32(binary.NativeEndian.Uint32([]byte{Bit >> 8, 0, 0, 0})))
	loadKey(a, 1)
	lookup(a)
	a.jump("known")
	a.label("none")
	a.when(r9, has, isSYN, "begin")
	a.jump("known")
	a.label("begin")
	begun(a)
	forget(a, m.Kept)
	remember(a, m.Looped)
	a.jump("known")
	a.label("shared")
	remember(a, m.Kept)
	a.label("known")
}
