// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// mangle is the priority of chains that set marks: before addresses are translated.
const mangle = -150

// client is what a client gets: the tunnel, and a table of routes by it. A packet to a
// destination goes to the gateway, that is to the Service of the routers.
//
// A route of the type throw sends a packet on to the pod's other routes. So the longest prefix
// decides whether a packet takes the tunnel.
func (p *pod) client(all []Egress) (nl.Wiring, error) {
	var objects []nl.Object
	families := p.families(all...)
	for _, f := range families {
		objects = append(objects, p.tunnel(f, 0)...)
	}
	objects = append(objects, p.clientTable())
	for _, f := range families {
		routes, err := p.clientRoutes(f, all)
		if err != nil {
			return nil, err
		}
		objects = append(objects, routes...)
		if f == nl.IPv6 {
			objects = append(objects, p.pastTunnel())
		}
		objects = append(objects, nl.Rule{Pref: prefOut, Family: f, Not: true, Mark: mark, Mask: mark, Table: TableOut, Protocol: nl.RouteProtocol})
	}
	return p.steps(objects), nil
}

// clientRoutes lead into the tunnel. If two egresses disagree about a prefix, the one that names it
// as a destination counts.
func (p *pod) clientRoutes(f nl.Family, all []Egress) (objects []nl.Object, err error) {
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
		for _, dst := range e.destinations {
			if nl.FamilyOf(dst.Addr()) != f {
				continue
			}
			if slices.Contains(no, dst) {
				err = errors.Join(err, fmt.Errorf("egress: destinations: %s: this is an address of the node, or the configuration excepts it: no packet would take the tunnel", dst))
			}
			out = append(out, nl.Route{Dst: dst, Via: gw, Dev: linkName(f), OnLink: f == nl.IPv4, Src: p.addr(f), MTU: min(e.MTU, nl.TunnelMTU(f, p.mtu)), Table: TableOut, Protocol: nl.RouteProtocol})
		}
	}
	named := func(r nl.Route) bool {
		return slices.ContainsFunc(out, func(o nl.Route) bool { return o.Dst == r.Dst })
	}
	for i, r := range spared {
		if !named(r) && !slices.Contains(spared[:i], r) {
			objects = append(objects, r)
		}
	}
	for _, r := range slices.Concat(hops, out) {
		objects = append(objects, r)
	}
	return objects, err
}

// onTunnel makes a gateway of IPv6 valid for routes by the tunnel. No packet takes it: the route that spares the gateway has a
// smaller metric. But that one has no link. The kernel looks for a route to the gateway by the link of a new route, in the table of
// the new route, and so finds this one (ip6_route_check_nh).
//
// The flag onlink is no way to that. Before Linux 7.0, the kernel refuses it if the main table has a route to the gateway by
// another link (ip6_route_check_nh_onlink). The pod has one: to the Services.
func onTunnel(gw netip.Addr) nl.Route {
	return nl.Route{Dst: single(gw), Dev: linkName(nl.IPv6), Metric: lastMetric, Table: TableOut, Protocol: nl.RouteProtocol}
}

// pastTunnel is the rule for what leaves by the ENI's link. The service loop redirect looks for the next hop of a packet that it sends out
// there (bpf_redirect_neigh). In IPv6 the kernel does not skip a route by another link, and would take the tunnel's gateway.
func (p *pod) pastTunnel() nl.Rule {
	return nl.Rule{Pref: prefPast, Family: nl.IPv6, OIF: p.nic.Name, Table: nl.MainTable, Protocol: nl.RouteProtocol}
}

// lastMetric is more than that of all other routes: the kernel's default is 1024.
const lastMetric = 2048

// gateways are those of several egresses: the packets outside must not enter a tunnel again.
func gateways(all []Egress) (gws []netip.Addr) {
	for _, e := range all {
		gws = append(gws, e.gateways...)
	}
	return gws
}

// clientTable makes the tunnel one for connections that the pod begins.
//
// Answers to others must leave as they do without a tunnel: to callers at a NodePort or behind a
// load balancer, and to probes. Their destination may be one of the tunnel's. They get the mark,
// and the kernel looks for a route without the tunnel's table. So does what comes by the pair and leaves
// again: the service loop masquerade sends it on by the ENI. It may be for a router, in the tunnel's own
// packets, or for another backend of a Service in a destination.
//
// From the tunnel the pod takes answers of destinations, and errors about its connections, and
// nothing else. Otherwise anybody who can send UDP to the pod could call it with any source, or
// answer in the name of its DNS server.
func (p *pod) clientTable() nl.Table {
	in := nl.IIFName(anyLink)
	past := []nl.NFRule{{nl.CTReply(), nl.SetMark(mark)}} // of containers in the pod
	for _, pair := range p.links[1:] {
		past = append(past, nl.NFRule{nl.IIFName(pair), nl.SetMark(mark)})
	}
	onlyAnswers := []nl.NFRule{
		{in, nl.CTState("related"), nl.Accept()}, // the errors of a router have the router's address
		{in, nl.NoRouteBack(), nl.Count(), nl.Drop()},
		{in, nl.CTState("established"), nl.Accept()},
		{in, nl.Count(), nl.Drop()},
	}
	return nl.Table{Family: "inet", Name: Table, Chains: []nl.Chain{
		{Name: "output", Type: "route", Hook: "output", Priority: mangle, Rules: []nl.NFRule{
			{nl.OIFName(anyLink), nl.CTReply(), nl.SetMark(mark)},
		}},
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: mangle, Rules: past},
		{Name: "input", Type: "filter", Hook: "input", Rules: append(onlyInUDP(), onlyAnswers...)},
		{Name: "forward", Type: "filter", Hook: "forward", Rules: onlyAnswers}, // containers in the pod
	}}
}

// onlyInUDP drops packets in packets that are not in UDP: the tunnel's link would take them, too.
// What comes out of UDP does not pass this hook again.
func onlyInUDP() []nl.NFRule {
	return []nl.NFRule{{nl.L4Proto("4"), nl.Count(), nl.Drop()}, {nl.L4Proto("41"), nl.Count(), nl.Drop()}}
}

// steps are steps in the pod.
func (p *pod) steps(objects []nl.Object) nl.Wiring {
	w := make(nl.Wiring, 0, len(objects))
	for _, o := range objects {
		w = append(w, nl.Step{NS: p.ns, Object: o})
	}
	return w
}
