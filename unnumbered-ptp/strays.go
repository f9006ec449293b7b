// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// strayTable returns the nftables table that drops packets for ended pods, if the packets arrive through the boot ENI.
// At the other ENIs, all packets are for pods, so a routing rule is enough (prefStray). At the boot ENI, the node also
// forwards packets whose destination it translates: calls to a NodePort for a pod of another node, and answers to
// masqueraded packets. A routing rule cannot distinguish these packets from packets for ended pods.
//
// The table's rules match the subnets of the node's addresses. All addresses of the ENI are in these subnets. The
// node's IPv6 address may be a /128, so strayTable takes the address's /64, which is the whole subnet in most VPCs.
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
