// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// strays is the table that drops what arrives by the boot ENI for pods that have ended. By the other ENIs, packets come
// for pods alone, so that a routing rule drops the rest. By the boot ENI, packets come whose destination this node has
// translated. They are calls to a NodePort for a pod of another node, or answers to packets that the node has
// masqueraded. A routing rule does not know these.
//
// All addresses of an ENI are of its subnet. The node knows the subnet of IPv4 by its own address and prefix. An IPv6
// address of the node may have no prefix. Then the code takes a /64, which is a whole subnet in most VPCs.
func strays(dev string, n node) nl.Table {
	back := nl.NFRule{nl.IIFName(dev), nl.OIFName(dev)}
	rules := []nl.NFRule{append(slices.Clip(back), nl.CTOriginal(), nl.CTStatusDNAT(), nl.Accept()),
		append(slices.Clip(back), nl.CTReply(), nl.CTStatusSNAT(), nl.Accept())}
	subnets := []netip.Prefix{n.subnet}
	if a, is := n.primary(nl.IPv6); is {
		const most = 64
		subnets = append(subnets, netip.PrefixFrom(a, most).Masked())
	}
	for _, subnet := range subnets {
		if subnet.IsValid() {
			rules = append(rules, append(slices.Clip(back), nl.DAddr(subnet), nl.Count(), nl.Drop()))
		}
	}
	return nl.Table{Family: "inet", Name: nl.StrayTable, Chains: []nl.Chain{{Name: "forward", Type: "filter",
		Hook: "forward", Rules: rules}}}
}
