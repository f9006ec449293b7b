// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// The host outside the VPC has the addresses outsideAddrs. The pod "a" is the client. The client reaches the first
// address through the router "b" on the other node, and the second through the router "c" on its own node. Each router
// is the only backend of its own Service. The ClusterIPs of these two Services are in gateways.
//
// The host outside is in the namespace of the subnet's router. A separate host would add the same cost in all layouts,
// and the ratios would show less.
var (
	outsideAddrs = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")}
	gateways     = []netip.Addr{netip.MustParseAddr("172.20.0.77"), netip.MustParseAddr("172.20.0.78")}
)

// tunnelPort is the UDP port of the tunnels: egress.DefaultPort, and also the default of Coil.
const tunnelPort = 5555

// The names of the layouts in which pods reach the host outside.
const (
	masqueraded = "no egress: masquerade on the node"
	tunnelled   = "egress, any number of clients"
	coilOne     = "as Coil does it, 1 client"
	coilMany    = "the same, 200 clients"
	coilOneFlow = "the same, 1 client, its default port"
)

// egressLayouts differ only in their tunnels.
var egressLayouts = []layout{
	{name: masqueraded, connect: connectChained(nil), service: true},
	{name: tunnelled, connect: connectChained(egressConf), service: true, tunnel: func(*pair) error { return nil }},
	{name: coilOne, connect: connectChained(nil), service: true, tunnel: coil{clients: 1}.addTunnels},
	{name: coilMany, connect: connectChained(nil), service: true, tunnel: coil{clients: 200}.addTunnels},
	{name: coilOneFlow, connect: connectChained(nil), service: true,
		tunnel: coil{clients: 1, sourcePort: tunnelPort}.addTunnels},
}

// egressConf is a configuration with two egresses. The pod "a" is the client of both, and "b" and "c" are the routers.
// A pod's name is also the name of its Kubernetes namespace.
var egressConf = map[string]any{"egress": map[string]any{
	"other": map[string]any{"gateways": gateways[:1], "destinations": outsideAddrs[:1], "namespaces": []string{"a"},
		"routers": []string{"b"}},
	"same": map[string]any{"gateways": gateways[1:], "destinations": outsideAddrs[1:], "namespaces": []string{"a"},
		"routers": []string{"c"}},
}}

const byNode = "the node"

func toOutside(i int) func(*pair) netip.AddrPort {
	return func(*pair) netip.AddrPort { return netip.AddrPortFrom(outsideAddrs[i], loadPort) }
}

var (
	nodeRoutes   = []route{{byNode, false, toOutside(0)}}
	routerRoutes = []route{{"router, other node", false, toOutside(0)}, {"router, same node", false, toOutside(1)}}
)

func measureEgress(ctx context.Context, o options, w io.Writer) error {
	fs := &flows{reference: masqueraded, referenceRoute: byNode, noteColumn: "links of a router"}
	return fs.run(ctx, o, w, func(ctx context.Context, f *vpcsim.Fabric) error {
		for i, l := range egressLayouts {
			p, err := l.newPair(f, i, o.bin)
			if err == nil {
				err = fs.addOutside(ctx, p)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
		}
		return nil
	})
}

// addOutside adds the host outside with a server, and the flows to it.
func (fs *flows) addOutside(ctx context.Context, p *pair) error {
	for _, a := range outsideAddrs {
		if err := (nl.Wiring{{NS: p.vpc.NS, Object: nl.Addr{Prefix: hostPrefix(a), Dev: "lo"}}}).Add(); err != nil {
			return err
		}
	}
	routes := nodeRoutes
	if p.tunnel != nil {
		routes = routerRoutes
		links, err := p.b.Links()
		if err != nil {
			return err
		}
		p.note = strconv.Itoa(len(links))
	}
	if err := fs.addFlows(ctx, p, routes, p.vpc); err != nil {
		return err
	}
	return p.checkSources(ctx, routes)
}

// checkSources checks the source address that the host outside sees in packets of the client. The source address must
// be the address of the router, or of the node if the layout has no routers. During the check, rules drop packets with
// other source addresses.
func (p *pair) checkSources(ctx context.Context, routes []route) error {
	sources := []netip.Addr{p.b.addr, p.c.addr}
	if p.tunnel == nil {
		sources = []netip.Addr{p.hosts[0].boot, {}}
	}
	firewall := nl.Table{Family: "ip", Name: "partner",
		Chains: []nl.Chain{{Name: "input", Type: "filter", Hook: "input"}}}
	for i, r := range routes {
		to := r.to(p).Addr()
		firewall.Chains[0].Rules = append(firewall.Chains[0].Rules,
			nl.NFRule{nl.DAddr(hostPrefix(to)), nl.NotSAddr(hostPrefix(sources[i])), nl.Drop()})
	}
	if err := firewall.Add(p.vpc.NS); err != nil {
		return err
	}
	for i, r := range routes {
		if _, err := p.a.output(ctx, "crr", r.to(p).String(), "1"); err != nil {
			return fmt.Errorf("%s: the host outside does not see pod a as %s: %w", r.name, sources[i], err)
		}
	}
	return firewall.Del(p.vpc.NS)
}
