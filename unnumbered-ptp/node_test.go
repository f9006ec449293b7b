// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestHostAddrs adds the addresses that keepalived, kube-proxy's IPVS mode and net-utils add
// to a node. Existing and new pods work as before.
func TestHostAddrs(t *testing.T) {
	f := newFabric(t)
	serve(t, f.router, internet+":443")
	serve(t, f.node, ":8080")
	p, late := f.pod("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr, dual)
	must(t, f.ADD(p))
	before := nltest.Dump(t, f.node)
	vip := func(addr, dev string) nl.Step {
		a := netip.MustParseAddr(addr)
		return nl.Step{NS: f.node, Object: nl.Addr{Prefix: netip.PrefixFrom(a, a.BitLen()), Dev: dev, NoDAD: a.Is6()}}
	}
	const floating, known = "10.0.9.99", "10.0.1.53" // of a pod
	others := nl.Wiring{
		vip(floating, "eth0"), vip(sixth(floating), "eth0"), vip(known, "eth0"), vip("10.0.9.9", "eth0"),
		{NS: f.node, Object: nl.Veth{Name: "kube-ipvs0", Peer: "peer0", PeerNS: f.node}},
		vip("172.20.0.10", "kube-ipvs0"), vip("10.0.0.9", "kube-ipvs0"),
	}
	must(t, others.Add())
	must(t, f.CHECK(p))
	must(t, f.ADD(p))
	twice := f.pod("twice", known, dual)
	for _, p := range []*pod{late, twice} {
		must(t, f.ADD(p))
		must(t, f.CHECK(p))
	}
	for _, c := range []struct {
		from              *nl.NS
		network, to, seen string
	}{
		{p.NS, "tcp4", nodeAddr + ":8080", pod1Addr}, {p.NS, "tcp6", nodeAddr + ":8080", pod1Addr},
		{p.NS, "tcp4", floating + ":8080", pod1Addr},
		{p.NS, "tcp4", internet + ":443", nodeAddr}, {late.NS, "tcp4", internet + ":443", nodeAddr},
		{late.NS, "tcp6", floating + ":8080", pod2Addr},
	} {
		if seen, err := call(c.from, c.network, dialled(c.network, c.to)); err != nil ||
			seen != seenAs(c.network, c.seen) {
			t.Errorf("%s: seen as %q; %v", c.to, seen, err)
		}
	}
	must(t, f.DEL(late))
	must(t, f.DEL(twice))
	must(t, others.Del())
	must(t, f.CHECK(p))
	same(t, "all gone again", before, nltest.Dump(t, f.node))
}

// TestTwoNetworks has two networks with different NodePorts and marks. Both get what they
// need.
func TestTwoNetworks(t *testing.T) {
	f := newFabric(t)
	p := f.pod("pod1", pod1Addr)
	q := f.configured(f.pod("pod2", pod2Addr), func(c *ptp.Config) {
		c.NodePorts, c.NodePortMark = new("31000:31999"), new(uint32(0x4000))
	})
	q.request.Network = "edge-2"
	must(t, f.ADD(p))
	must(t, f.ADD(q))
	both := nltest.Dump(t, f.node)
	for range 2 {
		for _, p := range []*pod{p, q} {
			must(t, f.CHECK(p))
			must(t, f.ADD(p))
		}
	}
	same(t, "the second ADDs", both, nltest.Dump(t, f.node))
	if tables := nltest.Hooked(t, f.node); !slices.Contains(tables, "inet cni_ipvlan_vpc_k8s_net") ||
		!slices.Contains(tables, "inet cni_ipvlan_vpc_k8s_edge_2") {
		t.Errorf("tables %v", tables)
	}
	// The configuration of one network changes. Its table follows, and the other's stays.
	q.request.Config.NodePorts = new("32000:32999")
	must(t, q.request.Config.Validate())
	must(t, f.ADD(q))
	must(t, f.CHECK(q))
	must(t, f.CHECK(p))
	f.bare()
	if tables := nltest.Hooked(t, f.node); len(tables) > 0 {
		t.Errorf("left %v", tables)
	}
}

// TestAlikeNetworks has two networks to whose tables earlier releases gave the same name. So
// each network replaced the other's table.
func TestAlikeNetworks(t *testing.T) {
	f := newFabric(t)
	const folded = "inet cni_ipvlan_vpc_k8s_a_b"
	var pods []*pod
	for i, network := range []string{"a-b", "a.b", "a_b"} {
		p := f.configured(f.pod(fmt.Sprint("pod", i), fmt.Sprint("10.0.1.", 48+i)),
			func(c *ptp.Config) { c.NodePorts = new(fmt.Sprint(31000 + i)) })
		p.request.Network = network
		pods = append(pods, p)
		must(t, f.ADD(p))
	}
	for _, p := range pods {
		must(t, f.CHECK(p))
		must(t, f.GC(p, p.request.Attachment))
	}
	want := []string{"inet cni_ipvlan_vpc_k8s.a.b", "inet cni_ipvlan_vpc_k8s.a_b", folded}
	if tables := f.tables(); !slices.Equal(tables, want) {
		t.Errorf("tables %v, want %v", tables, want)
	}
	f.bare()
	if tables := nltest.Hooked(t, f.node); len(tables) > 0 {
		t.Errorf("left %v", tables)
	}
}

// tables lists the tables of networks. The guard of the ENIs, which all networks share, is not one.
func (f *fabric) tables() []string {
	f.t.Helper()
	guard := func(name string) bool { return strings.HasSuffix(name, "._guard") }
	return slices.Sorted(slices.Values(slices.DeleteFunc(nltest.Hooked(f.t, f.node), guard)))
}

// TestFolded has a table of an earlier release. GC deletes it if the network has a table of
// this release, and no other network may need the old one.
func TestFolded(t *testing.T) {
	f := newFabric(t)
	p, q := f.pod("pod1", pod1Addr), f.pod("pod2", pod2Addr)
	p.request.Network, q.request.Network = "a.b", "a-b"
	older := nl.Table{Family: "inet", Name: "cni_ipvlan_vpc_k8s_a_b", Chains: []nl.Chain{
		{Name: "forward", Type: "filter", Hook: "forward", Rules: []nl.NFRule{{nl.Count()}}}}}
	left := func(why string, want ...string) {
		t.Helper()
		if tables := f.tables(); !slices.Equal(tables, want) {
			t.Errorf("%s: tables %v, want %v", why, tables, want)
		}
	}
	f.add(f.node, older)
	must(t, f.GC(p))
	left("without pods", "inet cni_ipvlan_vpc_k8s_a_b")
	must(t, f.ADD(p))
	must(t, f.GC(p, p.request.Attachment))
	left("with a pod", "inet cni_ipvlan_vpc_k8s.a.b")
	must(t, f.CHECK(p))
	must(t, f.ADD(q))
	must(t, f.GC(p, p.request.Attachment))
	left("with another network's pod", "inet cni_ipvlan_vpc_k8s.a.b", "inet cni_ipvlan_vpc_k8s_a_b")
	must(t, f.CHECK(q))
}

// TestAltName has a hostInterface that is an alternative name of the link, as enp0s5 is one of ens5.
func TestAltName(t *testing.T) {
	for name, ports := range map[string]string{"NodePorts": "30000:32767", "no NodePorts": ""} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			serve(t, f.router, internet+":443")
			iproute(t, f.node, "link property add dev eth0 altname enp0s5")
			p := f.pod("pod", "10.0.1.50")
			p.request.Config.HostInterface, p.request.Config.NodePorts = "enp0s5", &ports
			must(t, p.request.Config.Validate())
			must(t, f.node.Do(func() error {
				return ptp.Commands().Status(t.Context(), &plugin.Request[ptp.Config]{Network: "net",
					Config: p.request.Config})
			}))
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			if seen, err := call(p.NS, "tcp4", internet+":443"); err != nil || seen != nodeAddr {
				t.Errorf("the internet sees %q, want %s; %v", seen, nodeAddr, err)
			}
			must(t, f.DEL(p))
		})
	}
}
