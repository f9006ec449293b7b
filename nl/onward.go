// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"net"
)

// onward is the program of a Splice for the veth.
//
// Of what goes on it looks whether a socket of the namespace has the port that the answer
// will come to. If one takes anything on that port, it keeps in mind that this answer is not
// for it. If there is none, and a connection of TCP begins, it keeps that in mind, so that the
// answer is not taken for one to somebody in the namespace who has no socket.
//
// All else it marks, if there is a mark.
func (s Splice) onward(m memory, eni int) []byte {
	hw, _ := net.ParseMAC(s.MAC)
	a := newAsm()
	begin(a)
	a.load(size4, r0, r2, 0)
	a.when(r0, unequal, int32(binary.NativeEndian.Uint32(hw)), "pass")
	a.load(size2, r0, r2, 4)
	a.when(r0, unequal, int32(binary.NativeEndian.Uint16(hw[4:])), "pass")
	parse(a, "send")
	a.label("later")
	a.label("icmp4")
	a.label("icmp6")
	a.jump("send")

	loadPort(a, 0, "send")
	a.and(r0, SpliceFirst)
	a.when(r0, unequal, SpliceOwn, "send")
	handshake(a)
	place(a, 0)
	a.load(size4, r0, r7, 0)
	a.xor(r0, int32(binary.NativeEndian.Uint32([]byte{spliceBit >> 8, 0, 0, 0})))
	loadKey(a, 1)
	lookup(a)
	a.jump("known")
	a.label("none")
	a.when(r9, has, isSYN, "begin")
	a.jump("translate")
	a.label("begin")
	begun(a)
	forget(a, m.kept)
	remember(a, m.looped)
	a.jump("translate")
	a.label("shared")
	remember(a, m.kept)
	a.label("known")
	a.label("translate")
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
	if s.Mark != 0 {
		a.load(size4, r0, r6, skbMark)
		a.or(r0, int32(s.Mark))
		a.store(size4, r6, skbMark, r0)
	}
	a.leave(next)
	return a.assemble()
}
