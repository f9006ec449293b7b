// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pod can get several NICs in two ways. First, one ADD makes several NICs, because the pod asks for them in an
// annotation. Second, Multus calls another ADD for the same pod, with another interface name: see [nl.Further]. In both
// cases, the pod's routes, its calls to Services and its packets to the node use only the first NIC. A further NIC has
// a rule and a routing table of its own. The rule selects the packets whose source is the NIC's address. For these
// packets, the kernel uses the NIC's table. This table has routes to the NIC's subnet, and routes through the gateway
// of this subnet.
//
// No other packets use a further NIC. A program that wants to call through a further NIC must bind the NIC's address. A
// server that answers datagrams must also bind this address, or set the source of each answer (IP_PKTINFO, ip(7)). If
// the server does neither, the kernel takes the first NIC's address as the source. A program that binds only the link
// (SO_BINDTODEVICE) finds no route.
//
// The node has no route to the address of a further NIC. The node calls this address through the VPC, as other hosts
// do. Calls to a NodePort also go through the VPC. A call from the node leaves through the boot ENI, and the VPC does
// not send a packet back to the ENI from which the packet came. So the node does not reach a further NIC that is on the
// boot ENI. If a program uses the address of a further NIC to call a Service, the packet goes to the VPC. The VPC does
// not know the addresses of Services, so the call fails.
//
// Packets that arrive at a further NIC pass the check of sources (rp_filter), even the strict check. The reason is that
// the kernel uses the NIC's rule when it looks for the route back to the sender. A slave in mode l2 gets all ARP
// requests of its ENI's subnet. The slave answers only the requests for its own addresses (arp_ignore). Without
// arp_ignore, the slave would also answer for the addresses of the pod's other NICs, with the wrong MAC address.

// prefFurther is the priority of the rules of further NICs. These rules come after unnumbered-ptp's rule for marked
// packets, and before the rule for the main table. No packet matches both a further NIC's rule and the rule for marked
// packets, because marked packets have the address of the first NIC.
const prefFurther = 1024

// further lists the routes and the rules of a further NIC. The link must have the NIC's addresses before these objects
// are added.
func (s slave) further() (objects []nl.Object) {
	dev, addrs := s.link.Name, prefixes(s.ips)
	add := func(r nl.Route) {
		r.Dev, r.Table, r.Protocol = dev, s.table, nl.RouteProtocol
		objects = append(objects, r)
	}
	for i, p := range addrs {
		if !hasSubnet(addrs[:i], p.Masked()) && !p.IsSingleIP() {
			add(nl.Route{Dst: p.Masked()})
		}
	}
	for _, f := range nl.Families {
		if gw := s.gateway(f); gw.IsValid() {
			add(nl.Route{Dst: f.Everywhere(), Via: gw, OnLink: isOutside(gw, addrs)})
		}
	}
	for _, p := range addrs {
		objects = append(objects, nl.Rule{Pref: prefFurther, From: nl.HostPrefix(p.Addr()), Table: s.table,
			Protocol: nl.RouteProtocol})
	}
	return objects
}

// hasSubnet reports whether subnet is exactly the subnet of one of the addresses.
func hasSubnet(addrs []netip.Prefix, subnet netip.Prefix) bool {
	for _, p := range addrs {
		if p.Masked() == subnet {
			return true
		}
	}
	return false
}

// gateway returns the first gateway of a family, or the zero address if there is none.
func (s slave) gateway(f nl.Family) netip.Addr {
	for _, c := range s.ips {
		if a, ok := plugin.Addr(c.Gateway); ok && nl.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// ownARPOnly returns the sysctl that makes a link answer only ARP requests for its own addresses.
func ownARPOnly(link string) nl.Sysctl {
	return nl.Sysctl{Key: "net/ipv4/conf/" + link + "/arp_ignore", Value: "1"}
}
