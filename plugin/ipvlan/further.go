// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pod has several NICs in two ways. One ADD makes several, because the pod asks for them by an annotation. Or
// another ADD with another interface name is for the same pod, as Multus does: see [nl.Further]. Either way, the
// first NIC has the pod's routes, its Services and its way to the node. A further NIC answers by itself. A rule sends
// what has its address as the source to a table with the NIC's subnet and its gateway.
//
// Nothing else uses a further NIC. A program that wants to call by it binds its address. A server that answers
// datagrams does so, too, or names the source of each answer (IP_PKTINFO, ip(7)). Otherwise the kernel takes the
// first NIC's address. A program that is bound to the link alone (SO_BINDTODEVICE) finds no route there.
//
// The node has no route to the address of a further NIC. It calls that address by the VPC, as other hosts do. The
// same holds for callers of a NodePort. The VPC does not send a packet back to the ENI it came from. So the node does
// not reach a further NIC on its boot ENI. No program reaches Services from the address of a further NIC.
//
// What arrives passes a check of sources (rp_filter), also the strict one: the kernel looks for the way back by the
// same rule. A slave of mode l2 gets all ARP questions of its ENI's network. It answers those for its own addresses
// alone (arp_ignore), because its MAC address would be wrong for the others.

// prefFurther is the priority of the rules of further NICs: after the rule for marked packets of
// unnumbered-ptp, and before the main table. The two do not meet, because marked packets have
// the address of the first NIC.
const prefFurther = 1024

// further are the routes and the rules of a further NIC, whose link has its addresses.
func (s slave) further() (objects []nl.Object) {
	dev, addrs := s.link.Name, prefixes(s.ips)
	add := func(r nl.Route) {
		r.Dev, r.Table, r.Protocol = dev, s.table, nl.RouteProtocol
		objects = append(objects, r)
	}
	for i, p := range addrs {
		if !contains(addrs[:i], p.Masked()) && !p.IsSingleIP() {
			add(nl.Route{Dst: p.Masked()})
		}
	}
	for _, f := range nl.Families {
		if gw := s.gateway(f); gw.IsValid() {
			add(nl.Route{Dst: f.Everywhere(), Via: gw, OnLink: beyond(gw, addrs)})
		}
	}
	for _, p := range addrs {
		from := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		objects = append(objects, nl.Rule{Pref: prefFurther, From: from, Table: s.table, Protocol: nl.RouteProtocol})
	}
	return objects
}

// contains reports whether one of the addresses is in such a subnet.
func contains(addrs []netip.Prefix, subnet netip.Prefix) bool {
	for _, p := range addrs {
		if p.Masked() == subnet {
			return true
		}
	}
	return false
}

// gateway is the first one of a family; the zero address if there is none.
func (s slave) gateway(f nl.Family) netip.Addr {
	for _, c := range s.ips {
		if a, ok := plugin.Addr(c.Gateway); ok && nl.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// answersAlone makes a link answer ARP questions for its own addresses alone.
func answersAlone(link string) nl.Sysctl {
	return nl.Sysctl{Key: "net/ipv4/conf/" + link + "/arp_ignore", Value: "1"}
}
