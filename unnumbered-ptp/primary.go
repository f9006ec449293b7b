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

// compare sorts what is more likely the instance's own address first. A deprecated one is
// better than none: keepalived adds such addresses of IPv6, and one of DHCP becomes so as its
// lease runs out. Then counts what the default route says, if anything. And then the looks:
// the instance's own has the prefix of its subnet, or is a /128 from DHCPv6, with a lifetime;
// those that others add are /32, /128, or secondary, and have none.
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

// knownBy is the node as those know it who go by these of its addresses: of each family the
// first of them is the primary one. One that the node has not any more changes nothing.
func (n node) knownBy(addrs []netip.Addr) node {
	n.addrs = slices.Clone(n.addrs)
	slices.SortStableFunc(n.addrs, func(a, b netip.Addr) int {
		return last(!slices.Contains(addrs, a), !slices.Contains(addrs, b))
	})
	return n
}

// changes says whether the node may have had another primary address.
func (n node) changes() bool { return len(n.addrs) > len(n.primaries().addrs) }

// whenMade is the node as it was when the pod was made, whose routes have its primary
// addresses for their sources.
func (s *scene) whenMade(p pair) (node, error) {
	if !s.node.changes() {
		return s.node, nil
	}
	routes, err := s.host.Routes(nl.RouteFilter{Table: nl.MainTable, Dev: p.veth.Name})
	var sources []netip.Addr
	for _, r := range routes {
		if slices.Contains(p.addrs, r.Dst.Addr()) {
			sources = append(sources, r.Src)
		}
	}
	return s.node.knownBy(sources), err
}

// inTable is the node as it was when the last pod was made, with whom came the table for all.
func (n node) inTable(r *plugin.Request[Config], host *nl.NS) (node, error) {
	if !n.changes() {
		return n, nil
	}
	has, err := nodeTable(r, n).Has(host)
	if err != nil {
		return n, err
	}
	return n.knownBy(slices.DeleteFunc(slices.Clone(n.addrs), func(a netip.Addr) bool { return !has(postrouting(r.Config, a)) })), nil
}
