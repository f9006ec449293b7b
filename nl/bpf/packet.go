// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Functions of the kernel, of linux/bpf.h. The last two came with Linux 5.10.
const (
	mapLookup     = 1
	mapUpdate     = 2
	mapDelete     = 3
	skbStoreBytes = 9
	l4CsumReplace = 11
	skbPullData   = 39
	skLookupUDP   = 85
	skRelease     = 86
	skcLookupTCP  = 99
	redirectNeigh = 152
	redirectPeer  = 155
)

// Offsets in the context of a program, struct __sk_buff, and in struct bpf_sock.
const (
	skbLen, skbMark, skbData, skbDataEnd = 0, 8, 76, 80
	sockState                            = 72
)

// Lengths and offsets of headers.
const (
	ethLen, ip4Len, ip6Len, icmpLen, fragLen = 14, 20, 40, 8, 8

	ethType                            = 12
	ip4ID, ip4Frag, ip4Proto, ip4Addrs = ethLen + 4, ethLen + 6, ethLen + 9, ethLen + 12
	ip6Next, ip6Addrs                  = ethLen + 6, ethLen + 8
	fragOffset, fragID, tcpFlags       = 2, 4, 13
	synAck, syn                        = 0x12, 0x02
	mostHead                           = 160 // Ethernet, IP with options, ICMP, IP with options, ports
)

// next lets the next filter decide: TC_ACT_UNSPEC of linux/pkt_cls.h. After the
// last one a packet goes where it was going.
const next = -1

// shot drops a packet: TC_ACT_SHOT.
const shot = 2

// What a program knows of a packet, in r9.
const (
	isFirst  = 1 << iota // it is the first of several fragments
	isNew                // these are to be remembered
	isOld                // these are to be forgotten
	isSYN                // it begins a connection
	isSYNACK             // it answers one that begins
	isLinear             // its headers are linear, as far as it has any
)

// What translate needs is on the stack before the key.
const (
	offPort  = key - 8  // where the port is in the packet
	offCheck = key - 16 // where its checksum is
	checking = key - 24 // how that is computed
	newPort  = key - 32
	oldPort  = newPort + 2
)

// bytes2 is a number of two bytes of the network's, as the host loads it.
func bytes2(v uint16) int32 {
	return int32(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v)))
}

// begin loads the packet to r2 and its end to r3. What lies beyond is not linear as a
// rule: data, or headers of a packet that was put together from pieces.
func begin(a *asm) {
	a.move(r6, r1)
	a.set(r9, 0)
	a.label("again")
	loadPacket(a)
	within(a, r2, ethLen+ip4Len)
}

// short makes the headers of a packet linear that ended too early, and begins again; or, if
// they are linear already, passes a packet that is as short as that. A program does so only
// where it has to, because the kernel copies the head of a packet that others have too: a
// capture, or a sender on this host.
func short(a *asm) {
	a.label("short")
	a.when(r9, has, isLinear, "pass")
	a.set(r9, isLinear)
	a.load(size4, r2, r6, skbLen)
	a.when(r2, below, mostHead, "pull")
	a.set(r2, mostHead)
	a.label("pull")
	a.move(r1, r6)
	a.call(skbPullData)
	a.jump("again")
}

func loadPacket(a *asm) {
	a.load(size4, r2, r6, skbData)
	a.load(size4, r3, r6, skbDataEnd)
}

// within goes to "short" if the packet ends before n bytes after a register.
func within(a *asm, from uint8, n int32) {
	a.move(r4, from)
	a.add(r4, n)
	a.whenReg(r4, above, r3, "short")
}

