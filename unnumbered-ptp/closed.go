// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The service loop fails closed. A pod with a loop sends a packet for a Service to the node. On the node, the pod's
// rule and table lead the packet back to the pod. The pod sends the packet out through its ENI. Without this rule, or
// without a route of this table, the packet would leave through the boot ENI with the node's address. The node's
// security groups would then apply, and not the pod's. The chain "closed" on the node drops the first packet of such a
// connection.
//
// The chain has the type nat, so it costs nothing for later packets. One chain serves all pods, so the ADD of another
// pod adds nothing to the chain. Instead of the chain, each pod could have a second routing rule. But this rule would
// cost each ADD two more messages, and a program that removes the first rule would also remove the second rule. If the
// pod's rule is lost during a connection, later packets keep the source of the connection's first packet (see
// loopNATRules). With the loop "redirect", this source is the pod's address, and EC2 drops the packets at the boot ENI.
// With the loop "masquerade", the source is the node's address, so the packets leave.
//
// Pods without a loop do send packets to the VPC through the boot ENI. A chain with a smaller priority replaces the
// source of these packets by the node's address. After a translation, the kernel calls no other chain of the type nat,
// so the chain "closed" does not drop these packets. The chain with the smaller priority is in a table of its own
// (looplessTable). The table stays as long as the node has pods. As long as the table exists, the service loops of all
// pods fail open.

// closedChain is the name of the chain that failClosedChain returns. looplessTable is the name of the table for pods
// without a loop. [nl.OwnTableOf] never returns this name.
const (
	closedChain   = "closed"
	looplessTable = nl.OwnTable + "._loopless"
)

// failClosedChain returns the chain for pods with a loop. The chain drops packets of these pods that would leave
// through the boot ENI to the VPC. It does not drop packets to the prefixes of allByNode, because pods reach these
// prefixes through the boot ENI. It has no rules if the pods have no loop.
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

func sortedPrefixes(f nl.Family, all []netip.Prefix) []netip.Prefix {
	all = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return nl.FamilyOf(p.Addr()) != f })
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// looplessMasquerade returns the table that makes the node's address the source of packets of pods without a loop. Its
// chain comes before the chain "closed" of each network.
func (c Config) looplessMasquerade() nl.Table {
	return nl.Table{Family: "inet", Name: looplessTable,
		Chains: []nl.Chain{{Name: "open", Type: "nat", Hook: "postrouting", Priority: 97,
			Rules: []nl.NFRule{{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()}}}}}
}

// checkClosedChain returns an error if the node's chain "closed" is missing or empty, or if its table has a rule of
// another program. It returns nil if the node has the table for pods without a loop. It does not compare the rules,
// because the rules depend on the VPC's CIDRs at the time of the last ADD.
func checkClosedChain(r *request) error {
	chain := failClosedChain(r)
	if len(chain.Rules) == 0 {
		return nil
	}
	t := nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network), Chains: []nl.Chain{chain}}
	if err := t.Intact(r.nodeNS); err != nil && r.Config.looplessMasquerade().Check(r.nodeNS) != nil {
		return fmt.Errorf("if another program removes the pods' rules, nothing stops a pod's packets to Services "+
			"that have the node's address as their source: %w", err)
	}
	return nil
}
