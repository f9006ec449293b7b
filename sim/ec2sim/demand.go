// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"net/netip"
	"slices"
)

// A demand says which addresses or prefixes a request wants in one family. The request either lists them or gives their
// number.
type demand struct {
	addrs       []netip.Addr
	count       *int
	prefixes    []netip.Prefix
	prefixCount *int
}

// fieldsSet reports, for each field of the demand, whether the request has set the field.
func (d demand) fieldsSet() []bool {
	return []bool{len(d.addrs) > 0, d.count != nil, len(d.prefixes) > 0, d.prefixCount != nil}
}

// isEmpty reports whether no field is set. A pointer to 0 also counts as set.
func (d demand) isEmpty() bool { return !slices.Contains(d.fieldsSet(), true) }

// wantsPrefixes reports whether the request asks for prefixes.
func (d demand) wantsPrefixes() bool { return len(d.prefixes) > 0 || d.prefixCount != nil }

// slots returns how many addresses and prefixes the demand asks for. EC2 limits this sum for an ENI: a prefix counts as
// one address (Guide: "Prefix delegation for Amazon EC2 network interfaces").
func (d demand) slots() int {
	return len(d.addrs) + intValue(d.count) + len(d.prefixes) + intValue(d.prefixCount)
}

// withoutHeld returns the demand without the addresses that are already in the holding.
func (d demand) withoutHeld(h holding) demand {
	d.addrs = slices.DeleteFunc(slices.Clone(d.addrs), func(a netip.Addr) bool { return slices.Contains(h.addrs, a) })
	return d
}

// check refuses a demand if more than one field is set, or if a number is below the minimum (API:
// CreateNetworkInterface, AssignPrivateIpAddresses, AssignIpv6Addresses, the parameters).
func (d demand) check(family string, minimum int) error {
	atLeast := fmt.Sprintf("It must be at least %d.", minimum)
	switch {
	case moreThanOne(d.fieldsSet()...):
		return refuse("InvalidParameterCombination",
			"Only one of %[1]s addresses, their count, %[1]s prefixes and their count can be specified.", family)
	case d.count != nil && *d.count < minimum:
		return invalidValue(*d.count, "addressCount", atLeast)
	case d.prefixCount != nil && *d.prefixCount < minimum:
		return invalidValue(*d.prefixCount, "prefixCount", atLeast)
	}
	return nil
}

// checkAssign does what check does, and also refuses a demand in which no field is set (API: AssignPrivateIpAddresses,
// AssignIpv6Addresses: "You must specify either the IP addresses or the IP address count in the request").
func (d demand) checkAssign(family string) error {
	if d.isEmpty() {
		return refuse("MissingParameter", "Either the %s addresses or the address count should be provided.", family)
	}
	return d.check(family, 1)
}

// A holding has the addresses and the prefixes of an ENI in one family.
type holding struct {
	addrs    []netip.Addr
	prefixes []netip.Prefix
}

// contains reports whether the address is in the holding, as a single address or in a prefix.
func (h holding) contains(a netip.Addr) bool {
	return slices.Contains(h.addrs, a) || slices.ContainsFunc(h.prefixes,
		func(p netip.Prefix) bool { return p.Contains(a) })
}

// slots returns the number of addresses and prefixes: see [demand.slots].
func (h holding) slots() int { return len(h.addrs) + len(h.prefixes) }

// blocks returns all addresses and prefixes as blocks. An address becomes a block of one address (see pool).
func (h holding) blocks() []netip.Prefix { return append(singleBlocks(h.addrs), h.prefixes...) }

// checkHold refuses a demand that exceeds the ENI's limit. The argument "slots" is the number of addresses and prefixes
// that the ENI would have with the demand. The argument "most" is the limit. checkHold also refuses prefixes on a type
// without prefixes, and every demand for an EFA-only ENI.
func (e *eni) checkHold(slots, most int, d demand) error {
	switch {
	case e.efaOnly: // the error code is a guess
		return refuse("UnsupportedOperation", "The network interface '%s' is of a type that has no addresses.", e.id)
	case slots > most:
		return tooManyAddresses()
	case d.wantsPrefixes() && e.attachment != nil && e.attachment.instance.limits.Xen:
		return noPrefixes(e.attachment.instance.Type)
	}
	return nil
}

// tooManyAddresses returns the error for too many addresses and prefixes of one family (Guide: "Maximum IP addresses
// per network interface"). For IPv6, the error code is a guess.
func tooManyAddresses() error {
	return refuse("PrivateIpAddressLimitExceeded", "Number of private addresses will exceed limit.")
}

// noPrefixes returns the error for prefixes on a type that is not built on Nitro. The error code is a guess.
func noPrefixes(instanceType string) error {
	return refuse("UnsupportedOperation", "Prefixes are not supported on %s.", instanceType)
}

// noIPv6 returns the error for IPv6 on an instance type without IPv6. In practice, EC2 refuses IPv6 at the launch of
// such an instance. The error code is a guess.
func noIPv6(instanceType string) error {
	return refuse("UnsupportedOperation", "IPv6 addresses are not supported on %s", instanceType)
}

func moreThanOne(given ...bool) bool {
	n := 0
	for _, g := range given {
		if g {
			n++
		}
	}
	return n > 1
}

func intValue(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}

// nilIfZero returns nil for 0, because a demand counts a pointer to 0 as a set field.
func nilIfZero(n *int) *int {
	if intValue(n) == 0 {
		return nil
	}
	return n
}
