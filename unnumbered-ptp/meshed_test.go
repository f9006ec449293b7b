// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestMeshed: a pod redirects arriving packets to its proxy, as a sidecar of a service mesh does. The node reaches the
// proxy in both families. A pod of an earlier release has its address on one link only. CHECK accepts this pod, and the
// next ADD adds the address to the other link.
func TestMeshed(t *testing.T) {
	nltest.Need(t, "nftables")
	for _, loop := range loopsOfAll {
		t.Run(loop, func(t *testing.T) {
			f := newFabric(t)
			p := f.configured(f.pod("pod1", pod1Addr, dual), func(c *ptp.Config) { c.ServiceLoop = loop })
			must(t, f.ADD(p))
			nltest.Shell(t, p.NS, "nft 'add table inet mesh; "+
				"add chain inet mesh in { type nat hook prerouting priority -100; }; "+
				"add rule inet mesh in tcp dport 80 redirect to :15006'")
			serve(t, p.NS, ":15006")
			for _, network := range []string{"tcp4", "tcp6"} {
				seen, err := call(f.node, network, dialled(network, pod1Addr+":80"))
				if err != nil || seen == "" {
					t.Errorf("%s: the proxy sees %q, %v", network, seen, err)
				}
			}
			// Without any IPv4 address, the link would lose its routes.
			nltest.Shell(t, p.NS, "ip addr add 169.254.0.1/32 dev eth1; ip addr del "+pod1Addr+"/32 dev eth1")
			must(t, f.CHECK(p))
			if l := f.missing(p); !l.None() {
				t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
			}
			must(t, f.ADD(p))
			must(t, nl.Addr{Prefix: netip.MustParsePrefix(pod1Addr + "/32"), Dev: "eth1"}.Check(p.NS))
		})
	}
}
