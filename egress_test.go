// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// throughEgress gives pods of some namespaces a way to the whole internet by routers. The routers' subnets have a NAT
// gateway, so the internet sees its address for these pods.
func throughEgress(ipam, ptp map[string]any) {
	withServices(ipam, ptp)
	ptp["egress"] = map[string]any{"partner": map[string]any{
		"gateways":     []string{"172.20.0.24", "fd00:20::24"},
		"destinations": []string{"0.0.0.0/0", "::/0"},
		"except":       []string{"2001:db8::/32"}, // the VPCs' IPv6
		"namespaces":   []string{"payments", "cousins"},
		"routers":      []string{"egress"},
	}}
}

// egressScene has two clients on the first node, on two ENIs, and a router on the ENI of the first client. Another pod there is
// no client. The second node has the other router.
func egressScene(t *testing.T, m mode) *paths.Scene {
	t.Helper()
	m.NAT = true
	conflist, err := m.conflist()
	if err != nil {
		t.Fatal(err)
	}
	m.Bin, m.Conflist, m.Further = programs(t), conflist, true
	s, err := paths.New(m.Options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	addPod(t, s.Nodes[0], "payments", "client")
	addPod(t, s.Nodes[0], "egress", "router")
	addPod(t, s.Nodes[0], "default", "other")
	addPod(t, s.Nodes[0], "cousins", "cousin")
	addPod(t, s.Nodes[1], "egress", "remoterouter")
	addPod(t, s.Nodes[1], "default", "remotesibling")
	addPod(t, s.Nodes[1], "cousins", "remotecousin")
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			if err := p.Answer(paths.DNS); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

func TestEgress(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	s := egressScene(t, mode{"egress", throughEgress, dual})
	client := s.Nodes[0].Pods[0]
	for _, proxy := range kubeproxy.Modes {
		t.Run(string(proxy), func(t *testing.T) {
			serve(t, s, proxy)
			for _, network := range []string{"udp", "tcp"} {
				for _, to := range []string{"203.0.113.1", "3fff::1"} {
					seen, err := client.Call(network, netip.AddrPortFrom(netip.MustParseAddr(to), paths.Port))
					t.Log(network, to, seen, err)
				}
			}
		})
	}
	dropless(t, s)
}
