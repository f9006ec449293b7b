// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Family is the kernel's number of an address family. The zero value stands for any family.
type Family uint8

// The families that this package knows.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// Families has both families, in the order in which the functions of this package list objects.
var Families = []Family{IPv4, IPv6}

// FamilyOf returns the family of an address, or 0 for the zero netip.Addr.
func FamilyOf(a netip.Addr) Family {
	switch {
	case !a.IsValid():
		return unix.AF_UNSPEC
	case a.Is4():
		return IPv4
	}
	return IPv6
}

// String returns the name that Kubernetes uses for the family.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "any family"
}

// Everywhere returns the prefix that contains all addresses of the family: the destination of a default route.
func (f Family) Everywhere() netip.Prefix {
	return netip.PrefixFrom(ByFamily(f, netip.IPv4Unspecified(), netip.IPv6Unspecified()), 0)
}

// ByFamily returns v6 for IPv6, and v4 for all other families.
func ByFamily[T any](f Family, v4, v6 T) T {
	if f == IPv6 {
		return v6
	}
	return v4
}

// FirstAddr returns the first address of a family, or the zero netip.Addr if there is none.
func FirstAddr(addrs []netip.Addr, f Family) netip.Addr {
	for _, a := range addrs {
		if FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// HostPrefix returns the prefix that contains only the address a: /32 or /128.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
