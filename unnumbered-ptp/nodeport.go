// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A caller calls a pod by the node: at a NodePort of a Service that keeps the caller's address
// (externalTrafficPolicy: Local). The node translates only the called address, to the pod's. So the call reaches the
// pod by the veth, with the caller's own address.
//
// The pod answers a caller of IPv4 from the internet by the veth, its default route. But its routes to the VPC, and
// all routes of IPv6, lead by its ENI. An answer from there has a source that the caller does not know. So the node
// gives these callers its own address, and the pod answers the node. That costs the pod nothing.
//
// With keepCaller, a pod sees the callers' own addresses. A connection that begins by the veth gets a mark
// (nodePortMark). The pod's sockets answer with the mark, and a rule sends marked packets by the veth. What comes by
// the ENI has no mark. docs/configuration.md has the cost of the rule, and the limits.
//
//   - With the loop redirect, the program at eth1 marks what does not go on by eth0. The kernel copies the mark of
//     the packet that begins a TCP connection to its socket (tcp_fwmark_accept). The mark does nothing to existing
//     sockets: answers from Services to the pod may have it.
//   - With masquerade, the pod tracks its connections. Those that begin by the veth have the mark. So has everything
//     that belongs to them, TCP or UDP, with or without a socket.
//
// Two other ways cost more. A program at eth0's egress would cost each packet that leaves directly up to 1 %. A
// program at the routes by eth0 could also mark datagrams. It would need a second copy of all routes of the pod, also
// of those that other programs add.

// prefCaller and tableCaller are the rule and the table in a pod for marked packets: after the
// pod's own addresses, before all other usual rules.
const (
	prefCaller  = 512
	tableCaller = 72
)

// podCallers has the pod answer marked connections by the veth. The loop sets the marks, see
// podLoop.
func podCallers(r *request, p pair, n node) (objects []nl.Object) {
	if !p.callers || p.loop == "" {
		return nil
	}
	veth, mark := r.Config.ContainerInterface, r.Config.mark
	if p.loop == redirect {
		objects = append(objects, nl.Sysctl{Key: "net/ipv4/tcp_fwmark_accept", Value: "1"}) // also for IPv6
	}
	if p.has(nl.IPv4) {
		// Otherwise a check of sources, rp_filter, expects the caller at the ENI.
		objects = append(objects, nl.Sysctl{Key: conf4(veth) + "src_valid_mark", Value: "1"})
	}
	for _, f := range p.families() {
		a, ok := n.primary(f)
		if !ok {
			continue
		}
		objects = append(objects,
			nl.Route{Dst: f.Everywhere(), Via: a, Dev: veth, Table: tableCaller, Protocol: nl.RouteProtocol},
			nl.Rule{Pref: prefCaller, Family: f, Mark: mark, Mask: mark, Table: tableCaller,
				Protocol: nl.RouteProtocol})
	}
	return objects
}

// callerRules are the pod's rules, to delete them. Their routes end with the veth.
func callerRules(r *request) (objects []nl.Object) {
	if !r.Config.KeepCaller {
		return nil
	}
	for _, f := range nl.Families {
		objects = append(objects, nl.Rule{Pref: prefCaller, Family: f, Table: tableCaller, Protocol: nl.RouteProtocol})
	}
	return objects
}

// mangle is the priority of chains that set marks: before addresses are translated.
const mangle = -150

// markCallers is netfilter's part in a pod that tracks its connections. A connection that
// begins by the veth stays there. What the node has sent back and leaves by the ENI is no call.
func markCallers(c Config) []nl.Chain {
	byVeth := nl.IIFName(c.ContainerInterface)
	return []nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: mangle, Rules: []nl.NFRule{
			{byVeth, nl.ToLocal(), nl.SetMark(c.mark)},
			{byVeth, nl.CTState("new"), nl.SetCTMark(c.mark)},
		}},
		{Name: "output", Type: "route", Hook: "output", Priority: mangle, Rules: []nl.NFRule{
			{nl.CTMark(c.mark), nl.SetMark(c.mark)},
		}},
	}
}

// callersChain is the name of the chain for callers.
const callersChain = "callers"

// callers is the node's chain for the callers to whom it gives its own address. The chain comes before the chains of
// other programs.
func callers(r *request, n node) nl.Chain {
	chain, c := nl.Chain{Name: callersChain, Type: "nat", Hook: "postrouting", Priority: 98, Varies: true}, r.Config
	if !c.IPMasq || c.ports.last == 0 || c.KeepCaller && !slices.Contains(c.loops(), redirect) {
		return chain
	}
	rule := nl.NFRule{nl.IIFName(c.HostInterface), nl.OIFGroup(nl.OwnGroup), nl.CTMark(c.mark)}
	if c.KeepCaller {
		rule = append(rule, nl.L4Proto("udp"))
	}
	vpc := slices.DeleteFunc(slices.Clone(r.routes), func(dst netip.Prefix) bool { return dst.Addr().Is6() })
	if c.DefaultRoute == byVPC || c.Loopless() {
		vpc = []netip.Prefix{nl.IPv4.Everywhere()}
	}
	if a, ok := n.primary(nl.IPv4); ok && len(vpc) > 0 {
		chain.Rules = append(chain.Rules, append(slices.Clip(rule), nl.SAddr(vpc...), nl.SNAT(a)))
	}
	if a, ok := n.primary(nl.IPv6); ok {
		chain.Rules = append(chain.Rules, append(slices.Clip(rule), nl.SNAT(a)))
	}
	return chain
}
