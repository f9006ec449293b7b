// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Addr converts an address in a CNI result to a netip.Addr. The returned bool is true if the address is valid.
func Addr(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}

// Prefix converts a CIDR in a CNI result to a netip.Prefix. The CIDR may also be an address with its mask. The returned
// bool is true if the CIDR's address is valid.
func Prefix(n net.IPNet) (netip.Prefix, bool) {
	a, ok := Addr(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a, bits), ok
}

// Gateway returns the first gateway of sibling's family in the CNI result r, or the zero address.
func Gateway(r *types100.Result, sibling netip.Addr) netip.Addr {
	for _, c := range r.IPs {
		if a, ok := Addr(c.Gateway); ok && a.Is6() == sibling.Is6() {
			return a
		}
	}
	return netip.Addr{}
}
