// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A coil is the tunnels of Coil 2.12: package founat of its source. A client has a link for each egress, whose far end
// is the ClusterIP. A router has a link and a route for each client. A link without far end takes packets out of UDP
// where the source of the answer is no ClusterIP.
//
// Two things are better for Coil here. Routers leave by the ENI, as ours do, and not by the node. And there is no rule
// that computes checksums of the tunnels' packets.
type coil struct {
	clients int    // of each router
	sport   uint16 // the UDP source port; Coil's default is the port of the tunnels, and not 0: one for each connection
}

func (c coil) add(p *pair) error {
	if err := c.client(p.a); err != nil {
		return err
	}
	for _, g := range []*guest{p.b, p.c} {
		if err := c.router(g, p.a.addr); err != nil {
			return err
		}
	}
	return nil
}

// tunnelTable is the table of routes into the tunnels.
const tunnelTable = 118

// client makes the far ends ClusterIPs. Its rules keep private networks out of the tunnels.
func (c coil) client(g *guest) error {
	err := c.receive(g)
	var w nl.Wiring
	add := func(o nl.Object) { w = append(w, nl.Step{NS: g.NS, Object: o}) }
	for i, gw := range gateways {
		err = errors.Join(err, c.link(g, i, gw))
		add(nl.Route{Dst: single(outside[i]), Dev: tunnelName(i), Table: tunnelTable})
	}
	toMain := func(pref int, to string) {
		add(nl.Rule{Pref: pref, To: netip.MustParsePrefix(to), Table: unix.RT_TABLE_MAIN})
	}
	toMain(1800, "169.254.0.0/16")
	add(nl.Rule{Pref: 1900, Family: unix.AF_INET, Table: 117})
	toMain(2000, "10.0.0.0/8")
	toMain(2001, "172.16.0.0/12")
	toMain(2002, "192.168.0.0/16")
	add(nl.Rule{Pref: 2100, Family: unix.AF_INET, Table: tunnelTable})
	return errors.Join(err, w.Add())
}

// router serves pod a, and clients of which nothing comes.
func (c coil) router(g *guest, client netip.Addr) error {
	err := c.receive(g)
	w := nl.Wiring{
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{NS: g.NS, Object: nl.Rule{Pref: 2000, Family: unix.AF_INET, IIF: "eth0", Table: tunnelTable}},
		{NS: g.NS, Object: nl.Table{Family: "ip", Name: "egress", Chains: []nl.Chain{{
			Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.NotSAddr(single(g.addr)), nl.OIFName("eth0"), nl.Masquerade()}},
		}}}},
	}
	idle := netip.MustParseAddr("10.0.1.1")
	for i := range c.clients {
		err = errors.Join(err, c.link(g, i, client))
		w = append(w, nl.Step{NS: g.NS, Object: nl.Route{Dst: single(client), Dev: tunnelName(i), Table: tunnelTable}})
		client, idle = idle, idle.Next()
	}
	for _, a := range outside {
		w = append(w, nl.Step{NS: g.NS, Object: nl.Route{Dst: single(a), Via: router, Dev: "eth0"}})
	}
	return errors.Join(err, w.Add())
}

// receive takes packets out of UDP in a pod, whose links take packets from any source.
func (c coil) receive(g *guest) error {
	err := nl.Wiring{
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}},
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "0"}},
	}.Add()
	if err != nil {
		return err
	}
	port := netlink.Fou{Family: unix.AF_INET, Port: tunnelPort, Protocol: unix.IPPROTO_IPIP,
		EncapType: netlink.FOU_ENCAP_DIRECT}
	if err := g.Do(func() error { return netlink.FouAdd(port) }); err != nil {
		return fmt.Errorf("%s: fou at port %d: %w", g.name, tunnelPort, err)
	}
	return g.tunnel(&netlink.Iptun{LinkAttrs: named("coil_ipip4"), FlowBased: true})
}

func tunnelName(number int) string { return fmt.Sprint("fou", number) }

// link makes a tunnel to a far end. Package nl has none, because nothing else needs them.
func (c coil) link(g *guest, number int, remote netip.Addr) error {
	const discoverMTU, encapFOU = 1, 1 // IPTUNNEL_PMTUDISC as ip(8) sets it, and TUNNEL_ENCAP_FOU
	return g.tunnel(&netlink.Iptun{
		LinkAttrs: named(tunnelName(number)), Local: g.addr.AsSlice(), Remote: remote.AsSlice(), Ttl: 225,
		PMtuDisc: discoverMTU,
		Proto:    unix.IPPROTO_IPIP, EncapType: encapFOU, EncapSport: c.sport, EncapDport: tunnelPort,
	})
}

// tunnel adds a link to a pod.
func (g *guest) tunnel(l *netlink.Iptun) error {
	err := g.Do(func() error { return errors.Join(netlink.LinkAdd(l), netlink.LinkSetUp(l)) })
	if err != nil {
		return fmt.Errorf("%s: tunnel %s: %w", g.name, l.Name, err)
	}
	return nil
}
