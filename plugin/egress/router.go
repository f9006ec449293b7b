// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// routerWiring lists the objects of a router: the tunnel, the sysctls that permit forwarding, and two routing tables.
// The nftables table is added first, and the UDP port of the tunnel last. So the router has all objects before a
// client's first packet arrives.
//
// A packet that comes out of the tunnel takes the router's routes to the VPC, or else leaves through the router's ENI.
// The router's own packets to the internet leave through the node. Answers get a mark, and packets with this mark go
// back into the tunnel, to the client's address. An ICMP error of the router gets the mark of the packet that caused
// the error (fwmark_reflect). So an error about a client's packet goes to the client, and an error about an answer goes
// to the sender of the answer. A router has the same routes and links for any number of clients.
func (p *pod) routerWiring(e Egress) (nl.Wiring, error) {
	families := p.families(e)
	if len(families) == 0 {
		return nil, plugin.Errorf(plugin.CodeRefused, "give the egress a gateway of the routers' family",
			"the gateways of the router's egress are %v, but the pod has only the addresses %v", e.gateways, p.addrs)
	}
	objects := []nl.Object{p.routerTable(families, e)}
	for _, f := range families {
		if !p.nextHop(f).IsValid() {
			return nil, plugin.Errorf(plugin.CodeInvalid,
				"put cni-ipvlan-vpc-k8s-ipam and cni-ipvlan-vpc-k8s-ipvlan before this plugin in the chain",
				"egress: prevResult names no gateway for %s, so the router cannot reach the VPC", p.addr(f))
		}
		objects = append(objects, p.routesOut(f)...)
		objects = append(objects, p.routerRules(f)...)
	}
	for _, f := range families {
		objects = append(objects, p.tunnelObjects(f, e.MTU)...)
		objects = append(objects, p.forwardingSysctls(f)...)
		objects = append(objects, p.routeBack(f))
	}
	return nl.Steps(p.ns, append(objects, p.udpPorts(families)...)), nil
}

// forwardingSysctls returns the sysctls that permit forwarding. For IPv4, the sysctl of the incoming link must also
// permit forwarding. A new namespace inherits ip_forward and default/forwarding from the node, where the two values may
// differ.
func (p *pod) forwardingSysctls(f nl.Family) []nl.Object {
	if f == nl.IPv6 {
		return []nl.Object{nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"},
			nl.Sysctl{Key: "net/ipv6/fwmark_reflect", Value: "1"}}
	}
	return []nl.Object{nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		nl.Sysctl{Key: "net/ipv4/conf/" + linkName(f) + "/forwarding", Value: "1"},
		nl.Sysctl{Key: "net/ipv4/conf/" + p.nic.Name + "/forwarding", Value: "1"},
		nl.Sysctl{Key: "net/ipv4/fwmark_reflect", Value: "1"}}
}

// routesOut returns the routes for packets that came out of the tunnel. The route to the ENI's subnet has no gateway,
// because the VPC does not send a packet back to the ENI from which it came.
func (p *pod) routesOut(f nl.Family) (objects []nl.Object) {
	for _, c := range p.nic.IPs {
		if dst, ok := plugin.Prefix(c.Address); ok && nl.FamilyOf(dst.Addr()) == f && !dst.IsSingleIP() {
			objects = append(objects, nl.Route{Dst: dst.Masked(), Dev: p.nic.Name, Table: TableOut,
				Protocol: nl.RouteProtocol})
		}
	}
	return append(objects, nl.Route{Dst: f.Everywhere(), Via: p.nextHop(f), Dev: p.nic.Name, OnLink: f == nl.IPv4,
		Table: TableOut, Protocol: nl.RouteProtocol})
}

func (p *pod) routeBack(f nl.Family) nl.Object {
	return nl.Route{Dst: f.Everywhere(), Dev: linkName(f), Src: p.addr(f), Table: tableBack, Protocol: nl.RouteProtocol}
}

// routerRules returns the rules that choose a routing table. Packets of a socket that is bound to the ENI's link use
// the routes of clients' packets. So a readiness probe of the router can test these routes.
func (p *pod) routerRules(f nl.Family) []nl.Object {
	link := linkName(f)
	rule := func(pref int, r nl.Rule) nl.Rule {
		r.Pref, r.Family, r.Protocol = pref, f, nl.RouteProtocol
		return r
	}
	return []nl.Object{
		rule(prefOut, nl.Rule{IIF: link, Table: nl.MainTable, MinLen: 1}),
		rule(prefAway, nl.Rule{IIF: link, Table: TableOut}),
		// ICMP errors about clients' packets
		rule(prefBack, nl.Rule{Mark: mark, Mask: mark, Table: tableBack}),
		// ICMP errors about answers from destinations
		rule(prefBack+1, nl.Rule{Mark: answer, Mask: answer, IIF: "lo", Table: TableOut}),
		rule(prefBack+2, nl.Rule{Mark: answer, Mask: answer, Table: tableBack}),
		rule(prefBack+3, nl.Rule{OIF: p.nic.Name, Table: TableOut}),
	}
}

