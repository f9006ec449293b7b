// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// strayTable returns the nftables table that drops packets for ended pods, if the packets arrive through the boot ENI.
// At the other ENIs, all packets are for pods, so a routing rule is enough to drop packets for ended pods (prefStray).
// At the boot ENI, the node translates the destination of some packets, and forwards these packets. These packets are
// calls to a NodePort for a pod of another node, or answers to packets that the node has masqueraded. A routing rule
// cannot distinguish these packets from packets for ended pods.
//
// All addresses of an ENI are in its subnet. The node's IPv4 address has the prefix of the subnet. The node's IPv6
// address may be a /128. So strayTable always takes the /64 of this address, which is a whole subnet in most VPCs.
func strayTable(dev string, n node) nl.Table {
	back := nl.NFRule{nl.IIFName(dev), nl.OIFName(dev)}
	rules := []nl.NFRule{append(slices.Clip(back), nl.CTOriginal(), nl.CTStatusDNAT(), nl.Accept()),
		append(slices.Clip(back), nl.CTReply(), nl.CTStatusSNAT(), nl.Accept())}
	subnets := []netip.Prefix{n.subnet}
	if a := n.primaryAddr(nl.IPv6); a.IsValid() {
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
