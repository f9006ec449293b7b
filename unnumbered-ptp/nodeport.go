// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A caller is a host that calls a pod through the node: at a NodePort of a Service that keeps the caller's address
// (externalTrafficPolicy: Local). The node replaces the call's destination by the pod's address, and does not replace
// the call's source. So the call reaches the pod through the veth, with the caller's own address.
//
// If an IPv4 caller is in the internet, the pod's answer leaves through the veth, because the pod's IPv4 default route
// is through the veth. But the pod's routes to the VPC, and all of the pod's IPv6 routes, lead through the pod's ENI.
// An answer through the ENI has the pod's address as the source, which is not the address that the caller called. So if
// the caller is in the VPC, or uses IPv6, the node writes its own address into the call as the source. The pod then
// answers the node. This replacement needs nothing in the pod, so it does not make the pod's other packets slower.
//
// If keepCaller is set, a pod sees the callers' own addresses. If the first packet of a connection arrives through the
// veth, the connection gets a mark (nodePortMark) in the pod. The pod's sockets answer with the mark, and a rule sends
// marked packets through the veth. Packets that arrive through the ENI get no mark. docs/configuration.md explains the
// cost of the rule, and the limits of keepCaller.
//
// In a pod, eth0 is the link to the ENI, and eth1 is the pod's end of the veth.
//
//   - If the loop is redirect, the BPF program at eth1 sends looped packets out through eth0, and marks all other
//     packets. The kernel copies the mark of the first packet of a TCP connection to the socket (tcp_fwmark_accept).
//     UDP sockets do not copy the mark, so their answers have no mark. Answers from Services to the pod may also get
//     the mark. This does no harm, because the pod's sockets for these answers exist already, and an existing socket
//     does not copy the mark.
//   - If the loop is masquerade, the pod tracks its connections. If the first packet of a connection arrives through
//     the veth, the connection has the mark. Each packet that the pod sends for this connection gets the mark from the
//     connection, and not from a socket. So UDP packets also get the mark.
//
// Two other designs would cost more. In the first design, a BPF program at eth0's egress would handle the answers. This
// program would make each packet of the pod to the VPC up to 1 % slower. In the second design, the routes through eth0
// would call a BPF program. This program could handle the answers of UDP, too. But the second design would need a
// second copy of all routes of the pod, even of routes that other programs add.

// prefCaller is the priority of a pod's rule for marked packets, and tableCaller is the routing table of this rule. The
// rule comes after the kernel's rule for the pod's own addresses, and before all other usual rules.
const (
	prefCaller  = 512
	tableCaller = 72
)

// podCallerObjects returns the objects that make the pod answer marked connections through the veth. The objects of the
// service loop set the marks, see podLoop.
func podCallerObjects(r *request, p pair, n node) (objects []nl.Object) {
	if !p.callers || p.loop == "" {
		return nil
	}
	veth, mark := r.Config.ContainerInterface, r.Config.mark
	if p.loop == redirect {
		objects = append(objects, nl.Sysctl{Key: "net/ipv4/tcp_fwmark_accept", Value: "1"}) // also for IPv6
	}
	if p.hasFamily(nl.IPv4) {
		// Without src_valid_mark, rp_filter ignores the mark, and expects the caller's packets at the ENI. So a strict
		// check would drop the caller's packets at the veth.
		objects = append(objects, nl.Sysctl{Key: conf4(veth) + "src_valid_mark", Value: "1"})
	}
	for _, f := range p.families() {
		a := n.primaryAddr(f)
		if !a.IsValid() {
			continue
		}
		objects = append(objects,
			nl.Route{Dst: f.Everywhere(), Via: a, Dev: veth, Table: tableCaller, Protocol: nl.RouteProtocol},
			callerRule{nl.Rule{Pref: prefCaller, Family: f, IIF: "lo", Mark: mark, Mask: mark, Table: tableCaller,
				Protocol: nl.RouteProtocol}})
	}
	return objects
}

// A callerRule is a pod's rule for the marked packets that the pod itself sends. The check of sources (rp_filter) also
// uses this rule.
//
// Packets that the pod forwards to a container inside the pod also have the mark. These packets must not leave through
// the veth again. So the rule has the condition IIF "lo", which only packets of the pod itself fulfil. The rules of
// earlier releases had no IIF, and pods with these rules may still run.
type callerRule struct{ nl.Rule }

