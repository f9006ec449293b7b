// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// A network is a VPC in the fabric: its routing tables and CIDRs.
type network struct {
	table     uint32         // the table with the routes to the VPC, its peers, the drains and the IPv6 internet
	internet  uint32         // the table with the route to the IPv4 internet, for sources that may reach the internet
	reachable []netip.Prefix // the CIDRs of the VPC and of its peers
	public    []netip.Prefix // the IPv6 CIDRs of the VPC, which the internet can reach
	peers     []*network     // the peers that are in the fabric
}

const (
	tableVPC      = 1000 // and up
	tableInternet = 2000 // and up
	tableSpoofed  = 3000
)

// newNetworks returns a network for each VPC. The keys are the IDs of the VPCs. Two networks are peers if there is an
// active peering between their VPCs. If two VPCs overlap, newNetworks returns an error.
func newNetworks(c ec2sim.Config) (map[string]*network, error) {
	networks := map[string]*network{}
	for i, v := range c.VPCs {
		for _, other := range c.VPCs[:i] {
			if anyOverlap(vpcCIDRs(v), vpcCIDRs(other)) {
				return nil, fmt.Errorf("%s and %s overlap: one fabric cannot tell them apart", other.ID, v.ID)
			}
		}
		n := uint32(i)
		networks[v.ID] = &network{table: tableVPC + n, internet: tableInternet + n, reachable: vpcCIDRs(v),
			public: v.IPv6CIDRs}
	}
	cidrs := func(p ec2sim.PeerVPC) []netip.Prefix {
		i := slices.IndexFunc(c.VPCs, func(v ec2sim.VPC) bool { return v.ID == p.ID })
		if i >= 0 {
			return vpcCIDRs(c.VPCs[i])
		}
		return slices.Concat(p.CIDRs, p.IPv6CIDRs)
	}
	for _, p := range c.Peerings {
		if cmp.Or(p.Status, "active") != "active" {
			continue
		}
		networks[p.Requester.ID].addPeer(networks[p.Accepter.ID], cidrs(p.Accepter))
		networks[p.Accepter.ID].addPeer(networks[p.Requester.ID], cidrs(p.Requester))
	}
	return networks, nil
}

// vpcCIDRs returns the CIDRs of a VPC, of both families.
func vpcCIDRs(v ec2sim.VPC) []netip.Prefix { return slices.Concat(v.CIDRs, v.IPv6CIDRs) }

func anyOverlap(as, bs []netip.Prefix) bool {
	return slices.ContainsFunc(as, func(a netip.Prefix) bool { return slices.ContainsFunc(bs, a.Overlaps) })
}

// addPeer adds a peer with these CIDRs to the network n. If one of the two VPCs is outside the fabric, its *network is
// nil.
func (n *network) addPeer(peer *network, cidrs []netip.Prefix) {
	if n == nil {
		return
	}
	n.reachable = append(n.reachable, cidrs...)
	if peer != nil {
		n.peers = append(n.peers, peer)
	}
}

// tables returns the routing tables that need a route to each address of the network: its own table, those of its
// peers, and the main table. The main table routes packets from the internet, and the fabric's own "packet too big"
// messages.
func (n *network) tables() []uint32 {
	tables := []uint32{0, n.table}
	for _, p := range n.peers {
		tables = append(tables, p.table)
	}
	return tables
}

// wiring returns the routes of the network that do not depend on ENIs.
func (n *network) wiring(vpc, igw *nl.NS) nl.Wiring {
	var w nl.Wiring
	add := func(r nl.Route) { w = append(w, nl.Step{NS: vpc, Object: r}) }
	for _, cidr := range n.reachable {
		add(drainRoute(drainNoHost, cidr, n.table))
		// A packet within the VPC must not go to the internet. After a throw route, the kernel continues with the next
		// rule.
		add(nl.Route{Dst: cidr, Type: "throw", Table: n.internet})
	}
	add(drainRoute(drainNoRoute, allIPv4, n.table))
	add(nl.Route{Dst: allIPv4, Via: gatewayAddr.Addr(), Dev: "igw", Table: n.internet})
	add(nl.Route{Dst: allIPv6, Via: gatewayAddr6.Addr(), Dev: "igw", Table: n.table})
	for _, cidr := range n.public {
		add(drainRoute(drainNoHost, cidr, nl.MainTable))
		w = append(w, nl.Step{NS: igw, Object: nl.Route{Dst: cidr, Via: routerAddr6.Addr(), Dev: "vpc"}})
	}
	return w
}
