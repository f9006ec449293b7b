// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// All routed pods of an ENI use the routes of the ENI's table. If the configuration changes, the ADD of the next pod
// changes these routes for all pods. When a destination is removed from the configuration, the table keeps a route to
// this destination. The kept route gets the next hop that packets to this destination would use without the kept route,
// see [fallbackRoutes]. So no ADD ever removes a route from the table. If a route is missing, another program has
// removed it: CHECK reports the missing route, and repair puts it back.
//
// These routes and the network's nftables table must fit the same configuration. The nftables table serves the pods of
// all ENIs. If a packet leaves through the boot ENI, the nftables table replaces the packet's source by the node's
// address. But it does not replace the source if eniRoutes has a route through the gateway to the packet's destination.
// The ENI's table must have this route, too. Without the route, the packet would leave through the boot ENI with the
// pod's address, and EC2 would drop it. So an ADD changes the routes of all ENIs before it changes the nftables table.

// eniRoutes returns the routes of an ENI's table in one family. Each destination that the ENI's pods reach through the
// ENI has a route through the gateway. For each prefix of hostCidrs, eniRoutes also returns a throw route. This route
// makes the kernel continue with the main table, even if the prefix is also the CIDR of a peered VPC. Each route
// replaces an existing route to the same destination, because the configuration may have changed since the last ADD.
func (s *scene) eniRoutes(p pair, eni nl.Link, gateway netip.Addr, f nl.Family) (routes []nl.Route) {
	route := nl.Route{Table: nl.RoutedTable(eni.Index), Protocol: nl.RouteProtocol, Replace: true}
	for _, dst := range sortedPrefixes(f, dstsByENI(s.request, p)) {
		if gateway.IsValid() && !slices.Contains(s.Config.hostCIDRs, dst) {
			by := route
			by.Dst, by.Via, by.Dev, by.OnLink = dst, gateway, eni.Name, f == nl.IPv4
			routes = append(routes, by)
		}
	}
	for _, dst := range sortedPrefixes(f, s.Config.hostCIDRs) {
		throw := route
		throw.Dst, throw.Type = dst, "throw"
		routes = append(routes, throw)
	}
	return routes
}

// installENIWiring installs the objects of eniWiring. The network's nftables table is the last object. So if this table
// fits the present configuration, the routes of all ENIs fit, too.
func (s *scene) installENIWiring(p pair) error {
	if err := install(nl.Steps(s.nodeNS, s.eniObjects(p))); err != nil {
		return err
	}
	for _, f := range p.families() {
		if err := s.installENIRoutes(p, s.eni, f); err != nil {
			return err
		}
	}
	table := routedTable(s.request)
	return install(nl.Steps(s.nodeNS, []nl.Object{s.eniMark(p), preparedTable{table,
		func() (nl.Table, error) { return table, s.installOtherENIRoutes(p) }}}))
}

// installOtherENIRoutes makes the routes of the node's other ENIs follow the configuration.
func (s *scene) installOtherENIRoutes(p pair) error {
	rules, err := s.nodeNS.Rules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		index, is := eniOfRule(r)
		if !is || index == s.eni.Index || !p.hasFamily(r.Family) {
			continue
		}
		eni, err := s.nodeNS.LinkByIndex(index)
		if err == nil {
			err = s.installENIRoutes(p, eni, r.Family)
		}
		if err != nil && s.nodeNS.HasLink(index) {
			return err
		}
	}
	return nil
}

// installENIRoutes installs the routes of eniRoutes in one family, in the table of an ENI. The request's pod needs
// these routes only if the ENI is the pod's own ENI.
func (s *scene) installENIRoutes(p pair, eni nl.Link, f nl.Family) error {
	present, err := s.nodeNS.RoutesIn(nl.RoutedTable(eni.Index), f, eni.Name)
	if err != nil {
		return err
	}
	present = slices.DeleteFunc(present, func(r nl.Route) bool { return r.Protocol != nl.RouteProtocol })
	gateway, own := s.gateway(f), eni.Index == s.eni.Index
	if !own {
		i := slices.IndexFunc(present, func(r nl.Route) bool { return r.Via.IsValid() })
		if i < 0 {
			return nil // the routes are lost; only an ADD or a repair for a pod of this ENI knows the gateway
		}
		gateway = present[i].Via
	}
	want := s.eniRoutes(p, eni, gateway, f)
	needed, others := missingRoutes(present, want), missingRoutes(present, fallbackRoutes(present, want))
	if !own {
		needed, others = nil, append(needed, others...)
	}
	if err := install(nl.Steps(s.nodeNS, needed)); err != nil {
		return err
	}
	return s.replaceRoutes(eni, present, others)
}

// replaceRoutes adds or replaces routes that the pod itself does not need. present are the routes that the ENI's table
// has now. Two networks may share an ENI, and have different destinations. So replaceRoutes changes nothing if the ENI
// has a routed pod of another network.
func (s *scene) replaceRoutes(eni nl.Link, present, routes []nl.Route) error {
	if len(routes) == 0 || !s.servesOnlyNetwork(eni) {
		return nil
	}
	if err := install(nl.Steps(s.nodeNS, routes)); err != nil || s.servesOnlyNetwork(eni) {
		return err
	}
	// An ADD of another network has begun meanwhile. It may rely on a route that replaceRoutes has replaced.
	var back []nl.Route
	for _, r := range present {
		if slices.ContainsFunc(routes, func(o nl.Route) bool { return o.Dst == r.Dst && o.Check(s.nodeNS) == nil }) {
			r.Replace = true
			back = append(back, r)
		}
	}
	return install(nl.Steps(s.nodeNS, back))
}

// servesOnlyNetwork reports whether the kernel shows that all routed pods of an ENI belong to the request's network. A
// pair whose ADD has just begun has no alias yet, and may belong to any network.
func (s *scene) servesOnlyNetwork(eni nl.Link) bool {
	pairs, err := s.nodeNS.RoutedPairs(eni.Index)
	otherNetwork := func(l nl.Link) bool { return networkInAlias(l.Alias) != s.Network }
	return err == nil && !slices.ContainsFunc(pairs, otherNetwork)
}

// fallbackRoutes returns a new route for each destination that is in the list present, but not in the list wanted. The
// new route gets the next hop of a wanted route that contains the destination: the wanted route with the longest
// prefix. If no wanted route contains the destination, the new route makes the kernel continue with the main table.
func fallbackRoutes(present, wanted []nl.Route) (all []nl.Route) {
	for _, r := range present {
		if !slices.ContainsFunc(wanted, func(w nl.Route) bool { return w.Dst == r.Dst }) {
			all = append(all, fallbackRoute(r, wanted))
		}
	}
	return all
}

func fallbackRoute(r nl.Route, want []nl.Route) nl.Route {
	h := nl.Route{Type: "throw", Table: r.Table, Protocol: r.Protocol, Replace: true}
	for _, w := range want {
		if w.Dst.Bits() > h.Dst.Bits() && w.Dst.Overlaps(r.Dst) && w.Dst.Bits() < r.Dst.Bits() {
			h = w
		}
	}
	h.Dst = r.Dst
	return h
}

// missingRoutes returns the routes that are in the list wanted, but not in the list present. It ignores the source, the
// MTU and the metric of a route.
func missingRoutes(present, wanted []nl.Route) (absent []nl.Route) {
	for _, r := range wanted {
		if !slices.ContainsFunc(present, func(t nl.Route) bool {
			return t.Dst == r.Dst && t.Via == r.Via && t.Dev == r.Dev && t.Type == r.Type
		}) {
			absent = append(absent, r)
		}
	}
	return absent
}
