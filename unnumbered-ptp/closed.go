// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The service loop fails closed. What a pod sends to the VPC by the node goes back to the pod, by the rule and the
// table of the pod. If another program removes the rule or a route, the packet would leave by the boot ENI, and get the
// node's address there. Then the security groups of the node would apply to it, and not those of the pod. So the node
// drops what begins a connection and takes that way.
//
// A chain of the type nat sees the first packet of a connection, and no other. So the chain costs other packets
// nothing. It costs an ADD nothing either, because it serves all pods. The packets of a connection that stood before
// keep the pod's address, and EC2 drops them at the boot ENI.
//
// A rule of last resort beside the rule of each pod would cost an ADD two messages. It would cost each packet to the
// node's routes one more comparison for each pod. And a program that removes the pod's rule removes that one, too.
//
// Pods without a loop use exactly that way. Their packets get the node's address in a chain before this one, in a table
// of its own. It stays as long as the node has pods, and the loop of all of them fails open as long as it stays.

// closedChain is the name of the chain. looplessTable cannot be the table of a network.
const (
	closedChain   = "closed"
	looplessTable = nl.OwnTable + "._loopless"
)

// closed is the node's chain for packets that pods with a loop send to the VPC by the boot ENI. The chain has no rules
// if the pods have no loop. Destinations of hostCIDRs go that way on purpose.
func closed(r *request) nl.Chain {
	c, chain := r.Config, nl.Chain{Name: closedChain, Type: "nat", Hook: "postrouting", Priority: 98, Varies: true}
	if !c.Loops() {
		return chain
	}
	for _, f := range nl.Families {
		looped := ofFamily(f, r.routes)
		if c.DefaultRoute == byVPC && !r.routed(f) {
			looped = []netip.Prefix{f.Everywhere()}
		}
		if len(looped) == 0 {
			continue
		}
		rule := nl.NFRule{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface)}
		if host := ofFamily(f, c.hostCIDRs); len(host) > 0 {
			rule = append(rule, nl.NotDAddr(host...))
		}
		chain.Rules = append(chain.Rules, append(rule, nl.DAddr(looped...), nl.Count(), nl.Drop()))
	}
	return chain
}

// ofFamily are the prefixes of a family, in their order.
func ofFamily(f nl.Family, all []netip.Prefix) []netip.Prefix {
	all = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return nl.FamilyOf(p.Addr()) != f })
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
}

// open is the table for pods without a loop, which is before the chain closed of any network.
func (c Config) open() nl.Table {
	return nl.Table{Family: "inet", Name: looplessTable,
		Chains: []nl.Chain{{Name: "open", Type: "nat", Hook: "postrouting", Priority: 97,
			Rules: []nl.NFRule{{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()}}}}}
}

// failsClosed fails if the node's chain closed is missing or empty, except while there is the table for pods without a
// loop. The rules depend on the CIDRs that the VPC had when the last pod was made, so they are not compared.
func failsClosed(r *request) error {
	chain := closed(r)
	if len(chain.Rules) == 0 {
		return nil
	}
	t := nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network), Chains: []nl.Chain{chain}}
	if err := t.Intact(r.nodeNS); err != nil && r.Config.open().Check(r.nodeNS) != nil {
		return fmt.Errorf("pods reach Services as the node if another program removes their rules: %w", err)
	}
	return nil
}
