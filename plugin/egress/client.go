// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// clientWiring lists the objects of a client: the tunnel, and a table of routes through the tunnel. A packet to one of
// the egress's destinations goes to the gateway, which is the ClusterIP of the routers' Service.
//
// The table has throw routes for the prefixes that do not use the tunnel. At a throw route, the kernel continues with
// the pod's other tables. So the longest prefix decides whether a packet takes the tunnel. Each destination also has a
// route that refuses packets if there is no tunnel. So without the tunnel, connections to the destination fail, and
// never leave with the client's own address. The refusing routes are added first, and the tunnel's UDP port last.
func (p *pod) clientWiring(all []Egress) (nl.Wiring, error) {
	families := p.families(all...)
	objects := []nl.Object{p.clientTable(families, all)}
	var by []nl.Object
	for _, f := range families {
		routes, err := p.clientRoutes(f, all)
		if err != nil {
			return nil, err
		}
		objects = append(objects, routes.withoutLink...)
		objects = append(objects, p.clientRules(f)...)
		by = append(append(by, p.tunnelObjects(f, 0)...), routes.byLink...)
	}
	return nl.Steps(p.ns, slices.Concat(objects, by, p.udpPorts(families))), nil
}

// clientRules returns the client's routing rules of a family. The last rule leads to the table TableOut. In IPv6, the
// rule of skipRule comes before it.
func (p *pod) clientRules(f nl.Family) (objects []nl.Object) {
	if f == nl.IPv6 {
		objects = append(objects, p.skipRule())
	}
	return append(objects, nl.Rule{Pref: prefOut, Family: f, Not: true, Mark: mark, Mask: mark, Table: TableOut,
		Protocol: nl.RouteProtocol})
}

// clientRoutes are the routes of the table TableOut. Only the routes in byLink need the link of the tunnel.
type clientRoutes struct{ withoutLink, byLink []nl.Object }

// clientRoutes returns the routes of a family. If a prefix is a destination of one egress, and an exception (key
// "except") of another egress, the prefix is a destination.
func (p *pod) clientRoutes(f nl.Family, all []Egress) (routes clientRoutes, err error) {
	var out, spared, hops []nl.Route
	for _, e := range all {
		gw := e.gateway(f)
		if !gw.IsValid() {
			continue
		}
		no := e.sparedPrefixes(f, p.routes, allGateways(all))
		if hop := gatewayRoute(gw); f == nl.IPv6 && !slices.Contains(hops, hop) {
			no, hops = append(no, hop.Dst), append(hops, hop)
		}
		for _, dst := range no {
			spared = append(spared, nl.Route{Dst: dst, Type: "throw", Table: TableOut, Protocol: nl.RouteProtocol})
		}
		for _, dst := range prefixesOf(f, e.destinations) {
			if slices.Contains(no, dst) {
				err = errors.Join(err, fmt.Errorf("egress: destinations: %s: no packet to this destination would "+
					"take the tunnel. This destination is an address of the node, a gateway of an egress, or in "+
					"\"except\"",
					dst))
			}
			out = append(out, nl.Route{Dst: dst, Via: gw, Dev: linkName(f), OnLink: f == nl.IPv4, Src: p.addr(f),
				MTU: min(e.MTU, nl.TunnelMTU(f, p.mtu)), Table: TableOut, Protocol: nl.RouteProtocol})
		}
	}
	named := func(r nl.Route) bool {
		return slices.ContainsFunc(out, func(o nl.Route) bool { return o.Dst == r.Dst })
	}
	for i, r := range spared {
		if !named(r) && !slices.Contains(spared[:i], r) {
			routes.withoutLink = append(routes.withoutLink, r)
		}
	}
	for _, r := range out {
		routes.withoutLink = append(routes.withoutLink, refusingRoute(r.Dst))
	}
	for _, r := range slices.Concat(hops, out) {
		routes.byLink = append(routes.byLink, r)
	}
	return routes, err
}

// refusingRoute returns the route that refuses packets to a destination. Its metric is larger than that of the route
// through the tunnel. So the kernel uses the refusing route only when the route through the tunnel is gone, for example
// because the tunnel's link is gone.
func refusingRoute(dst netip.Prefix) nl.Route {
	return nl.Route{Dst: dst, Type: "unreachable", Metric: lastMetric, Table: TableOut, Protocol: nl.RouteProtocol}
}

// gatewayRoute returns a route to an IPv6 gateway through the tunnel's link. The kernel accepts a route with a next hop
// only if the same table has a route to this hop through the same link (ip6_route_check_nh). The table also has a throw
// route to the gateway, because the tunnel's own packets must not enter the tunnel. But a throw route has no link, so
// it is not enough. No packet takes the route of gatewayRoute, because the throw route has a smaller metric.
//
// The flag onlink does not help. Before Linux 7.0, the kernel refuses a route with this flag if the main table has a
// route to the gateway through another link (ip6_route_check_nh_onlink). The pod's route to the Services is such a
// route.
func gatewayRoute(gw netip.Addr) nl.Route {
	return nl.Route{Dst: nl.HostPrefix(gw), Dev: linkName(nl.IPv6), Metric: lastMetric, Table: TableOut,
		Protocol: nl.RouteProtocol}
}

// skipRule returns the rule that makes packets skip the tunnel's table if they leave through the ENI's link. If
// serviceLoop is "redirect", a BPF program sends packets out through this link, and the kernel looks up their next hop
// (bpf_redirect_neigh). In IPv6, this lookup also finds routes through other links. Without the rule, the lookup would
// find the tunnel's gateway.
func (p *pod) skipRule() nl.Rule {
	return nl.Rule{Pref: prefPast, Family: nl.IPv6, OIF: p.nic.Name, Table: nl.MainTable, Protocol: nl.RouteProtocol}
}

