// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// A Family is an address family by the kernel's number. The zero value is any family.
type Family uint8

// The families that this package knows.
const (
	IPv4 Family = unix.AF_INET
	IPv6 Family = unix.AF_INET6
)

// Families are both families in the order in which everything is listed.
var Families = []Family{IPv4, IPv6}

// FamilyOf is the family of an address, or any family for the zero address.
func FamilyOf(a netip.Addr) Family {
	switch {
	case !a.IsValid():
		return unix.AF_UNSPEC
	case a.Is4():
		return IPv4
	}
	return IPv6
}

// String is the name that Kubernetes gives the family.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return "any family"
}

// Everywhere is the destination of the family's default route.
func (f Family) Everywhere() netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
