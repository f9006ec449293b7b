// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The service loop fails closed. A pod with a loop sends a packet for a Service to the node. The pod's rule and table
// on the node lead the packet back to the pod, and the pod sends the packet out through its ENI. If another program
// removed the rule or a route, the packet would leave through the boot ENI with the node's address. The node's security
// groups would then apply to the packet, and not the pod's security groups. The chain "closed" on the node drops such a
// packet if it is the first packet of a connection.
//
// The chain has the type nat, so it sees only the first packet of a connection, and costs all other packets nothing.
// One chain serves all pods, so the ADD of a further pod adds nothing for the chain. If the pod's rule is removed
// during a connection, later packets of the connection keep the source that the first packet got (see loopNATRules).
// With the loop redirect, this source is the pod's address, and EC2 drops such packets at the boot ENI. With the loop
// masquerade, this source is the node's address, so the packets leave.
//
// In another design, each pod would have a second rule, which drops the packets that would leave through the boot ENI.
// But this rule would cost an ADD two more messages to the kernel. There would be twice as many rules, and the kernel
// would compare each packet that uses the node's routes with all of them. Also, a program that removes the pod's first
// rule would also remove the second rule.
//
// Pods without a loop do send packets to the VPC through the boot ENI. Before such a packet reaches the chain "closed",
// another chain (with a smaller priority) replaces the packet's source by the node's address. This other chain is in a
// table of its own (looplessTable), which stays as long as the node has pods. As long as this table exists, the service
// loops of all pods fail open.

// closedChain is the name of the chain that drops packets of pods with a loop, see failClosedChain. looplessTable is
// the name of the table for pods without a loop. No table of a network has this name.
const (
	closedChain   = "closed"
	looplessTable = nl.OwnTable + "._loopless"
)

// failClosedChain returns the chain for pods with a loop. If a packet of such a pod would leave through the boot ENI to
// the VPC, the chain drops the packet. The chain has no rules if the pods have no loop. The chain does not drop packets
// to the prefixes of allByNode, because pods reach these destinations through the boot ENI.
func failClosedChain(r *request) nl.Chain {
	c, chain := r.Config, nl.Chain{Name: closedChain, Type: "nat", Hook: "postrouting", Priority: 98, Varies: true}
	if !c.Loops() {
		return chain
	}
	for _, f := range nl.Families {
		looped := r.commonLoopDsts(f)
		if len(looped) == 0 {
			continue
		}
		rule := nl.NFRule{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface)}
		if host := r.allByNode(f); len(host) > 0 {
			rule = append(rule, nl.NotDAddr(host...))
		}
		chain.Rules = append(chain.Rules, append(rule, nl.DAddr(looped...), nl.Count(), nl.Drop()))
	}
	return chain
}

// sortedPrefixes returns the prefixes of a family, sorted.
func sortedPrefixes(f nl.Family, all []netip.Prefix) []netip.Prefix {
	all = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return nl.FamilyOf(p.Addr()) != f })
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// looplessMasquerade returns the table for pods without a loop. It replaces the source of their packets by the node's
// address. The table's chain comes before the chain "closed" of each network's table.
func (c Config) looplessMasquerade() nl.Table {
	return nl.Table{Family: "inet", Name: looplessTable,
		Chains: []nl.Chain{{Name: "open", Type: "nat", Hook: "postrouting", Priority: 97,
			Rules: []nl.NFRule{{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()}}}}}
}

// checkClosedChain returns an error if the node's chain "closed" is missing or empty, or if another program has added a
// rule to the chain's table. While the node has the table for pods without a loop, checkClosedChain returns nil.
// checkClosedChain does not compare the rules, because the rules depend on the CIDRs that the VPC had during the last
// pod's ADD.
func checkClosedChain(r *request) error {
	chain := failClosedChain(r)
	if len(chain.Rules) == 0 {
		return nil
	}
	t := nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network), Chains: []nl.Chain{chain}}
	if err := t.Intact(r.nodeNS); err != nil && r.Config.looplessMasquerade().Check(r.nodeNS) != nil {
		return fmt.Errorf("if another program removes the pods' rules, pods reach Services with the node's address: %w",
			err)
	}
	return nil
}
