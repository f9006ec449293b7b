// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

const (
	node6, pod6, other6 = "fd00:0:9::10", "fd00:0:1::50", "fd00:0:2::20"
	service6            = "fd77::10"
)

// sixth gives the fabric IPv6.
func (f *fabric) sixth() {
	p := netip.MustParsePrefix
	local := []netip.Prefix{p("fe80::/10"), p("::/128")} // neighbour discovery
	f.add(f.router, nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"},
		nl.Addr{Prefix: p("fd00:0:9::1/64"), Dev: "eni0", NoDAD: true},
		nl.Addr{Prefix: p("fd00:0:1::1/64"), Dev: "eni1", NoDAD: true},
		nl.Addr{Prefix: p("fd00:0:2::1/64"), Dev: "eni2", NoDAD: true},
		nl.Table{Family: "ip6", Name: "source_check", Chains: []nl.Chain{
			{Name: "prerouting", Type: "filter", Hook: "prerouting", Rules: []nl.NFRule{
				{nl.IIFName("eni0"), nl.NotSAddr(append(local, p(node6+"/128"))...), nl.Drop()},
				{nl.IIFName("eni1"), nl.NotSAddr(append(local, p(pod6+"/128"))...), nl.Drop()},
				{nl.IIFName("pod*"), nl.NotSAddr(append(local, p(pod6+"/128"))...), nl.Drop()},
			}},
		}})
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	f.add(f.node, nl.Addr{Prefix: p(node6 + "/64"), Dev: "eth0", NoDAD: true},
		nl.Route{Dst: all, Via: netip.MustParseAddr("fd00:0:9::1"), Dev: "eth0"},
		nl.Table{Family: "ip6", Name: "like_kube_proxy", Chains: []nl.Chain{
			{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: []nl.NFRule{
				{nl.DAddr(p(service6 + "/128")), nl.DPort("tcp", 80, 80), nl.DNAT(netip.MustParseAddrPort("[" + other6 + "]:8080"))},
				{nl.DAddr(p(node6 + "/128")), nl.DPort("tcp", 30080, 30080), nl.DNAT(netip.MustParseAddrPort("[" + pod6 + "]:8080"))},
			}},
			{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
				{nl.IIFName("eth0"), nl.CTStatusDNAT(), nl.Masquerade()},
			}},
		}})
	f.add(f.other, nl.Addr{Prefix: p(other6 + "/64"), Dev: "eth0", NoDAD: true},
		nl.Route{Dst: all, Via: netip.MustParseAddr("fd00:0:2::1"), Dev: "eth0"})
}

// dual gives what the ipam plugin says an IPv6 address.
func dual(res *types100.Result) {
	gw := net.ParseIP("fd00:0:1::1")
	res.IPs = append(res.IPs, &types100.IPConfig{Interface: new(0), Gateway: gw,
		Address: net.IPNet{IP: net.ParseIP(pod6), Mask: net.CIDRMask(64, 128)}})
	res.Routes = append(res.Routes, &types.Route{GW: gw, Dst: net.IPNet{IP: net.ParseIP("fd00::"), Mask: net.CIDRMask(32, 128)}})
}

// TestTraffic6 does over IPv6 what TestTraffic does, with a route to the services by the node.
func TestTraffic6(t *testing.T) {
	f := newFabric(t)
	f.sixth()
	p := f.pod("pod1", "10.0.1.50", dual)
	if err := f.ADD(p); err != nil {
		t.Fatal(err)
	}
	if err := f.CHECK(p); err != nil {
		t.Fatal(err)
	}
	f.add(p.NS, nl.Route{Dst: netip.MustParsePrefix("fd77::/64"), Via: netip.MustParseAddr(node6), Dev: "eth1"})
	for n, addr := range map[*nl.NS]string{p.NS: pod6, f.node: node6, f.other: other6} {
		serve(t, n, net.JoinHostPort(addr, "8080"))
	}
	for _, c := range []struct {
		name           string
		from           *nl.NS
		to, port, seen string
	}{
		{"pod to other host", p.NS, other6, "8080", pod6},
		{"other host to pod", f.other, pod6, "8080", other6},
		{"pod to node", p.NS, node6, "8080", pod6},
		{"node to pod", f.node, pod6, "8080", node6},
		{"service on other host", p.NS, service6, "80", pod6},
		{"NodePort from VPC", f.other, node6, "30080", node6},
	} {
		if seen, err := call(c.from, "tcp6", net.JoinHostPort(c.to, c.port)); err != nil || seen != c.seen {
			t.Errorf("%s: seen as %q, want %q; %v", c.name, seen, c.seen, err)
		}
	}
}
