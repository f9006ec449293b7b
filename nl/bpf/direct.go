// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import "golang.org/x/sys/unix"

// direct begins a Splice's program for the ENI. It passes at once whatever cannot be for one
// of the ports from [First] on, which is nearly all that a pod gets directly, and leaves
// the rest to a function, which is what comes after it.
//
// That takes half of the instructions that the function would, not least because a function
// without calls to the kernel saves no registers.
func direct(a *asm) {
	const port4, port6 = ethLen + ip4Len + 2, ethLen + ip6Len + 2 // the first byte of the port it is for
	const first = First >> 8
	until := func(n int32) {
		a.move(r4, r2)
		a.add(r4, n)
		a.whenReg(r4, above, r3, "ask")
	}
	a.load(size4, r2, r1, skbData)
	a.load(size4, r3, r1, skbDataEnd)
	until(port4 + 1)
	a.load(size2, r0, r2, ethType)
	a.when(r0, unequal, bytes2(unix.ETH_P_IP), "other")
	a.load(size1, r0, r2, ethLen)
	a.when(r0, unequal, 0x45, "ask") // options
	a.load(size2, r0, r2, ip4Frag)
	a.when(r0, has, bytes2(0x3fff), "ask")
	a.load(size1, r0, r2, ip4Proto)
	a.when(r0, equals, unix.IPPROTO_ICMP, "ask")
	a.load(size1, r0, r2, port4) // a protocol without ports has something else there, and passes either way
	a.when(r0, below, first, "no")

	a.label("ask")
	a.invoke("whole")
	a.exit()

	a.label("other")
	a.when(r0, unequal, bytes2(unix.ETH_P_IPV6), "no")
	until(port6 + 1)
	a.load(size1, r0, r2, ip6Next)
	a.when(r0, equals, unix.IPPROTO_TCP, "port6")
	a.when(r0, unequal, unix.IPPROTO_UDP, "ask")
	a.label("port6")
	a.load(size1, r0, r2, port6)
	a.when(r0, below, first, "no")
	a.jump("ask")

	a.label("no")
	a.leave(next)
	a.label("whole")
}
