// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// Hosts returns the IPv4 addresses of all hosts, nodes and pods of the scene, by name. It omits hosts, nodes and pods
// without an IPv4 address.
func (s *Scene) Hosts() map[string]netip.Addr {
	hosts := map[string]netip.Addr{"internet": vpcsim.InternetAddr}
	add := func(name string, a netip.Addr) {
		if a.IsValid() {
			hosts[name] = a
		}
	}
	for name, i := range s.others {
		add(name, i.Addr())
	}
	for _, n := range s.Nodes {
		add(n.Name, n.Addr())
		for _, p := range n.Pods {
			add(p.Name, p.Addr(IPv4))
		}
	}
	return hosts
}
