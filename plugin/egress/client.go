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

// mangle is the priority of chains that set marks: before addresses are translated.
const mangle = -150

// client is what a client gets: the tunnel, and a table of routes by it. A packet to a
// destination goes to the gateway, that is to the Service of the routers.
//
// A route of the type throw sends a packet on to the pod's other routes. So the longest prefix decides whether a packet
// takes the tunnel. Each destination has a further route, which refuses: without the tunnel, nothing leaves by another
// address. The refusing route is added first, and the UDP port of the tunnel is added last.
func (p *pod) client(all []Egress) (nl.Wiring, error) {
	families := p.families(all...)
	objects := []nl.Object{p.clientTable(families, all)}
	var by []nl.Object
	for _, f := range families {
		routes, err := p.clientRoutes(f, all)
		if err != nil {
			return nil, err
		}
		objects = append(objects, routes.closed...)
		objects = append(objects, p.clientRules(f)...)
		by = append(append(by, p.tunnel(f, 0)...), routes.open...)
	}
	return p.steps(slices.Concat(objects, by, p.doors(families))), nil
}

// clientRules choose the table.
func (p *pod) clientRules(f nl.Family) (objects []nl.Object) {
	if f == nl.IPv6 {
		objects = append(objects, p.pastTunnel())
	}
	return append(objects, nl.Rule{Pref: prefOut, Family: f, Not: true, Mark: mark, Mask: mark, Table: TableOut,
		Protocol: nl.RouteProtocol})
}

// clientRoutes are the table before there is a tunnel, and the routes into the tunnel.
type clientRoutes struct{ closed, open []nl.Object }

