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

// TestHostAddrs adds the addresses to a node that keepalived, kube-proxy's IPVS mode and net-utils would add. Existing
// pods and new pods work as before.
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
	const floating, known = "10.0.9.99", "10.0.1.53" // known is the address of a pod
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

// TestTwoNetworks: two networks have different NodePorts and marks, and both work.
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
	// The NodePorts of one network change. The table of this network changes with them, and the other network's table
	// stays.
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

// TestAlikeNetworks: the names of three networks differ only in a punctuation mark. Each network has its own table.
func TestAlikeNetworks(t *testing.T) {
	f := newFabric(t)
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
	want := []string{"inet cni_ipvlan_vpc_k8s.a.b", "inet cni_ipvlan_vpc_k8s.a_b", "inet cni_ipvlan_vpc_k8s_a_b"}
	guard := func(name string) bool { return strings.HasSuffix(name, "._guard") } // shared by all networks
	tables := slices.Sorted(slices.Values(slices.DeleteFunc(nltest.Hooked(t, f.node), guard)))
	if !slices.Equal(tables, want) {
		t.Errorf("tables %v, want %v", tables, want)
	}
	f.bare()
	if tables := nltest.Hooked(t, f.node); len(tables) > 0 {
		t.Errorf("left %v", tables)
	}
}

// TestAltName: hostInterface is an alternative name of the link, as enp0s5 is an alternative name of ens5. All commands
// succeed.
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

// TestForwardingOfLink: the node forwards, except that one link, or each new link, does not forward IPv4. ADD makes the
// link forward. If the link later stops forwarding, CHECK fails, and Restore makes the link forward again.
func TestForwardingOfLink(t *testing.T) {
	for _, link := range []string{"default", "eth0", "eth1"} {
		t.Run(link, func(t *testing.T) {
			f := newFabric(t)
			stop := func(link string) nl.Sysctl {
				return nl.Sysctl{Key: "net/ipv4/conf/" + link + "/forwarding", Value: "0"}
			}
			f.add(f.node, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}, stop(link))
			p := f.routed("pod1", pod1Addr)
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			serve(t, f.router, internet+":443")
			serve(t, f.other, ":8080")
			for _, to := range []string{internet + ":443", otherAddr + ":8080"} {
				if seen, err := call(p.NS, "tcp4", to); err != nil {
					t.Errorf("%s: a call gets %q, %v", to, seen, err)
				}
			}
			for _, link := range []string{"eth0", "eth1", p.veth()} {
				f.add(f.node, stop(link))
				if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), link+".forwarding=1") {
					t.Errorf("%s does not forward, and CHECK reports %v", link, err)
				}
				_, err := f.restore(f.missing(p))
				must(t, err)
				must(t, f.CHECK(p))
			}
		})
	}
}

// TestForwardingOff: the node does not forward at all. CHECK and Missing name only ip_forward, and no sysctl of a
// pair's link.
func TestForwardingOff(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	f.add(f.node, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"})
	if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), "ip_forward=1") {
		t.Errorf("CHECK reports %v", err)
	}
	if l := f.missing(p); !l.None() {
		t.Errorf("the pod misses %v", l.Node)
	}
	_, err := ptp.Repair(f.node, p.request.Network, p.request.Config)
	must(t, err)
	must(t, f.CHECK(p))
}

// TestForwardingOfPodLinks: new links in a pod's namespace do not forward by default. The loop masquerade needs
// forwarding in the pod, and works nevertheless.
func TestForwardingOfPodLinks(t *testing.T) {
	f := newFabric(t)
	f.add(f.node, kubeProxy("tcp4"))
	serve(t, f.other, ":8080")
	p := f.configured(f.pod("pod1", pod1Addr), func(c *ptp.Config) { c.ServiceLoop = "masquerade" })
	f.add(p.NS, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		nl.Sysctl{Key: "net/ipv4/conf/default/forwarding", Value: "0"},
		nl.Sysctl{Key: "net/ipv4/conf/eth0/forwarding", Value: "0"})
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	if seen, err := call(p.NS, "tcp4", "172.20.0.10:80"); err != nil || seen != pod1Addr {
		t.Errorf("the Service's backend sees %q; %v", seen, err)
	}
}
