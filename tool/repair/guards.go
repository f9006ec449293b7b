// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"errors"
	"log/slog"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// Unguarded lists the lost guards of links that have slaves in pods (see [nl.Guard]). Without a guard, the link accepts
// frames from these pods to the node. Pods with a whole ENI, and routed pods, have no slave.
func Unguarded(host *nl.NS, s *registry.State) (lost []nl.Guard, err error) {
	links, err1 := host.Links()
	routes, err2 := host.Routes(nl.RouteFilter{Table: nl.MainTable, Protocol: nl.RouteProtocol})
	pairs, routed := routedPairs(links), routedAddrs(links, routes)
	used := map[string]bool{}
	for a, l := range s.Leases.All() {
		if e, known := s.ENIs[l.ENI]; known && !routed[a] && !pairs[ptp.VethName(l.Network, l.Attachment)] {
			used[e.MAC] = true
		}
	}
	for _, l := range links {
		g := nl.Guard{Link: l.Name}
		if used[l.MAC] && l.MayBeCard() && g.Check(host) != nil {
			lost = append(lost, g)
		}
	}
	return lost, errors.Join(err1, err2)
}

// routedPairs returns the names and alternative names of the node's ends of routed pods' pairs. The name of a pair
// follows from the attachment of a lease. So these names show a routed pod even if the node has lost its routes.
func routedPairs(links []nl.Link) map[string]bool {
	pairs := map[string]bool{}
	for _, l := range links {
		for _, name := range l.Names() {
			pairs[name] = nl.IsRouted(l.Group)
		}
	}
	return pairs
}

// routedAddrs returns the addresses to which the node has a route. The value of an address is true if a route to it
// goes through the pair of a routed pod.
func routedAddrs(links []nl.Link, routes []nl.Route) map[netip.Addr]bool {
	pairs, addrs := routedPairs(links), map[netip.Addr]bool{}
	for _, r := range routes {
		addrs[r.Dst.Addr()] = addrs[r.Dst.Addr()] || pairs[r.Dev]
	}
	return addrs
}

// Guards puts back the guards that [Unguarded] lists, and returns the guards that it has put back.
func Guards(host *nl.NS) (did []string, failed error) {
	s, err := readRegistry()
	if err != nil {
		return nil, nil // without a registry, repair does not know the ENIs; the next ADD puts the guard back
	}
	lost, failed := Unguarded(host, s)
	for _, g := range lost {
		if err := g.Restore(host); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		did = append(did, g.String())
		slog.Info("restored the guard of a link: without the guard, pods can bypass security groups on the way to "+
			"their node", "link", g.Link)
	}
	return did, failed
}
