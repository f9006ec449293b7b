// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
)

// TestClusterIPs reads the ClusterIPs and the endpoints from the rules of each mode. Without the rules, the namespace
// has neither ClusterIPs nor endpoints.
func TestClusterIPs(t *testing.T) {
	nltest.Need(t, "root", "netns", "nftables", "iptables")
	hosts := kubeproxy.Scenario{}
	for i, h := range []kubeproxy.Host{kubeproxy.Node, kubeproxy.Client, kubeproxy.Sibling, kubeproxy.Local,
		kubeproxy.Remote, kubeproxy.VPCHost} {
		hosts[h] = kubeproxy.Addrs{netip.AddrFrom4([4]byte{10, 0, 0, byte(10 + i)}),
			netip.AddrFrom16([16]byte{0: 0xfd, 1: 1, 15: byte(10 + i)})}
	}
	var want, endpoints [2][]netip.Addr
	var none kubeproxy.Addrs // of the Service without endpoints, which the iptables mode does not translate
	for _, s := range kubeproxy.Services() {
		if s.Name == "empty" {
			none = s.ClusterIP
		}
		want[0], want[1] = append(want[0], s.ClusterIP.V4), append(want[1], s.ClusterIP.V6)
		for _, h := range s.Backends {
			endpoints[0], endpoints[1] = append(endpoints[0], hosts[h].V4), append(endpoints[1], hosts[h].V6)
		}
	}
	for i := range endpoints {
		slices.SortFunc(endpoints[i], netip.Addr.Compare)
		endpoints[i] = slices.Compact(endpoints[i])
	}
	has := func(why string, n *nl.NS, want, endpoints [2][]netip.Addr) {
		t.Helper()
		for i, family := range nl.Families {
			got, err := n.ClusterIPs(family)
			if err != nil {
				t.Fatal(err)
			}
			if to, err := n.ServiceEndpoints(family); err != nil || !slices.Equal(to, endpoints[i]) {
				t.Errorf("%s: the endpoints %v, %v: want %v", why, to, err, endpoints[i])
			}
			for _, a := range want[i] {
				if empty := a == none.V4 || a == none.V6; !slices.Contains(got, a) && !empty {
					t.Errorf("%s: %v lacks %v", why, got, a)
				}
			}
			for _, a := range got {
				if !slices.Contains(want[i], a) {
					t.Errorf("%s: %v is no ClusterIP", why, a)
				}
			}
		}
	}
	for _, mode := range kubeproxy.Modes {
		n, _ := nltest.NS(t, string(mode))
		has("no rules", n, [2][]netip.Addr{}, [2][]netip.Addr{})
		unload, err := kubeproxy.Load(n, mode, hosts)
		if err != nil {
			t.Fatal(err)
		}
		has(string(mode), n, want, endpoints)
		if err := unload(); err != nil {
			t.Fatal(err)
		}
		has("without the rules of "+string(mode), n, [2][]netip.Addr{}, [2][]netip.Addr{})
	}
}
