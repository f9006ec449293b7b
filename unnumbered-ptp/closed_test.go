// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// dnsVIP is a Service over UDP, whose backend is a host of the VPC.
const dnsVIP, dnsBackend = "172.20.0.99", otherAddr + ":9999"

// dns are the rules of the Service.
func dns() (tables []nl.Object) {
	for network, family := range map[string]string{"udp4": "ip", "udp6": "ip6"} {
		vip := netip.MustParseAddr(seenAs(network, dnsVIP))
		tables = append(tables, nl.Table{Family: family, Name: "dns", Chains: []nl.Chain{{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100,
			Rules: []nl.NFRule{{nl.DAddr(netip.PrefixFrom(vip, vip.BitLen())), nl.DPort("udp", 53, 53), nl.DNAT(netip.MustParseAddrPort(dialled(network, dnsBackend)))}}}}})
	}
	return tables
}

// wayByNode gives a pod a route of IPv6 for what it sends by the veth, as a process with CAP_NET_ADMIN can.
func wayByNode(s scene, p *pod) {
	s.add(p.NS, nl.Route{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr(sixth(nodeAddr)), Dev: "eth1", Metric: 5000})
}

// attempts sends a datagram to the Service, and one to its backend by the veth. It returns what has arrived, and in whose name.
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

// TestClosed: another program removes a pod's rules from the node, or the routes of its table. No packet to the VPC then gets the node's
// address, neither to a Service nor by the veth. Restore makes Services work again. CHECK, Lost and Repair know the chain that does so.
func TestClosed(t *testing.T) {
	for _, loop := range []string{"redirect", "masquerade"} {
		s := newScene(t, [2]string{loop, loop})
		s.add(s.node, dns()...)
		p := s.pods[0]
		wayByNode(s, p)
		veth := p.result.Interfaces[1].Name
		removals := map[string]string{
			"rules":  fmt.Sprintf("ip rule del iif %s; ip -6 rule del iif %[1]s", veth),
			"routes": fmt.Sprintf("t=$(ip rule show iif %s | sed 's/.*lookup //;s/ .*//'); ip route flush table $t; ip -6 route flush table $t", veth),
		}
		asPod := func(what string) {
			t.Helper()
			for _, network := range []string{"udp4", "udp6"} {
				want := "Service by " + seenAs(network, pod1Addr)
				if got := strings.Join(s.attempts(t, p, network), ", "); !strings.HasPrefix(got, want) || strings.Contains(got, seenAs(network, nodeAddr)) {
					t.Errorf("%s, %s, %s: %q, want %q", loop, network, what, got, want)
				}
			}
		}
		asPod("at first")
		for what, command := range removals {
			run(t, s.node, command)
			for _, network := range []string{"udp4", "udp6"} {
				if got := s.attempts(t, p, network); len(got) > 0 {
					t.Errorf("%s, %s, without the pod's %s: %q", loop, network, what, got)
				}
			}
			_, err := s.restore(s.missing(p))
			must(t, err)
			must(t, s.CHECK(p))
			asPod("after Restore")
		}

		run(t, s.node, removals["rules"]+"; nft flush chain inet "+nl.OwnTableOf(p.request.Network)+" closed")
		for _, network := range []string{"udp4", "udp6"} {
			if got := s.attempts(t, p, network); len(got) != 2 || !strings.HasSuffix(got[0], " by "+seenAs(network, nodeAddr)) {
				t.Errorf("%s, %s: without the chain, no packet has the node's address, so this test proves nothing: %q", loop, network, got)
			}
		}
		if err := s.CHECK(p); err == nil || !strings.Contains(err.Error(), "pods reach Services as the node") {
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

// TestClosedBesideLoopless: a pod without a loop, which has come before pods with one, reaches the VPC as the node. It goes on.
func TestClosedBesideLoopless(t *testing.T) {
	s := newScene(t, [2]string{"none", "redirect"})
	s.add(s.node, dns()...)
	wayByNode(s, s.pods[0])
	for _, network := range []string{"udp4", "udp6"} {
		want := "Service by " + seenAs(network, nodeAddr)
		if got := s.attempts(t, s.pods[0], network); len(got) == 0 || got[0] != want {
			t.Errorf("%s: %q, want %q", network, got, want)
		}
	}
	for _, p := range s.pods {
		must(t, s.CHECK(p))
	}
}
