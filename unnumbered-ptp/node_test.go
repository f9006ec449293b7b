// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestHostAddrs: what keepalived, kube-proxy's IPVS mode and net-utils add to a node
// changes nothing for the pods that there are, nor for those that come.
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
		{NS: f.node, Object: nl.Veth{Name: "kube-ipvs0", Peer: "peer0", PeerNS: f.node}}, vip("172.20.0.10", "kube-ipvs0"), vip("10.0.0.9", "kube-ipvs0"),
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
		{p.NS, "tcp4", nodeAddr + ":8080", pod1Addr}, {p.NS, "tcp6", nodeAddr + ":8080", pod1Addr}, {p.NS, "tcp4", floating + ":8080", pod1Addr},
		{p.NS, "tcp4", internet + ":443", nodeAddr}, {late.NS, "tcp4", internet + ":443", nodeAddr},
		{late.NS, "tcp6", floating + ":8080", pod2Addr},
	} {
		if seen, err := call(c.from, c.network, dialled(c.network, c.to)); err != nil || seen != seenAs(c.network, c.seen) {
			t.Errorf("%s: seen as %q; %v", c.to, seen, err)
		}
	}
	must(t, f.DEL(late))
	must(t, f.DEL(twice))
	must(t, others.Del())
	must(t, f.CHECK(p))
	same(t, "all gone again", before, nltest.Dump(t, f.node))
}

// TestTwoNetworks have other NodePorts and marks, and both what they need.
func TestTwoNetworks(t *testing.T) {
	f := newFabric(t)
	p := f.pod("pod1", pod1Addr)
	q := f.configured(f.pod("pod2", pod2Addr), func(c *ptp.Config) { c.NodePorts, c.NodePortMark = new("31000:31999"), new(uint32(0x4000)) })
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
	if tables := nltest.Hooked(t, f.node); !slices.Contains(tables, "inet cni_ipvlan_vpc_k8s_net") || !slices.Contains(tables, "inet cni_ipvlan_vpc_k8s_edge_2") {
		t.Errorf("tables %v", tables)
	}
	// One's configuration changes: its table does, and the other's stays.
	q.request.Config.NodePorts = new("32000:32999")
	must(t, q.request.Config.Validate())
	if f.CHECK(q) == nil {
		t.Error("CHECK with other NodePorts is content")
	}
	must(t, f.ADD(q))
	must(t, f.CHECK(q))
	must(t, f.CHECK(p))
	must(t, f.node.RemoveOwn())
	if tables := nltest.Hooked(t, f.node); len(tables) > 0 {
		t.Errorf("RemoveOwn left %v", tables)
	}
}
