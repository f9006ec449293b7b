// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// Egress has the paths on which clients reach the internet through an egress with two routers. One router is on the ENI
// of the first client, and the other router is on the second node. The two routers are the backends of the Service
// "egress" on the first node.
var Egress = []Path{
	{"client to the internet, by a router", pod1, internet, chosenRouter, ethernet, 0},
	{"client of the other ENI to the internet, by a router", cousin, internet, chosenRouter, ethernet, 0},
}

// WithoutEgress returns the paths in [Daily] and [Further], except the paths that [Egress] replaces.
func WithoutEgress() []Path {
	return slices.DeleteFunc(slices.Concat(Daily, Further), func(p Path) bool {
		return slices.Contains([]string{"pod to the internet", "pod of the other ENI to the internet"}, p.Name)
	})
}

// chosenRouter returns the source address that the internet sees in packets of a client. For IPv6, it is the address of
// the router that kube-proxy has chosen. For IPv4, it is the address of the routers' NAT gateway.
func chosenRouter(s *Scene, f Family, from End) (netip.Addr, error) {
	to, err := internet(s, f)
	if err != nil {
		return netip.Addr{}, err
	}
	seen, err := from.Call("tcp", to.Addr)
	if err != nil {
		return netip.Addr{}, err
	}
	if f == IPv4 {
		return vpcsim.NATAddr, nil
	}
	for _, role := range []kubeproxy.Host{kubeproxy.Sibling, kubeproxy.Remote} {
		router, err := hostsByRole(0)[role](s, f)
		if err != nil {
			return netip.Addr{}, err
		}
		if router.Addr.Addr() == seen.Addr() {
			return seen.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the internet sees %s as %s, which is no router", from.Addr.Addr(), seen.Addr())
}
