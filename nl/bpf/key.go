// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import "golang.org/x/sys/unix"

// A key is what the programs remember a packet by. It is made on the stack: the addresses
// and ports of the answer, as in struct bpf_sock_tuple, and then the protocol. One of fragments
// has their identification in the place of ports.
const (
	KeySize    = 40
	key        = -KeySize
	keyProto   = key + 36
	isFragment = 1 << 8 // added to the protocol: it is one of fragments
	isBegun    = 1 << 9 // added to the protocol: the connection has begun without a socket
)

// loadKey builds the key from the ports in r0 and the addresses of the packet, as
// they are or the other way round, and goes on at "lookup" with the length of its
// tuple in r3.
func loadKey(a *asm, swap int16) {
	clearKey(a)
	a.load(size2, r4, r2, ethType)
	a.when(r4, equals, bytes2(unix.ETH_P_IPV6), "key6")
	storePorts(a, key+8, swap)
	copyAddrs(a, r2, ip4Addrs, swap, 4)
	a.set(r3, 12)
	a.jump("lookup")
	a.label("key6")
	within(a, r2, ethLen+ip6Len) // it is; the verifier does not know
	storePorts(a, key+32, swap)
	copyAddrs(a, r2, ip6Addrs, swap, 16)
	a.set(r3, 36)
}

func clearKey(a *asm) {
	for off := int16(key); off < 0; off += 8 {
		a.emit(unix.BPF_ST|unix.BPF_MEM|size8, fp, 0, off, 0)
	}
	a.store(size4, fp, keyProto, r8)
}

// storePorts stores the ports in r0, as they are or the other way round.
func storePorts(a *asm, off, swap int16) {
	a.store(size4, fp, off, r0)
	if swap == 1 {
		a.load(size2, r4, fp, off)
		a.load(size2, r5, fp, off+2)
		a.store(size2, fp, off, r5)
		a.store(size2, fp, off+2, r4)
	}
}

// copyAddrs copies two addresses of n bytes, as they are or the other way round.
func copyAddrs(a *asm, base uint8, off, swap, n int16) {
	for i := int16(0); i < 2*n; i += 4 {
		a.load(size4, r4, base, off+i)
		a.store(size4, fp, key+(swap*n+i)%(2*n), r4)
	}
}

// lookup asks for a socket that awaits what the key says. It goes to "none", to "known"
// for one of that very connection, or to "shared" for one that takes anything.
func lookup(a *asm) {
	const established, listen = 1, 10 // of net/tcp_states.h; a connected socket of UDP is established
	a.label("lookup")
	a.move(r1, r6)
	a.move(r2, fp)
	a.add(r2, key)
	a.set(r4, -1) // this namespace: BPF_F_CURRENT_NETNS
	a.set(r5, 0)
	a.when(r8, equals, unix.IPPROTO_UDP, "udp")
	a.call(skcLookupTCP)
	a.when(r0, equals, 0, "none")
	state(a)
	a.when(r7, equals, listen, "shared")
	a.jump("known")
	a.label("udp")
	a.call(skLookupUDP)
	a.when(r0, equals, 0, "none")
	state(a)
	a.when(r7, unequal, established, "shared")
}

// state leaves the state of a socket in r7.
func state(a *asm) {
	a.load(size4, r7, r0, sockState)
	a.move(r1, r0)
	a.call(skRelease)
}

// begun makes the key one of a connection that has begun without a socket.
func begun(a *asm) {
	a.load(size4, r0, fp, keyProto)
	a.or(r0, isBegun)
	a.store(size4, fp, keyProto, r0)
}

// remember puts the key into a map. The value is anything.
func remember(a *asm, fd int) {
	a.loadMap(r1, fd)
	a.move(r2, fp)
	a.add(r2, key)
	a.move(r3, r2)
	a.set(r4, 0)
	a.call(mapUpdate)
}

// recall looks for the key in a map, and goes to other if it is not there.
func recall(a *asm, fd int, other string) {
	a.loadMap(r1, fd)
	a.move(r2, fp)
	a.add(r2, key)
	a.call(mapLookup)
	a.when(r0, equals, 0, other)
}

// forget takes the key out of a map.
func forget(a *asm, fd int) {
	a.loadMap(r1, fd)
	a.move(r2, fp)
	a.add(r2, key)
	a.call(mapDelete)
}
