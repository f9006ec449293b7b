// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// dnsVIP is a UDP Service whose backend is a host of the VPC.
const dnsVIP, dnsBackend = "172.20.0.99", otherAddr + ":9999"

// nearVIP is a UDP Service whose backend is another pod of the node.
const nearVIP, nearBackend = "172.20.0.98", pod2Addr + ":9999"

// dns returns kube-proxy's rules for both Services.
func dns() (tables []nl.Object) {
	for network, family := range map[string]string{"udp4": "ip", "udp6": "ip6"} {
		var rules []nl.NFRule
		for vip, backend := range map[string]string{dnsVIP: dnsBackend, nearVIP: nearBackend} {
			to := netip.MustParseAddr(seenAs(network, vip))
			rules = append(rules, nl.NFRule{nl.DAddr(netip.PrefixFrom(to, to.BitLen())), nl.DPort("udp", 53, 53),
				nl.DNAT(netip.MustParseAddrPort(dialled(network, backend)))})
		}
		tables = append(tables, nl.Table{Family: family, Name: "dns",
			Chains: []nl.Chain{{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100, Rules: rules}}})
	}
	return tables
}

// wayByNode gives a pod an IPv6 default route through the node. A process with CAP_NET_ADMIN in the pod can add such a
// route.
func wayByNode(s scene, p *pod) {
	s.add(p.NS, nl.Route{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr(sixth(nodeAddr)), Dev: "eth1",
		Metric: 5000})
}

// attempts sends a datagram to the Service dnsVIP, and another datagram through the veth to this Service's backend. It
// returns the datagrams that have arrived, with their sources.
func (s scene) attempts(t *testing.T, p *pod, network string) (arrived []string) {
	t.Helper()
	server := bind(t, s.other, network, ":9999")
	bind(t, p.NS, network, ":0").send("Service", dnsVIP+":53")
	bind(t, p.NS, network, ":0", byVeth).send("veth", dnsBackend)
	bind(t, s.pods[1].NS, network, ":0").send("sentinel", dnsBackend)
	for {
		text := make([]byte, 100)
		n, from, err := server.ReadFromUDPAddrPort(text)
		must(t, err)
		if string(text[:n]) == "sentinel" {
			must(t, server.Close())
			return arrived
		}
		arrived = append(arrived, fmt.Sprintf("%s by %s", text[:n], from.Addr().Unmap()))
	}
}