// lastMetric is higher than the metrics of all other routes: the kernel's default is 1024.
const lastMetric = 2048

// allGateways returns the gateways of several egresses. The tunnels' own packets go to the gateways, and must not enter
// a tunnel again.
func allGateways(all []Egress) (gws []netip.Addr) {
	for _, e := range all {
		gws = append(gws, e.gateways...)
	}
	return gws
}

// gatewayPrefixes returns the gateways of a family as prefixes, each once.
func gatewayPrefixes(f nl.Family, all []Egress) (gws []netip.Prefix) {
	for _, gw := range allGateways(all) {
		if nl.FamilyOf(gw) == f && !slices.Contains(gws, nl.HostPrefix(gw)) {
			gws = append(gws, nl.HostPrefix(gw))
		}
	}
	return gws
}

// clientTable returns the nftables table of a client. Only connections that the pod begins use the tunnel. The pod's
// answers must not use the tunnel, even if a destination of the tunnel contains the caller's address. Examples are
// answers to probes, and to callers at a NodePort or a load balancer. So answers get a mark (the constant mark), and
// packets with this mark do not use the tunnel's table. Packets that arrive through the veth pair also get the mark. If
// serviceLoop is "masquerade", the pod forwards packets from the veth pair to the ENI. Some of these packets are the
// tunnel's own packets to a router. Others go to backends of Services, and the address of a backend may be in a
// destination of the tunnel.
//
// A connection that leaves through the tunnel also gets the mark. From the tunnel, the pod accepts only answers of
// marked connections, and ICMP errors about these connections. Without this rule, any program that can send UDP to the
// pod could send packets with a forged source to the pod. For example, this program could answer like the pod's DNS
// server, or lower the path MTU of the pod's other connections.
//
// The destinations may change while the pod runs, see renew.go. A TCP connection that has begun outside of the tunnel
// stays outside, because its source address must stay the same. A TCP connection that has begun through the tunnel ends
// with a reset after a [Renewal] has removed the destination. So no packet of the reset connection leaves with the
// client's own address. Other protocols use the tunnel only for the present destinations.
func (p *pod) clientTable(families []nl.Family, all []Egress) nl.Table {
	in, out := nl.IIFName(anyLink), nl.OIFName(anyLink)
	past := []nl.NFRule{{nl.CTReply(), nl.SetMark(mark)}} // answers of containers that a program in the pod runs
	for _, pair := range p.links[1:] {
		past = append(past, nl.NFRule{nl.IIFName(pair), nl.SetMark(mark)})
	}
	leaves := []nl.NFRule{{out, nl.CTState("new", "established"), nl.SetCTMark(mark)},
		{nl.NotOIFName(anyLink), nl.L4Proto("tcp"), nl.CTOriginal(), nl.CTMark(mark), nl.Count(), nl.Reset()}}
	onlyAnswers := []nl.NFRule{{in, nl.CTMark(mark), nl.CTState("established", "related"), nl.Accept()}, refuseRule(in)}
	var of strings.Builder
	for _, e := range all {
		of.WriteString(e.sealText())
	}
	return nl.Table{Family: "inet", Name: Table, Of: of.String(), Chains: append([]nl.Chain{
		{Name: "output", Type: "route", Hook: "output", Priority: nl.PriorityMangle, Rules: append([]nl.NFRule{
			{out, nl.CTReply(), nl.SetMark(mark), nl.Accept()},
			{out, nl.L4Proto("tcp"), nl.CTState("established"), nl.CTUnmarked(mark), nl.SetMark(mark), nl.Accept()},
		}, leaves...)},
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: nl.PriorityMangle, Rules: past},
		{Name: "input", Type: "filter", Hook: "input", Rules: append(p.onlyInUDP(families, routersOf(all)),
			onlyAnswers...)},
		// for nested containers, which a program in the pod runs
		{Name: "forward", Type: "filter", Hook: "forward", Rules: slices.Concat(leaves, onlyAnswers)},
	}, p.untrackedChains(families, func(f nl.Family) nl.Term { return nl.DAddr(gatewayPrefixes(f, all)...) })...)}
}

// routersOf returns a function that returns the routerCidrs of all egresses for a family. If an egress has a gateway of
// this family, but no routerCidrs of this family, its routers may have any address. The function then returns nil.
func routersOf(all []Egress) func(nl.Family) []netip.Prefix {
	return func(f nl.Family) (routers []netip.Prefix) {
		for _, e := range all {
			if !e.gateway(f).IsValid() {
				continue
			}
			own := prefixesOf(f, e.routerCIDRs)
			if len(own) == 0 {
				return nil
			}
			routers = append(routers, own...)
		}
		return routers
	}
}

// onlyInUDP returns the rules that drop IP-in-IP packets without UDP. The tunnel's link would accept such packets. The
// tunnel's own packets still have their UDP header at these rules. If the function "sources" returns CIDRs, the rules
// also drop packets to the tunnel's UDP port whose source is in none of these CIDRs.
func (p *pod) onlyInUDP(families []nl.Family, sources func(nl.Family) []netip.Prefix) []nl.NFRule {
	rules := []nl.NFRule{refuseRule(nl.L4Proto("4")), refuseRule(nl.L4Proto("41"))}
	for _, f := range families {
		if from := sources(f); len(from) > 0 {
			rules = append(rules, refuseRule(nl.DPort("udp", p.port, p.port), nl.NotSAddr(from...)))
		}
	}
	return rules
}
