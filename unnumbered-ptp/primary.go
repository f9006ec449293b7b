// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// hostAddrs are the addresses of hostInterface, without link-local ones and duplicates: of
// IPv4 and then of IPv6, and of each family the primary one first.
//
// Pods know the node by its primary address, which is that of the instance, and not one that
// keepalived and others have added, and take to another node. Which it is their order does not
// tell: it is that of their coming, and one that is removed and added again comes last.
func hostAddrs(host *nl.NS, link string) ([]netip.Addr, error) {
	found, err := host.Addrs(link)
	if err != nil {
		return nil, fmt.Errorf("hostInterface: %w", err)
	}
	var all []netip.Addr
	for _, v6 := range []bool{false, true} {
		of := slices.DeleteFunc(slices.Clone(found), func(a nl.Addr) bool {
			return a.Prefix.Addr().Is6() != v6 || a.Prefix.Addr().IsLinkLocalUnicast() || a.Duplicate
		})
		if v6 {
			slices.Reverse(of) // the oldest first, as of IPv4
		}
		if len(of) > 1 {
			src, err := host.DefaultSource(link, v6)
			if err != nil {
				return nil, fmt.Errorf("hostInterface: %w", err)
			}
			slices.SortStableFunc(of, func(a, b nl.Addr) int { return compare(a, b, src) })
		}
		for _, a := range of {
			all = append(all, a.Prefix.Addr())
		}
	}
	return all, nil
}

// compare sorts what is more likely the instance's own address first. One that is not for
// what begins now, because its lifetime is over, keepalived has made of IPv6, or DHCP has let
// run out: it is better than none. Then comes what the default route says, if anything. The
// instance's address has the prefix of its subnet, but that of IPv6 from DHCP, /128; others'
// are /32, /128, or secondary, and have no lifetime.
func compare(a, b nl.Addr, src netip.Addr) int {
	return cmp.Or(
		last(a.Deprecated, b.Deprecated),
		last(a.Tentative, b.Tentative),
		last(a.Prefix.Addr() != src, b.Prefix.Addr() != src),
		cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()),
		last(a.Secondary, b.Secondary),
		last(!a.Dynamic, !b.Dynamic),
	)
}

// last sorts what is so behind what is not.
func last(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// primaries is the node without what others may add to hostInterface, and take away.
func (n node) primaries() node {
	var addrs []netip.Addr
	for _, v6 := range []bool{false, true} {
		if a, ok := n.primary(v6); ok {
			addrs = append(addrs, a)
		}
	}
	n.addrs = addrs
	return n
}

// primary is the first address of a family.
func (n node) primary(v6 bool) (netip.Addr, bool) {
	for _, a := range n.addrs {
		if a.Is6() == v6 {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// meets refuses a pod that has addresses of a family of which the node has none: neither would
// reach the other. The node's may be about to come, as that of DHCPv6 does after that of DHCP.
func (n node) meets(r *plugin.Request[Config]) error {
	for _, a := range addrsOf(r.Prev) {
		family, enable := "IPv4", ""
		if a.Is6() {
			family, enable = "IPv6", ", and see that net.ipv6.conf.all.disable_ipv6 is 0"
		}
		if _, ok := n.primary(a.Is6()); !ok {
			return plugin.Errorf(plugin.CodeTryAgain, "give the boot ENI an "+family+" address"+enable+"; or leave "+family+" out of ipFamilies",
				"hostInterface: %s has no %s address, and the pod has %s", r.Config.HostInterface, family, a)
		}
	}
	return nil
}

// anyNode are the node as it is, and as it may have been when a pod was made, or the last
// one: with another of the addresses that it has for its primary one.
func (n node) anyNode() []node {
	all := []node{n}
	for _, v6 := range []bool{false, true} {
		for _, m := range slices.Clone(all) {
			for _, a := range m.addrs {
				if p, _ := m.primary(v6); a.Is6() == v6 && a != p {
					other := m
					other.addrs = append([]netip.Addr{a}, slices.DeleteFunc(slices.Clone(m.addrs), func(b netip.Addr) bool { return b == a })...)
					all = append(all, other)
				}
			}
		}
	}
	return all
}
