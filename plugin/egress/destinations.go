// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// privateNets are networks that are not part of the internet: networks of VPCs, nodes, Services, the metadata service,
// and multicast groups. Packets to these networks do not use the tunnel, even if a larger destination, such as
// 0.0.0.0/0, contains the networks. But if a destination is itself such a network, or a part of one, packets to this
// destination use the tunnel.
func privateNets() []netip.Prefix {
	return prefixes(
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", // RFC 1918
		"100.64.0.0/10",  // RFC 6598
		"169.254.0.0/16", // RFC 3927; the metadata service, DNS of the node
		"127.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32",
		"fc00::/7",      // RFC 4193; Services
		"fd00:ec2::/32", // the metadata service, DNS of the VPC
		"fe80::/10",     // RFC 4291
		"ff00::/8",
	)
}

// neverTunnelled are networks that must not contain a destination. Their addresses mean something else on each node and
// each ENI. Through a router, clients could call the metadata service as if they were the router. They would also
// bypass the node's proxy for the metadata service.
func neverTunnelled() []netip.Prefix {
	return prefixes("169.254.0.0/16", "127.0.0.0/8", "fd00:ec2::/32", "fe80::/10", "::1/128")
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Tunnels reports whether clients reach an address through the tunnel, and returns the destination that contains the
// address. The longest prefix that contains the address decides, as in a client's table of routes. That table also has
// throw routes for the pod's routes to the node and to the VPC: Tunnels ignores these throw routes.
func (e Egress) Tunnels(a netip.Addr) (d netip.Prefix, tunnelled bool) {
	d, found := longestMatch(e.destinations, a)
	if !found {
		return d, false
	}
	if no, is := longestMatch(privateNets(), a); is && no.Bits() > d.Bits() {
		return d, false
	}
	no, is := longestMatch(e.except, a)
	return d, !is || no.Bits() < d.Bits()
}

func longestMatch(all []netip.Prefix, a netip.Addr) (found netip.Prefix, ok bool) {
	for _, p := range all {
		if p.Contains(a) && (!ok || p.Bits() > found.Bits()) {
			found, ok = p, true
		}
	}
	return found, ok
}

// sparedPrefixes returns the prefixes of a family that do not use the tunnel although they are within a destination:
// the gateways, the exceptions of the configuration, private networks, and the networks to which the pod has its own
// routes (podRoutes). If a private network, or a network of podRoutes, is itself a destination, it is not spared. A
// single address in podRoutes is always spared.
func (e Egress) sparedPrefixes(f nl.Family, podRoutes []netip.Prefix, gateways []netip.Addr) (all []netip.Prefix) {
	add := func(p netip.Prefix) {
		within := func(d netip.Prefix) bool { return d.Bits() <= p.Bits() && d.Contains(p.Addr()) }
		if nl.FamilyOf(p.Addr()) == f && slices.ContainsFunc(e.destinations, within) && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for _, gw := range gateways {
		add(nl.HostPrefix(gw))
	}
	for _, p := range e.except {
		add(p)
	}
	for _, p := range slices.Concat(privateNets(), podRoutes) {
		if !slices.Contains(e.destinations, p) || p.IsSingleIP() {
			add(p)
		}
	}
	return all
}

// A layer is a list of prefixes. A router forwards packets to all prefixes of a layer, or to none. If a prefix contains
// a longer prefix for which the router decides differently, the longer prefix is in an earlier layer.
type layer struct {
	pass bool
	to   []netip.Prefix
}

// layers returns the layers of a family: the prefixes to which a router forwards packets, and those to which it does
// not. The first layer that contains an address decides, so the longest prefix decides, as in a client's table of
// routes. podRoutes are the networks that the router reaches through its ENI. The router drops a packet to an address
// that is in no layer.
func (e Egress) layers(f nl.Family, podRoutes []netip.Prefix) (all []layer) {
	refuse := e.sparedPrefixes(f, podRoutes, e.gateways)
	pass := slices.DeleteFunc(prefixesOf(f, e.destinations), func(d netip.Prefix) bool {
		return slices.Contains(refuse, d)
	})
	for _, p := range pass {
		all = addToLayer(all, layerIndex(p, true, pass, refuse), p)
	}
	for _, p := range refuse {
		all = addToLayer(all, layerIndex(p, false, pass, refuse), p)
	}
	return slices.DeleteFunc(all, func(l layer) bool { return len(l.to) == 0 })
}

// addToLayer adds a prefix to the layer i. Layers with an odd index pass packets, and all others refuse them.
func addToLayer(all []layer, i int, p netip.Prefix) []layer {
	for len(all) <= i {
		all = append(all, layer{pass: len(all)%2 == 1})
	}
	all[i].to = append(all[i].to, p)
	return all
}

// layerIndex returns the index of the layer of the prefix p. If the router decides differently for a longer prefix
// inside p, the layer of p comes after the layer of the longer prefix.
func layerIndex(p netip.Prefix, passes bool, pass, refuse []netip.Prefix) (d int) {
	others := pass
	if passes {
		d, others = 1, refuse
	}
	for _, o := range others {
		if p.Bits() < o.Bits() && p.Contains(o.Addr()) {
			d = max(d, 1+layerIndex(o, !passes, pass, refuse))
		}
	}
	return d
}
