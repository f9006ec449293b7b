// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// private are networks that "the whole internet" does not mean: those of VPCs, nodes, Services,
// the metadata service, and groups. An egress has them as destinations only if it names them, or
// something in them.
func private() []netip.Prefix {
	return prefixes(
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1918
		"100.64.0.0/10",  // RFC 6598
		"169.254.0.0/16", // RFC 3927; the metadata service, DNS of the node
		"127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32",
		"fc00::/7",  // RFC 4193; Services, the metadata service
		"fe80::/10", // RFC 4291
		"ff00::/8",
	)
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// tunnels reports whether clients reach an address by the tunnel, and returns the destination that
// it is in. The longest prefix decides, as in the table of routes that a client gets. The node's
// and the VPC's own addresses are not known here.
func (e Egress) tunnels(a netip.Addr) (d netip.Prefix, tunnelled bool) {
	d, found := longest(e.destinations, a)
	if !found {
		return d, false
	}
	if no, is := longest(private(), a); is && no.Bits() > d.Bits() {
		return d, false
	}
	no, is := longest(e.except, a)
	return d, !is || no.Bits() < d.Bits()
}

// longest is the longest prefix that has an address.
func longest(all []netip.Prefix, a netip.Addr) (found netip.Prefix, ok bool) {
	for _, p := range all {
		if p.Contains(a) && (!ok || p.Bits() > found.Bits()) {
			found, ok = p, true
		}
	}
	return found, ok
}

// spared are the prefixes within the destinations of a family that a client does not reach by the
// tunnel: gateways, what the configuration excepts, and, unless it names them, private
// networks and those of the pod's other routes.
func (e Egress) spared(f nl.Family, own []netip.Prefix, gateways []netip.Addr) (all []netip.Prefix) {
	add := func(p netip.Prefix) {
		within := func(d netip.Prefix) bool { return d.Bits() <= p.Bits() && d.Contains(p.Addr()) }
		if nl.FamilyOf(p.Addr()) == f && slices.ContainsFunc(e.destinations, within) && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, gw := range gateways {
		add(single(gw))
	}
	for _, p := range e.except {
		add(p)
	}
	for _, p := range slices.Concat(private(), own) {
		if !slices.Contains(e.destinations, p) || p.IsSingleIP() {
			add(p)
		}
	}
	return all
}

// single is the prefix of one address.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
