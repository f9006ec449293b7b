// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Refuse is the program of a Forbid: it drops what is to one of the addresses.
func Refuse(addrs []netip.Addr) []byte {
	const ip4Dst, ip6Dst = ip4Addrs + 4, ip6Addrs + 16
	a := newAsm()
	begin(a)
	a.load(size2, r0, r2, ethType)
	a.when(r0, equals, bytes2(unix.ETH_P_IPV6), "ip6")
	a.when(r0, unequal, bytes2(unix.ETH_P_IP), "pass")
	refuseFamily(a, addrs, false, ip4Dst)
	a.jump("pass")
	a.label("ip6")
	within(a, r2, ethLen+ip6Len)
	refuseFamily(a, addrs, true, ip6Dst)
	a.jump("pass")
	short(a)
	a.label("pass")
	a.leave(next)
	a.label("drop")
	a.leave(shot)
	return a.assemble()
}

// refuseFamily drops what is to one of the addresses of a family, which are at an offset.
func refuseFamily(a *asm, addrs []netip.Addr, v6 bool, off int16) {
	for i, addr := range addrs {
		if addr.Is6() != v6 {
			continue
		}
		other := fmt.Sprint("not ", i)
		for j, b := 0, addr.AsSlice(); j < len(b); j += 2 {
			a.load(size2, r0, r2, off+int16(j))
			a.when(r0, unequal, bytes2(binary.BigEndian.Uint16(b[j:])), other)
		}
		a.jump("drop")
		a.label(other)
	}
}