// routerTable returns the nftables table of a router. The table decides which packets the router forwards, and
// translates the addresses of these packets.
//
// A router forwards the packets of clients from the tunnel to destinations of the egress, and the answers to these
// packets. It also forwards packets of the service loop, which arrive or leave through the veth pair. It never sends
// packets from the tunnel out through the veth pair. The pair leads to the node, to the node's proxy for the metadata
// service, and to all Services. A connection gets the mark with its first packet, so later packets are not compared
// with the destinations. A packet of no connection (ct state invalid) would keep its source, so the router drops it.
// The router also drops packets from the tunnel to itself.
func (p *pod) routerTable(families []nl.Family, e Egress) nl.Table {
	in, out := nl.IIFName(anyLink), nl.OIFName(anyLink)
	forward := []nl.NFRule{refuseRule(in, nl.CTState("invalid")), {in, nl.CTState("established"), nl.CTMark(mark),
		nl.Count(), nl.Accept()}, refuseRule(in, out)}
	for _, pair := range p.links[1:] {
		forward = append(forward, refuseRule(in, nl.OIFName(pair)))
	}
	forward = append(forward, nl.NFRule{in, nl.ClampMSS()}, nl.NFRule{out, nl.ClampMSS()})
	nat := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100}
	for _, f := range families {
		forward = append(forward, p.passRules(f, e)...)
		nat.Rules = append(nat.Rules, p.snatRules(f)...)
	}
	forward = append(forward, refuseRule(in),
		nl.NFRule{out, nl.CTState("established", "related"), nl.Count(), nl.Accept()}, refuseRule(out))
	for _, pair := range p.links[1:] {
		forward = append(forward, nl.NFRule{nl.IIFName(pair), nl.Accept()},
			nl.NFRule{nl.OIFName(pair), nl.CTState("established", "related"), nl.Accept()})
	}
	return nl.Table{Family: "inet", Name: Table, Of: e.sealText(), Chains: append([]nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: nl.PriorityMangle, Rules: []nl.NFRule{
			{in, nl.SetMark(mark)},
			{nl.CTReply(), nl.CTMark(mark), nl.SetMark(answer)},
		}},
		{Name: "input", Type: "filter", Hook: "input",
			Rules: append(p.onlyInUDP(families, func(f nl.Family) []netip.Prefix {
				return p.clientCIDRs(f, e.clients)
			}), refuseRule(in))},
		{Name: "forward", Type: "filter", Hook: "forward", Policy: "drop", Rules: forward},
		nat,
	}, p.untrackedChains(families, func(f nl.Family) nl.Term { return nl.SAddr(nl.HostPrefix(p.addr(f))) })...)}
}

func refuseRule(terms ...nl.Term) nl.NFRule { return append(terms, nl.Count(), nl.Drop()) }

// passRules returns the rules that decide, in one family, which connections from the tunnel the router forwards. They
// are for the first packet of a connection.
func (p *pod) passRules(f nl.Family, e Egress) (rules []nl.NFRule) {
	in, from := nl.IIFName(anyLink), p.clientCIDRs(f, e.clients)
	for _, l := range e.layers(f, prefixesOf(f, p.vpc)) {
		if !l.pass {
			rules = append(rules, refuseRule(in, nl.DAddr(l.to...)))
			continue
		}
		rule := nl.NFRule{in}
		if len(from) > 0 {
			rule = append(rule, nl.SAddr(from...))
		}
		if len(from) == 0 || !slices.Contains(l.to, f.Everywhere()) {
			rule = append(rule, nl.DAddr(l.to...))
		}
		rules = append(rules, append(rule, nl.Count(), nl.SetCTMark(mark), nl.Accept()))
	}
	return rules
}

func prefixesOf(f nl.Family, all []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(all), func(c netip.Prefix) bool { return nl.FamilyOf(c.Addr()) != f })
}

// clientCIDRs returns the CIDRs of clients in a family: those in the configuration, or else all networks that the
// router reaches through its ENI. In IPv6, the configuration must name CIDRs.
func (p *pod) clientCIDRs(f nl.Family, clients []netip.Prefix) []netip.Prefix {
	for _, all := range [][]netip.Prefix{prefixesOf(f, clients), prefixesOf(f, p.vpc)} {
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// snatRules returns the rules that make the router's address the source of packets from the tunnel. For TCP and UDP,
// the new source ports are lower than the ports of the service loop. No socket of the router has a port of the service
// loop. So to the programs of a [nl.Splice], an answer at such a port would look like an answer to a packet of the
// service loop.
func (p *pod) snatRules(f nl.Family) (rules []nl.NFRule) {
	in, a := nl.IIFName(anyLink), p.addr(f)
	for _, proto := range []string{"tcp", "udp"} {
		rules = append(rules, nl.NFRule{in, nl.L4Proto(proto), nl.SNATWithin(a, 1024, nl.SpliceFirst-1)})
	}
	return append(rules, nl.NFRule{in, nl.SNAT(a)})
}