// clientRoutes lead into the tunnel. If two egresses disagree about a prefix, the one that names it
// as a destination counts.
func (p *pod) clientRoutes(f nl.Family, all []Egress) (routes clientRoutes, err error) {
	var out, spared, hops []nl.Route
	for _, e := range all {
		gw := e.gateway(f)
		if !gw.IsValid() {
			continue
		}
		no := e.spared(f, p.routes, gateways(all))
		if hop := onTunnel(gw); f == nl.IPv6 && !slices.Contains(hops, hop) {
			no, hops = append(no, hop.Dst), append(hops, hop)
		}
		for _, dst := range no {
			spared = append(spared, nl.Route{Dst: dst, Type: "throw", Table: TableOut, Protocol: nl.RouteProtocol})
		}
		for _, dst := range of(f, e.destinations) {
			if slices.Contains(no, dst) {
				err = errors.Join(err, fmt.Errorf("egress: destinations: %s: this is an address of the node, or the "+
					"configuration excepts it: no packet would take the tunnel", dst))
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
			routes.closed = append(routes.closed, r)
		}
	}
	for _, r := range out {
		routes.closed = append(routes.closed, withoutTunnel(r.Dst))
	}
	for _, r := range slices.Concat(hops, out) {
		routes.open = append(routes.open, r)
	}
	return routes, err
}

// withoutTunnel is the route to a destination that counts when the one by the tunnel is gone, with its link or without.
// Its metric is larger.
func withoutTunnel(dst netip.Prefix) nl.Route {
	return nl.Route{Dst: dst, Type: "unreachable", Metric: lastMetric, Table: TableOut, Protocol: nl.RouteProtocol}
}

// onTunnel makes a gateway of IPv6 valid for routes by the tunnel. No packet takes it: the route that spares the
// gateway has a smaller metric. But that one has no link. The kernel looks for a route to the gateway by the link of a
// new route, in the table of the new route. So it finds this one (ip6_route_check_nh).
//
// The flag onlink is no way to that. Before Linux 7.0, the kernel refuses it if the main table has a route to the
// gateway by another link (ip6_route_check_nh_onlink). The pod has one: to the Services.
func onTunnel(gw netip.Addr) nl.Route {
	return nl.Route{Dst: single(gw), Dev: linkName(nl.IPv6), Metric: lastMetric, Table: TableOut,
		Protocol: nl.RouteProtocol}
}

// pastTunnel is the rule for packets that leave by the ENI's link. The service loop redirect looks for the next hop of
// a packet that it sends out there (bpf_redirect_neigh). In IPv6 the kernel does not skip a route by another link, and
// would take the tunnel's gateway.
func (p *pod) pastTunnel() nl.Rule {
	return nl.Rule{Pref: prefPast, Family: nl.IPv6, OIF: p.nic.Name, Table: nl.MainTable, Protocol: nl.RouteProtocol}
}

// lastMetric is higher than the metrics of all other routes: the kernel's default metric is 1024.
const lastMetric = 2048

// gateways are the gateways of several egresses. The tunnel's own packets go to them and must not enter a tunnel again.
func gateways(all []Egress) (gws []netip.Addr) {
	for _, e := range all {
		gws = append(gws, e.gateways...)
	}
	return gws
}

// gatewaysOf returns the gateways of a family, each once.
func gatewaysOf(f nl.Family, all []Egress) (gws []netip.Prefix) {
	for _, gw := range gateways(all) {
		if nl.FamilyOf(gw) == f && !slices.Contains(gws, single(gw)) {
			gws = append(gws, single(gw))
		}
	}
	return gws
}

// clientTable makes the tunnel one for connections that the pod begins.
//
// Answers to others must leave as they do without a tunnel: to probes, and to callers at a NodePort or a load balancer.
// Their destination may be one of the tunnel's. Such packets get the mark, and the kernel looks for a route without the
// tunnel's table. Packets that come by the pair and leave again get the mark, too: the service loop masquerade sends
// them on by the ENI. It may be for a router, in the tunnel's own packets, or for another backend of a Service in a
// destination.
//
// A connection that leaves by the tunnel gets the mark, too. From the tunnel the pod takes answers of such connections,
// and errors about them, and nothing else. Otherwise any program that can send UDP to the pod could call it with any
// source. Such a program could answer as if it were the pod's DNS server, or lower the path MTU of the pod's other
// connections.
//
// The destinations may change while the pod runs, see renew.go. The far end of a TCP connection knows it by an address.
// So one that has begun past the tunnel stays there. A connection that has begun by the tunnel ends when the tunnel of
// its destination is gone. A reset tells the program at once, and no packet of the connection leaves by another
// address. Each packet of all other protocols takes the way of now.
func (p *pod) clientTable(families []nl.Family, all []Egress) nl.Table {
	in, out := nl.IIFName(anyLink), nl.OIFName(anyLink)
	past := []nl.NFRule{{nl.CTReply(), nl.SetMark(mark)}} // of containers in the pod
	for _, pair := range p.links[1:] {
		past = append(past, nl.NFRule{nl.IIFName(pair), nl.SetMark(mark)})
	}
	leaves := []nl.NFRule{{out, nl.CTState("new", "established"), nl.SetCTMark(mark)},
		{nl.NotOIFName(anyLink), nl.L4Proto("tcp"), nl.CTOriginal(), nl.CTMark(mark), nl.Count(), nl.Reset()}}
	onlyAnswers := []nl.NFRule{{in, nl.CTMark(mark), nl.CTState("established", "related"), nl.Accept()}, refuse(in)}
	var of strings.Builder
	for _, e := range all {
		of.WriteString(e.text())
	}
	return nl.Table{Family: "inet", Name: Table, Of: of.String(), Chains: append([]nl.Chain{
		{Name: "output", Type: "route", Hook: "output", Priority: mangle, Rules: append([]nl.NFRule{
			{out, nl.CTReply(), nl.SetMark(mark), nl.Accept()},
			{out, nl.L4Proto("tcp"), nl.CTState("established"), nl.CTUnmarked(mark), nl.SetMark(mark), nl.Accept()},
		}, leaves...)},
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: mangle, Rules: past},
		{Name: "input", Type: "filter", Hook: "input", Rules: append(p.onlyInUDP(families, routersOf(all)),
			onlyAnswers...)},
		// containers in the pod
		{Name: "forward", Type: "filter", Hook: "forward", Rules: slices.Concat(leaves, onlyAnswers)},
	}, p.untracked(families, func(f nl.Family) nl.Term { return nl.DAddr(gatewaysOf(f, all)...) })...)}
}

// routersOf returns the addresses of the routers of a family, or none if an egress does not report them.
func routersOf(all []Egress) func(nl.Family) []netip.Prefix {
	return func(f nl.Family) (routers []netip.Prefix) {
		for _, e := range all {
			if !e.gateway(f).IsValid() {
				continue
			}
			own := of(f, e.routerCIDRs)
			if len(own) == 0 {
				return nil
			}
			routers = append(routers, own...)
		}
		return routers
	}
}

// onlyInUDP drops packets in packets that are not in UDP: the tunnel's link would take them, too. A packet that comes
// out of UDP does not pass this hook again. If the routers' addresses are known, it also drops packets to the UDP port
// from all other addresses.
func (p *pod) onlyInUDP(families []nl.Family, known func(nl.Family) []netip.Prefix) []nl.NFRule {
	rules := []nl.NFRule{refuse(nl.L4Proto("4")), refuse(nl.L4Proto("41"))}
	for _, f := range families {
		if from := known(f); len(from) > 0 {
			rules = append(rules, refuse(nl.DPort("udp", p.port, p.port), nl.NotSAddr(from...)))
		}
	}
	return rules
}

// steps are steps in the pod.
func (p *pod) steps(objects []nl.Object) nl.Wiring {
	w := make(nl.Wiring, 0, len(objects))
	for _, o := range objects {
		w = append(w, nl.Step{NS: p.ns, Object: o})
	}
	return w
}