// nearby sends a datagram to a Service whose backend is another pod of the node. The datagram must arrive with the
// node's address. For IPv4, rp_filter of the pod's link must be 0, because the node routes the answers by this pod's
// table.
func (s scene) nearby(t *testing.T, p *pod, network string) {
	t.Helper()
	s.add(s.node, unchecked(p.result.Interfaces[1].Name)...)
	server := bind(t, s.pods[1].NS, network, ":9999")
	bind(t, p.NS, network, ":0").send("Service", nearVIP+":53")
	must(t, server.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, from, err := server.ReadFromUDPAddrPort(make([]byte, 100))
	if seen := from.Addr().Unmap().String(); err != nil || seen != seenAs(network, nodeAddr) {
		t.Errorf("%s: a pod of the node sees a call of its Service by %s, want the node; %v", network, seen, err)
	}
	must(t, server.Close())
}

// TestClosed: another program removes a pod's rules from the node, or the routes of the pod's table. Then no packet of
// the pod reaches the VPC with the node's address. After Restore, Services work again. If the chain that drops these
// packets is empty, CHECK fails, and Repair fills the chain again.
func TestClosed(t *testing.T) {
	for _, loop := range []string{"redirect", "masquerade"} {
		s := newScene(t, [2]string{loop, loop})
		s.add(s.node, dns()...)
		p := s.pods[0]
		wayByNode(s, p)
		veth := p.result.Interfaces[1].Name
		removals := map[string]string{
			"rules": fmt.Sprintf("ip rule del iif %s; ip -6 rule del iif %[1]s", veth),
			"routes": fmt.Sprintf("t=$(ip rule show iif %s | sed 's/.*lookup //;s/ .*//'); ip route flush table $t; "+
				"ip -6 route flush table $t", veth),
		}
		asPod := func(what string) {
			t.Helper()
			for _, network := range []string{"udp4", "udp6"} {
				want := "Service by " + seenAs(network, pod1Addr)
				if got := strings.Join(s.attempts(t, p, network), ", "); !strings.HasPrefix(got, want) ||
					strings.Contains(got, seenAs(network, nodeAddr)) {
					t.Errorf("%s, %s, %s: %q, want %q", loop, network, what, got, want)
				}
			}
		}
		asPod("at first")
		for what, command := range removals {
			nltest.Shell(t, s.node, command)
			for _, network := range []string{"udp4", "udp6"} {
				if got := s.attempts(t, p, network); len(got) > 0 {
					t.Errorf("%s, %s, without the pod's %s: %q", loop, network, what, got)
				}
				s.nearby(t, p, network)
			}
			_, err := s.restore(s.missing(p))
			must(t, err)
			must(t, s.CHECK(p))
			asPod("after Restore")
		}

		nltest.Shell(t, s.node, removals["rules"]+"; nft flush chain inet "+nl.OwnTableOf(p.request.Network)+" closed")
		for _, network := range []string{"udp4", "udp6"} {
			if got := s.attempts(t, p, network); len(got) != 2 ||
				!strings.HasSuffix(got[0], " by "+seenAs(network, nodeAddr)) {
				t.Errorf("%s, %s: without the chain, no packet has the node's address, so this test proves nothing: %q",
					loop, network, got)
			}
		}
		if err := s.CHECK(p); err == nil ||
			!strings.Contains(err.Error(), "nothing stops a pod's packets to Services") {
			t.Errorf("CHECK: %v", err)
		}
		must(t, s.node.Do(func() error {
			done, err := ptp.Repair(s.node, p.request.Network, p.request.Config)
			if len(done) != 1 {
				t.Errorf("Repair has restored %v", done)
			}
			return err
		}))
		_, err := s.restore(s.missing(p))
		must(t, err)
		must(t, s.CHECK(p))
		asPod("after Repair")
	}
}

// TestClosedBesideLoopless: a pod without a loop reaches the VPC with the node's address, even after ADDs of pods with
// a loop. On such a node, a pod with a loop that has lost its rules also reaches the VPC with this address. After all
// pods have ended and RemoveShared has run, packets of a new pod that has lost its rules no longer reach the VPC.
func TestClosedBesideLoopless(t *testing.T) {
	s := newScene(t, [2]string{"none", "redirect"})
	s.add(s.node, dns()...)
	asNode := func(what string, p *pod, want bool) {
		t.Helper()
		for _, network := range []string{"udp4", "udp6"} {
			got, by := s.attempts(t, p, network), "Service by "+seenAs(network, nodeAddr)
			if want != (len(got) > 0 && got[0] == by) || !want && len(got) > 0 {
				t.Errorf("%s, %s: %q, want %q: %v", what, network, got, by, want)
			}
		}
	}
	loopless, looped := s.pods[0], s.pods[1]
	wayByNode(s, loopless)
	wayByNode(s, looped)
	asNode("a pod without a loop", loopless, true)
	for _, p := range s.pods {
		must(t, s.CHECK(p))
	}
	without := "ip rule del iif %s; ip -6 rule del iif %[1]s"
	nltest.Shell(t, s.node, fmt.Sprintf(without, looped.result.Interfaces[1].Name))
	asNode("a pod with a loop, without its rules", looped, true)
	must(t, s.DEL(loopless))
	asNode("the same, alone", looped, true)

	must(t, s.DEL(looped))
	must(t, s.DEL(s.pods[2]))
	_, err := s.node.RemoveShared()
	must(t, err)
	again := s.pod("again", "10.0.1.52", dual)
	again.request.Config.ServiceLoop = "redirect"
	must(t, s.ADD(again))
	wayByNode(s, again)
	s.add(again.NS, nl.Route{Dst: netip.MustParsePrefix("fd77::/64"), Via: netip.MustParseAddr(sixth(nodeAddr)),
		Dev: "eth1"})
	s.pods[1] = again // attempts sends the sentinel from this pod
	nltest.Shell(t, s.node, fmt.Sprintf(without, again.result.Interfaces[1].Name))
	asNode("a pod with a loop, after the node had no pod", again, false)
}

// TestClosedChanged: the configuration has moved the default route from the ENI to the node, and an older pod still has
// the old route. A firewall flushes the rules, or the older pod loses its pair. Then Repair must not cut off the newer
// pods from the internet.
func TestClosedChanged(t *testing.T) {
	for name, older := range map[string]func(*fabric) *pod{
		"a routed pod": func(f *fabric) *pod { return f.routed("older", pod3Addr, dual) },
		"a pod":        func(f *fabric) *pod { return f.pod("older", pod3Addr, dual) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			serve(t, f.router, internet+":8080")
			serve(t, f.other, ":8080")
			p := f.configured(older(f), func(c *ptp.Config) { atNode(c); c.DefaultRoute = "vpc" })
			must(t, f.ADD(p))
			newer := f.configured(f.pod("newer", pod1Addr, dual), atNode)
			must(t, f.ADD(newer))
			reach := func(when string) {
				t.Helper()
				if seen, err := call(newer.NS, "tcp4", internet+":8080"); err != nil || seen != nodeAddr {
					t.Errorf("%s: the internet sees %q; %v", when, seen, err)
				}
				must(t, f.CHECK(newer))
			}
			reach("at first")
			f.nft("flush", "ruleset")
			_, err := ptp.Repair(f.node, "net", newer.request.Config)
			must(t, err)
			reach("after Repair")
			if name == "a routed pod" {
				return // a routed pod cannot get its pair back
			}
			must(t, f.node.DelPair(nl.Link{Name: p.veth()}))
			must(t, f.node.Do(func() error { return ptp.Repeat(t.Context(), &p.request) }))
			reach("after Repeat")
			must(t, f.CHECK(p))
			if seen, err := call(p.NS, "tcp4", internet+":8080"); err != nil || seen != p.addr {
				t.Errorf("the internet sees the older pod as %q; %v", seen, err)
			}
		})
	}
}

