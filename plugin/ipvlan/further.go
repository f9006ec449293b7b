// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pod can get several NICs in two ways. One ADD makes several NICs, for which the pod asks in an annotation. Or
// Multus calls another ADD for the pod, with another interface name (see [nl.Further]). In both cases, the pod's
// routes, its calls to Services and its packets to the node use only the first NIC. A further NIC has a rule and a
// routing table of its own, for packets from the NIC's address. The table has routes to the NIC's subnet, and through
// the gateway of this subnet.
//
// So a program that calls through a further NIC must bind the NIC's address. A server that answers datagrams must bind
// this address, too, or set the source of each answer (IP_PKTINFO, ip(7)). By default, the kernel takes the first NIC's
// address. A program that binds only the link (SO_BINDTODEVICE) finds no route.
//
// The node has no route to a further NIC. It calls the NIC through the VPC, as other hosts do, even for a NodePort.
// Such a call leaves through the boot ENI, and the VPC does not send a packet back to the ENI from which it came. So
// the node does not reach a further NIC on the boot ENI. A call to a Service from the address of a further NIC fails.
// The call goes to the VPC, which does not know the addresses of Services.
//
// Packets to a further NIC pass even the strict check of sources (rp_filter), because the route back to the sender uses
// the NIC's rule. A slave in mode l2 gets all ARP requests of its ENI's subnet, and answers only for its own addresses
// (arp_ignore). Without arp_ignore, the slave would also answer for the pod's other NICs, with the wrong MAC address.

// prefFurther is the priority of the rules of further NICs. These rules come after unnumbered-ptp's rule for marked
// packets, and before the rule for the main table. Marked packets have the address of the first NIC.
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

func hasSubnet(addrs []netip.Prefix, subnet netip.Prefix) bool {
	for _, p := range addrs {
		if p.Masked() == subnet {
			return true
		}
	}
	return false
}

func (s slave) gateway(f nl.Family) netip.Addr {
	for _, c := range s.ips {
		if a, ok := plugin.Addr(c.Gateway); ok && nl.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// ownARPOnly returns the sysctl with which a link answers only ARP requests for its own addresses.
func ownARPOnly(link string) nl.Sysctl {
	return nl.Sysctl{Key: "net/ipv4/conf/" + link + "/arp_ignore", Value: "1"}
}