// parse leaves the protocol in r8 and its header in r7, and goes on at "port", "icmp4",
// "icmp6", or for fragments but the first at "later". What is not IP goes to other.
func parse(a *asm, other string) {
	a.load(size2, r0, r2, ethType)
	a.when(r0, equals, bytes2(unix.ETH_P_IPV6), "ip6")
	a.when(r0, unequal, bytes2(unix.ETH_P_IP), other)
	a.load(size1, r8, r2, ip4Proto)
	a.load(size1, r7, r2, ethLen)
	a.and(r7, 0xf) // in words
	a.shift(r7, 2)
	a.add(r7, ethLen)
	a.plus(r7, r2)
	a.load(size2, r0, r2, ip4Frag)
	a.and(r0, bytes2(0x3fff)) // more fragments, and the offset
	a.when(r0, equals, 0, "whole4")
	a.when(r0, unequal, bytes2(0x2000), "later")
	a.or(r9, isFirst)
	a.label("whole4")
	a.when(r8, equals, unix.IPPROTO_ICMP, "icmp4")
	a.jump("port")

	a.label("ip6")
	a.move(r7, r2)
	a.add(r7, ethLen+ip6Len)
	within(a, r7, fragLen)
	a.load(size1, r8, r2, ip6Next)
	a.when(r8, equals, unix.IPPROTO_ICMPV6, "icmp6")
	a.when(r8, unequal, unix.IPPROTO_FRAGMENT, "port")
	a.load(size1, r8, r7, 0) // the next header's next header
	a.load(size2, r0, r7, fragOffset)
	a.and(r0, bytes2(0xfff8))
	a.when(r0, unequal, 0, "later")
	a.or(r9, isFirst)
	a.add(r7, fragLen)
	a.jump("port")
}

// loadPort loads the port at an offset to r0, or goes to other if there is none.
func loadPort(a *asm, off int16, other string) {
	a.label("port")
	a.when(r8, equals, unix.IPPROTO_UDP, "ports")
	a.when(r8, unequal, unix.IPPROTO_TCP, other)
	a.label("ports")
	within(a, r7, 8)
	a.load(size2, r0, r7, off)
	a.host16(r0)
}

// place notes where in the packet the port at an offset is, and its checksum.
func place(a *asm, off int16) {
	const tcpCheck, udpCheck = 16, 6
	a.set(r1, 2) // of the size of two bytes
	a.set(r5, tcpCheck)
	a.when(r8, equals, unix.IPPROTO_TCP, "check")
	a.set(r1, 2|1<<5) // and 0 means that there is none: BPF_F_MARK_MANGLED_0
	a.set(r5, udpCheck)
	a.label("check")
	a.move(r4, r7)
	a.minus(r4, r2)
	a.plus(r5, r4)
	a.add(r4, int32(off))
	placed(a)
	ports(a, r7, off)
}

// placed stores the offsets of the port, r4, and of the checksum, r5, and how that is
// computed, r1.
func placed(a *asm) {
	a.store(size8, fp, offPort, r4)
	a.store(size8, fp, offCheck, r5)
	a.store(size8, fp, checking, r1)
}

// handshake notes in r9 whether a packet of TCP begins a connection, or answers one that begins.
func handshake(a *asm) {
	a.when(r8, unequal, unix.IPPROTO_TCP, "going on")
	within(a, r7, tcpFlags+1)
	a.load(size1, r4, r7, tcpFlags)
	a.and(r4, synAck)
	a.when(r4, equals, syn, "begins")
	a.when(r4, unequal, synAck, "going on")
	a.or(r9, isSYNACK)
	a.jump("going on")
	a.label("begins")
	a.or(r9, isSYN)
	a.label("going on")
}

// ports notes the port at an offset and the one that it becomes.
func ports(a *asm, base uint8, off int16) {
	a.load(size2, r4, base, off)
	a.store(size2, fp, oldPort, r4)
	a.xor(r4, bytes2(Bit))
	a.store(size2, fp, newPort, r4)
}

// translate changes the port and corrects the checksum. Pointers to the packet end.
func translate(a *asm) {
	a.move(r1, r6)
	a.load(size8, r2, fp, offPort)
	a.move(r3, fp)
	a.add(r3, newPort)
	a.set(r4, 2)
	a.set(r5, 0)
	a.call(skbStoreBytes)
	a.move(r1, r6)
	a.load(size8, r2, fp, offCheck)
	a.load(size2, r3, fp, oldPort)
	a.load(size2, r4, fp, newPort)
	a.load(size8, r5, fp, checking)
	a.call(l4CsumReplace)
}