// TestClosedNewer: the configuration changes while a pod runs. After the ADD of a newer pod, the older pod's paths
// through the node still work: to the internet, to hostCidrs, and from a NodePort. After the end of the older pod, the
// next ADD makes the table as if the older pod had never existed.
func TestClosedNewer(t *testing.T) {
	services := []string{"172.20.0.0/16", "fd77::/64"}
	itself := ""
	for name, x := range map[string]struct {
		older, newer setting
		other, world string // sources that the other host and the internet see in the older pod's packets
	}{
		"the default route becomes vpc": {setting{}, setting{route: "vpc", hosts: services}, itself, nodeAddr},
		"the default route becomes host": {setting{route: "vpc", hosts: services}, setting{hosts: services}, itself,
			itself},
		"a peer comes": {setting{}, setting{peers: []string{"198.51.100.0/24"}}, itself, nodeAddr},
		"a host CIDR of the VPC goes": {setting{hosts: inVPC}, setting{}, nodeAddr,
			nodeAddr},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			local := nodePorts("tcp4", pod1Addr)
			local.Chains = local.Chains[:1] // externalTrafficPolicy Local keeps the caller's address
			f.add(f.node, local)
			f.add(f.router, nl.Route{Dst: netip.MustParsePrefix(nodeAddr + "/32"), Dev: "eni0",
				Src: netip.MustParseAddr(internet)})
			serve(t, f.router, internet+":8080")
			serve(t, f.other, ":8080")
			set := func(name, addr string, s setting) *pod {
				return f.configured(f.pod(name, addr, dual, peers(s.peers...)), func(c *ptp.Config) {
					c.DefaultRoute, c.HostCIDRs = s.route, s.hosts
				})
			}
			table := func() string { return nltest.Shell(t, f.node, "nft -s list table inet cni_ipvlan_vpc_k8s_net") }
			newer := set("newer", pod2Addr, x.newer)
			must(t, f.ADD(newer))
			alone := table()
			must(t, f.DEL(newer))
			f.bare()

			older := set("older", pod1Addr, x.older)
			serve(t, older.NS, ":8080")
			must(t, f.ADD(older))
			reach := func(when string) {
				t.Helper()
				f.seenBy(when, x.other, x.world, older)
				if _, err := call(f.router, "tcp4", nodeAddr+":30080"); err != nil {
					t.Errorf("%s: from the internet to the NodePort: %v", when, err)
				}
				must(t, f.CHECK(older))
			}
			reach("at first")
			must(t, f.ADD(newer))
			reach("after the change")
			must(t, f.CHECK(newer))
			before := table()
			must(t, f.ADD(newer))
			same(t, "a further ADD", before, table())
			f.nft("delete", "table", "inet", "cni_ipvlan_vpc_k8s_net")
			_, err := ptp.Repair(f.node, "net", newer.request.Config)
			must(t, err)
			reach("after Repair")
			must(t, f.DEL(older))
			must(t, f.ADD(newer))
			same(t, "the older pod has ended", alone, table())
		})
	}
}
