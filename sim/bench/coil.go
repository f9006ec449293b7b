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

// A coil makes tunnels like those of the program Coil 2.12 (package founat of its source). A client has a link for each
// egress. The remote address of this link is the ClusterIP of the egress. A router has a link and a route for each
// client. A tunnelled packet that arrives goes to the link whose remote address is the packet's source. All other
// packets, for example answers from a router's own address, go to a link that has no remote address.
//
// Two things make Coil cheaper in this layout than in reality: the packets of routers leave directly through the ENI,
// as with our egress, and no rule computes checksums of the tunnelled packets.
type coil struct {
	clients    int    // number of clients of each router
	sourcePort uint16 // UDP source port (Coil's default is tunnelPort); 0: one for each connection
}

func (c coil) addTunnels(p *pair) error {
	if err := c.addClient(p.a); err != nil {
		return err
	}
	for _, g := range []*guest{p.b, p.c} {
		if err := c.addRouter(g, p.a.addr); err != nil {
			return err
		}
	}
	return nil
}

// tunnelTable is the table whose routes lead into the tunnels.
const tunnelTable = 118

// addClient gives a client a tunnel for each ClusterIP in gateways. Rules keep packets to private networks out of the
// tunnels.
func (c coil) addClient(g *guest) error {
	err := c.acceptTunnels(g)
	var w nl.Wiring
	add := func(o nl.Object) { w = append(w, nl.Step{NS: g.NS, Object: o}) }
	for i, gw := range gateways {
		err = errors.Join(err, c.addLink(g, i, gw))
		add(nl.Route{Dst: hostPrefix(outsideAddrs[i]), Dev: tunnelName(i), Table: tunnelTable})
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

// addRouter adds tunnels to a router: the first leads to the client, and the others to clients that send nothing.
func (c coil) addRouter(g *guest, client netip.Addr) error {
	err := c.acceptTunnels(g)
	w := nl.Wiring{
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{NS: g.NS, Object: nl.Rule{Pref: 2000, Family: unix.AF_INET, IIF: "eth0", Table: tunnelTable}},
		{NS: g.NS, Object: nl.Table{Family: "ip", Name: "egress", Chains: []nl.Chain{{
			Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.NotSAddr(hostPrefix(g.addr)), nl.OIFName("eth0"), nl.Masquerade()}},
		}}}},
	}
	idle := netip.MustParseAddr("10.0.1.1")
	for i := range c.clients {
		err = errors.Join(err, c.addLink(g, i, client))
		w = append(w, nl.Step{NS: g.NS,
			Object: nl.Route{Dst: hostPrefix(client), Dev: tunnelName(i), Table: tunnelTable}})
		client, idle = idle, idle.Next()
	}
	for _, a := range outsideAddrs {
		w = append(w, nl.Step{NS: g.NS, Object: nl.Route{Dst: hostPrefix(a), Via: router, Dev: "eth0"}})
	}
	return errors.Join(err, w.Add())
}

// acceptTunnels makes a pod receive IP packets in UDP packets, from any source.
func (c coil) acceptTunnels(g *guest) error {
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
	return g.addTunnelLink(&netlink.Iptun{LinkAttrs: linkAttrs("coil_ipip4"), FlowBased: true})
}

func tunnelName(number int) string { return fmt.Sprint("fou", number) }

// addLink makes a tunnel to a remote address.
func (c coil) addLink(g *guest, number int, remote netip.Addr) error {
	const discoverMTU, encapFOU = 1, 1 // IPTUNNEL_PMTUDISC as ip(8) sets it, and TUNNEL_ENCAP_FOU
	return g.addTunnelLink(&netlink.Iptun{
		LinkAttrs: linkAttrs(tunnelName(number)), Local: g.addr.AsSlice(), Remote: remote.AsSlice(), Ttl: 225,
		PMtuDisc: discoverMTU,
		Proto:    unix.IPPROTO_IPIP, EncapType: encapFOU, EncapSport: c.sourcePort, EncapDport: tunnelPort,
	})
}

func (g *guest) addTunnelLink(l *netlink.Iptun) error {
	err := g.Do(func() error { return errors.Join(netlink.LinkAdd(l), netlink.LinkSetUp(l)) })
	if err != nil {
		return fmt.Errorf("%s: tunnel %s: %w", g.name, l.Name, err)
	}
	return nil
}
