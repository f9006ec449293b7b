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

// FamilyOf returns the family of an address. For the zero netip.Addr, FamilyOf returns 0.
func FamilyOf(a netip.Addr) Family {
	switch {
	case !a.IsValid():
		return unix.AF_UNSPEC
	case a.Is4():
		return IPv4
	}
	return IPv6
}

// String returns the name of the family in Kubernetes.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "any family"
}

// Everywhere returns the prefix with all addresses of the family, which is the destination of a default route.
func (f Family) Everywhere() netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