// Check also accepts the rule of an earlier release.
func (r callerRule) Check(n *nl.NS) error {
	err := r.Rule.Check(n)
	if r.IIF = ""; errors.Is(err, fs.ErrNotExist) && r.Rule.Check(n) == nil {
		return nil
	}
	return err
}

// delOldCallerRules deletes the caller rules of a running pod if an earlier release made one of them. If the old rule
// stayed beside the new rule, the old rule would still lead forwarded packets to the veth. The ADD then adds the new
// rules. The kernel cannot delete only the rule without IIF, so delOldCallerRules deletes all caller rules.
func (s *scene) delOldCallerRules(p pair) {
	if !p.callers {
		return
	}
	var own nl.Wiring
	old := false
	rules, _ := s.podNS.Rules() // if Rules fails, the old rules stay, and CHECK accepts them
	for _, r := range rules {
		if r.Pref == prefCaller && r.Table == tableCaller && r.Protocol == nl.RouteProtocol {
			old = old || r.IIF == ""
			r.IIF = ""
			own = append(own, nl.Step{NS: s.podNS, Object: r})
		}
	}
	if old {
		_ = own.Del() // if a rule stays, the pod works as before
	}
}

// callerRules lists the caller rules that a DEL deletes in the pod. The DEL need not delete the routes to which these
// rules lead, because the kernel deletes the routes with the veth. A pod from an earlier release may have two forms of
// the rule: with and without IIF. A request to delete the rule without IIF matches both forms, and might delete the
// rule with IIF. So the DEL must delete the rule without IIF last. The DEL begins with the last rule in the list, so
// callerRules puts the rule without IIF first.
func callerRules(r *request) (objects []nl.Object) {
	if !r.Config.KeepCaller {
		return nil
	}
	for _, f := range nl.Families {
		either := nl.Rule{Pref: prefCaller, Family: f, Table: tableCaller, Protocol: nl.RouteProtocol}
		own := either
		own.IIF = "lo"
		objects = append(objects, either, own)
	}
	return objects
}

// callerMarkChains returns the nftables chains that set the marks in a pod that tracks its connections. If the first
// packet of a connection arrives through the veth, the pod's answers leave through the veth. A looped packet also
// arrives through the veth, and the pod sends it out through the ENI. A looped packet is not a call, so the chains do
// not mark it.
func callerMarkChains(c Config) []nl.Chain {
	byVeth := nl.IIFName(c.ContainerInterface)
	return []nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Priority: nl.PriorityMangle, Rules: []nl.NFRule{
			{byVeth, nl.ToLocal(), nl.SetMark(c.mark)},
			{byVeth, nl.CTState("new"), nl.SetCTMark(c.mark)},
		}},
		{Name: "output", Type: "route", Hook: "output", Priority: nl.PriorityMangle, Rules: []nl.NFRule{
			{nl.CTMark(c.mark), nl.SetMark(c.mark)},
		}},
	}
}

// callersChain is the name of the chain for callers.
const callersChain = "callers"

// nodePortSNAT returns the node's chain that replaces the source of some callers' calls by the node's address. The top
// of this file says which callers these are. The chain comes before the chains of other programs.
func nodePortSNAT(r *request, n node) nl.Chain {
	chain, c := nl.Chain{Name: callersChain, Type: "nat", Hook: "postrouting", Priority: 98, Varies: true}, r.Config
	if !c.IPMasq || c.ports.last == 0 || c.KeepCaller && !slices.Contains(c.loopsOfNewPod(), redirect) {
		return chain
	}
	rule := nl.NFRule{nl.IIFName(c.HostInterface), nl.OIFGroup(nl.OwnGroup), nl.CTMark(c.mark)}
	if c.KeepCaller {
		rule = append(rule, nl.L4Proto("udp"))
	}
	var vpc []netip.Prefix
	for _, x := range r.allLoopDsts() {
		vpc = append(vpc, sortedPrefixes(nl.IPv4, x.byENI)...)
	}
	if c.Loopless() {
		vpc = []netip.Prefix{nl.IPv4.Everywhere()}
	}
	if a := n.primaryAddr(nl.IPv4); a.IsValid() && len(vpc) > 0 {
		chain.Rules = append(chain.Rules, append(slices.Clip(rule), nl.SAddr(vpc...), nl.SNAT(a)))
	}
	if a := n.primaryAddr(nl.IPv6); a.IsValid() {
		chain.Rules = append(chain.Rules, append(slices.Clip(rule), nl.SNAT(a)))
	}
	return chain
}
