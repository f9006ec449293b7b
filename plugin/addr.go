// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Addr is an address of a result, and tells whether it is one.
func Addr(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

// Prefix is an address of a result with the length of its mask, or the destination of a
// route, and tells whether it is one.
func Prefix(n net.IPNet) (netip.Prefix, bool) {
	a, ok := Addr(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

// Gateway is that of a result's first address of a family that has one; the zero address
// if none has.
func Gateway(r *types100.Result, v6 bool) netip.Addr {
	for _, c := range r.IPs {
		if a, ok := Addr(c.Gateway); ok && a.Is6() == v6 {
			return a
		}
	}
	return netip.Addr{}
}
