// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// All routed pods of an ENI use the routes of the ENI's table. If the configuration changes, the ADD of the next pod
// changes these routes for all pods. If the configuration loses a destination, the table keeps a route to this
// destination. This route gets the next hop that packets would have without the route, see [fallbackRoutes]. So no ADD
// removes a route. If a route is missing, another program has removed it: CHECK reports it, and repair puts it back.
//
// These routes must fit the network's nftables table, which serves the pods of all ENIs. The nftables table makes the
// node's address the source of packets that leave through the boot ENI. It does not do this for packets to a
// destination for which eniRoutes has a route through the gateway. If an ENI's routing table lacked this route, these
// packets would leave through the boot ENI with the pod's address, and EC2 would drop them. So an ADD changes the
// routes of all ENIs before it changes the nftables table.

// eniRoutes returns the routes of an ENI's table in one family. For each destination that the ENI's pods reach through
// the ENI, there is a route through the gateway. For each prefix of hostCidrs, there is a throw route. The kernel then
// continues with the main table, even if the prefix is also the CIDR of a peered VPC. Add replaces a route to the same
// destination, because that route may be from another configuration.
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

// installENIWiring installs the objects of eniWiring. The network's nftables table comes last. So if this table fits
// the present configuration, the routes of all ENIs fit, too.
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

// installENIRoutes installs the routes of eniRoutes in one family for an ENI. The request's pod needs these routes only
// if the ENI is the pod's own.
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

// replaceRoutes adds or replaces routes that the pod itself does not need. The argument "present" has the routes that
// the ENI's table has now. replaceRoutes changes nothing if the ENI has a routed pod of another network, because that
// network may have other destinations.
func (s *scene) replaceRoutes(eni nl.Link, present, routes []nl.Route) error {
	if len(routes) == 0 || !s.servesOnlyNetwork(eni) {
		return nil
	}
	if err := install(nl.Steps(s.nodeNS, routes)); err != nil || s.servesOnlyNetwork(eni) {
		return err
	}
	// An ADD of another network has begun, and may rely on a route that was replaced.
	var back []nl.Route
	for _, r := range present {
		if slices.ContainsFunc(routes, func(o nl.Route) bool { return o.Dst == r.Dst && o.Check(s.nodeNS) == nil }) {
			r.Replace = true
			back = append(back, r)
		}
	}
	return install(nl.Steps(s.nodeNS, back))
}

// servesOnlyNetwork reports whether all routed pods of an ENI certainly belong to the request's network. A pair whose
// ADD has just begun has no alias, and may belong to any network.
func (s *scene) servesOnlyNetwork(eni nl.Link) bool {
	pairs, err := s.nodeNS.RoutedPairs(eni.Index)
	otherNetwork := func(l nl.Link) bool { return networkInAlias(l.Alias) != s.Network }
	return err == nil && !slices.ContainsFunc(pairs, otherNetwork)
}

// fallbackRoutes returns a route for each destination that is in the list "present", but not in the list "wanted". The
// returned route has the next hop of the wanted route with the longest prefix that contains the destination. If no
// wanted route contains the destination, the returned route is a throw route: the kernel continues with the main table.
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

// missingRoutes returns the routes that are in the list "wanted", but not in the list "present". It ignores source, MTU
// and metric.
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
