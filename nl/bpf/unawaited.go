// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import "golang.org/x/sys/unix"

// Unawaited is the program of a Splice for the ENI: what no socket of the namespace awaits goes
// to the other end of the link veth.
func Unawaited(m Maps, veth int) []byte {
	a := newAsm()
	direct(a)
	begin(a)
	parse(a, "pass")

	loadPort(a, 2, "pass")
	a.when(r0, below, First, "pass")
	handshake(a)
	place(a, 2)
	a.load(size4, r0, r7, 0)
	loadKey(a, 0)
	lookup(a)
	a.label("known")
	a.jump("pass")
	a.label("shared")
	a.when(r9, has, isSYN, "pass")
	recall(a, m.Kept, "pass")
	a.jump("redirect")
	noSocket(a, m)

	a.label("redirect")
	translate(a)
	a.when(r9, has, isFirst, "remember")
	a.label("peer")
	a.set(r1, int32(veth))
	a.set(r2, 0)
	a.call(redirectPeer)
	a.exit()

	fragments(a, m.Kept)
	icmpErrors(a)
	short(a)
	a.label("pass")
	a.when(r9, has, isFirst, "forget")
	a.label("done")
	a.leave(next)
	return a.assemble()
}

// noSocket tells apart what no socket awaits: the answers to what has gone on by the ENI, and
// what is for somebody in the namespace who has no socket, because something translates his
// port. It passes the latter. Of TCP it knows them by their beginning: a connection that begins
// from outside, or one that is answered and that the program at the veth has not seen begin.
// These it remembers. Those of the veth need to be remembered only until they are answered.
func noSocket(a *asm, m Maps) {
	a.label("none")
	a.when(r8, unequal, unix.IPPROTO_TCP, "redirect")
	begun(a)
	a.when(r9, has, isSYN, "begin")
	recall(a, m.Kept, "unknown")
	a.jump("pass")
	a.label("unknown")
	a.when(r9, has, isSYNACK, "answered")
	a.jump("redirect")
	a.label("answered")
	recall(a, m.Looped, "begin")
	a.jump("redirect")
	a.label("begin")
	remember(a, m.Kept)
	a.jump("pass")
}

// fragments remembers the first one of a packet that is redirected, and recalls it for the
// later ones, which have no ports. They come in their order as a rule; a packet whose first
// one comes late is lost. The first one of a packet that passes has one of the same number
// forgotten: senders count to 65535, and begin again.
func fragments(a *asm, kept int) {
	a.label("forget")
	a.and(r9, ^isFirst)
	a.or(r9, isOld)
	a.jump("later")
	a.label("remember")
	a.or(r9, isNew)
	a.label("later")
	loadPacket(a)
	within(a, r2, ethLen+ip4Len)
	a.or(r8, isFragment)
	clearKey(a)
	a.load(size2, r0, r2, ethType)
	a.when(r0, equals, bytes2(unix.ETH_P_IPV6), "fragment6")
	copyAddrs(a, r2, ip4Addrs, 0, 4)
	a.load(size2, r0, r2, ip4ID)
	a.store(size2, fp, key+8, r0)
	a.jump("fragment")
	a.label("fragment6")
	within(a, r2, ethLen+ip6Len+fragLen)
	copyAddrs(a, r2, ip6Addrs, 0, 16)
	a.load(size4, r0, r2, ethLen+ip6Len+fragID)
	a.store(size4, fp, key+32, r0)
	a.label("fragment")
	a.when(r9, has, isNew, "update")
	a.when(r9, has, isOld, "delete")
	recall(a, kept, "pass")
	a.jump("peer")
	a.label("update")
	remember(a, kept)
	a.jump("peer")
	a.label("delete")
	forget(a, kept)
	a.jump("done")
}

// icmpErrors looks at an error about a packet that was sent from one of the ports. An
// answer to that would have its addresses and ports the other way round.
func icmpErrors(a *asm) {
	a.label("icmp4")
	within(a, r7, icmpLen+ip4Len)
	a.load(size1, r0, r7, 0)
	a.when(r0, equals, 3, "error4") // unreachable, and too big
	a.when(r0, equals, 11, "error4")
	a.when(r0, unequal, 12, "pass")
	a.label("error4")
	a.load(size1, r8, r7, icmpLen+ip4Proto-ethLen)
	a.load(size1, r5, r7, icmpLen)
	a.and(r5, 0xf)
	a.shift(r5, 2)
	a.add(r5, icmpLen)
	a.plus(r5, r7)
	innerPorts(a, "4")
	clearKey(a)
	copyAddrs(a, r7, icmpLen+ip4Addrs-ethLen, 1, 4)
	storePorts(a, key+8, 1)
	a.set(r3, 12)
	a.jump("lookup")

	a.label("icmp6")
	within(a, r7, icmpLen+ip6Len)
	a.load(size1, r0, r7, 0)
	a.when(r0, above, 4, "pass") // the errors are 1 to 4
	a.load(size1, r8, r7, icmpLen+ip6Next-ethLen)
	a.move(r5, r7)
	a.add(r5, icmpLen+ip6Len)
	innerPorts(a, "6")
	clearKey(a)
	copyAddrs(a, r7, icmpLen+ip6Addrs-ethLen, 1, 16)
	storePorts(a, key+32, 1)
	a.set(r3, 36)
	a.jump("lookup")
}

// innerPorts checks the packet in an error, whose ports r5 points to, and leaves
// them in r0.
func innerPorts(a *asm, version string) {
	const icmpCheck = 2
	a.when(r8, equals, unix.IPPROTO_UDP, "inner"+version)
	a.when(r8, unequal, unix.IPPROTO_TCP, "pass")
	a.label("inner" + version)
	within(a, r5, 4)
	a.load(size2, r0, r5, 0)
	a.host16(r0)
	a.when(r0, below, First, "pass")
	a.load(size4, r0, r5, 0)
	ports(a, r5, 0)
	a.move(r4, r5)
	a.minus(r4, r2)
	a.move(r5, r7)
	a.minus(r5, r2)
	a.add(r5, icmpCheck)
	a.set(r1, 2)
	placed(a)
}
