// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A coil is the tunnels of Coil 2.12: package founat of its source. A client has a link for each egress, whose far end is
// the ClusterIP. A router has a link and a route for each client. A link without far end takes packets out of UDP where
// the source of the answer is no ClusterIP.
//
// Two things are better for Coil here. Routers leave by the ENI, as ours do, and not by the node. And there is no rule
// that computes checksums of the tunnels' packets.
type coil struct {
	clients int    // of each router
	sport   string // the UDP source port of encap-sport; Coil's default is the port of the tunnels, and not auto
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

// client makes the far ends ClusterIPs. Its rules keep private networks out of the tunnels.
func (c coil) client(g *guest) error {
	var b batch
	b.receive()
	for i, gw := range gateways {
		b.link(i, g.addr, gw, c.sport)
		b.add("route add %s dev fou%d table 118", outside[i], i)
	}
	b.add("rule add pref 1800 to 169.254.0.0/16 lookup main")
	b.add("rule add pref 1900 lookup 117")
	b.add("rule add pref 2000 to 10.0.0.0/8 lookup main")
	b.add("rule add pref 2001 to 172.16.0.0/12 lookup main")
	b.add("rule add pref 2002 to 192.168.0.0/16 lookup main")
	b.add("rule add pref 2100 lookup 118")
	return b.run(g)
}

// router serves pod a, and clients of which nothing comes.
func (c coil) router(g *guest, client netip.Addr) error {
	var b batch
	b.receive()
	idle := netip.MustParseAddr("10.0.1.1")
	for i := range c.clients {
		b.link(i, g.addr, client, c.sport)
		b.add("route add %s dev fou%d table 118", client, i)
		client, idle = idle, idle.Next()
	}
	b.add("rule add pref 2000 iif eth0 lookup 118")
	for _, a := range outside {
		b.add("route add %s via %s dev eth0", a, router)
	}
	if err := b.run(g); err != nil {
		return err
	}
	return nl.Wiring{
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{NS: g.NS, Object: nl.Table{Family: "ip", Name: "egress", Chains: []nl.Chain{{
			Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.NotSAddr(single(g.addr)), nl.OIFName("eth0"), nl.Masquerade()}},
		}}}},
	}.Add()
}

// A batch is commands of ip(8), which know tunnels with far ends. Package nl has none, because nothing else needs them.
type batch struct{ bytes.Buffer }

func (b *batch) add(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }

// receive takes packets out of UDP.
func (b *batch) receive() {
	b.add("fou add port %d ipproto 4", tunnelPort)
	b.add("link add coil_ipip4 type ipip external")
	b.add("link set coil_ipip4 up")
}

func (b *batch) link(number int, local, remote netip.Addr, sport string) {
	b.add("link add fou%d type ipip local %s remote %s ttl 225 encap fou encap-sport %s encap-dport %d", number, local, remote, sport, tunnelPort)
	b.add("link set fou%d up", number)
}

// run executes the commands in a pod, whose links take packets from any source.
func (b *batch) run(g *guest) error {
	w := nl.Wiring{
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "0"}},
		{NS: g.NS, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "0"}},
	}
	if err := w.Add(); err != nil {
		return err
	}
	return g.Do(func() error {
		c := exec.Command("ip", "-batch", "-")
		c.Stdin = b
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: ip: %w: %s", g.name, err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}
