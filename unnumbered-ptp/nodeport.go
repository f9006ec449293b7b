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
// (externalTrafficPolicy: Local). The node replaces only the destination of the call, by the pod's address. So the call
// reaches the pod through the veth, with the caller's own address.
//
// The pod's answer to an IPv4 caller in the internet leaves through the veth, by the pod's default route. But answers
// into the VPC, and all IPv6 answers, leave through the pod's ENI, with the pod's address as the source. The caller did
// not call this address. So for callers in the VPC, and for IPv6 callers, the node writes its own address into the call
// as the source, and the pod answers the node. This needs nothing in the pod, so the pod's other packets do not become
// slower.
//
// If keepCaller is set, a pod sees the callers' own addresses. A connection whose first packet arrives through the veth
// gets a mark (nodePortMark) in the pod. The pod answers with the mark, and a rule sends marked packets through the
// veth. Packets that arrive through the ENI get no mark. docs/configuration.md explains the cost and the limits of
// keepCaller.
//
// In the pod, eth0 is the link to the ENI, and eth1 is the end of the veth:
//
//   - If the loop is "redirect", the BPF program at eth1 sends looped packets out through eth0, and marks all other
//     packets. The kernel copies the mark of a TCP connection's first packet to the socket (tcp_fwmark_accept), but UDP
//     answers have no mark. Answers from Services may also get the mark. This does no harm, because existing sockets do
//     not copy the mark.
//   - If the loop is "masquerade", the pod tracks its connections, and its packets get the mark from the connection,
//     even UDP packets.
//
// Two other designs would cost more. A BPF program at eth0's egress would make each packet of the pod to the VPC up to
// 1 % slower. Routes through eth0 that call a BPF program could also handle UDP. But they would need a second copy of
// all routes of the pod, even of routes that other programs add.

// The priority of a pod's rule for marked packets, and its routing table. The rule comes after the kernel's rule for
// the pod's own addresses, and before all other usual rules.
const (
	prefCaller  = 512
	tableCaller = 72
)

// podCallerObjects returns the objects that make the pod answer marked connections through the veth. The marks are from
// the service loop's objects, see podLoop.
func podCallerObjects(r *request, p pair, n node) (objects []nl.Object) {
	if !p.callers || p.loop == "" {
		return nil
	}
	veth, mark := r.Config.ContainerInterface, r.Config.mark
	if p.loop == redirect {
		objects = append(objects, nl.Sysctl{Key: "net/ipv4/tcp_fwmark_accept", Value: "1"}) // also for IPv6
	}
	if p.hasFamily(nl.IPv4) {
		// Without src_valid_mark, rp_filter expects the caller's packets at the ENI, so a strict check would drop them
		// at the veth.
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
// The rule has IIF "lo", because it must not apply to packets that the pod forwards to a container inside the pod.
// These packets also have the mark, and must not leave through the veth again. The rules of earlier releases had no
// IIF, and pods with such rules may still run.
type callerRule struct{ nl.Rule }

// Check also accepts the rule of an earlier release.
func (r callerRule) Check(n *nl.NS) error {
	err := r.Rule.Check(n)
	if r.IIF = ""; errors.Is(err, fs.ErrNotExist) && r.Rule.Check(n) == nil {
		return nil
	}
	return err
}

// delOldCallerRules deletes the caller rules of a running pod if one of these rules is from an earlier release: that
// rule would lead forwarded packets to the veth. It deletes all caller rules, because the kernel cannot delete only the
// rules without IIF. The ADD then adds the new rules.
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

// callerRules lists the caller rules that a DEL deletes in the pod. The kernel deletes the routes of these rules with
// the veth. A request to delete the rule of an earlier release, without IIF, also matches the rule with IIF. So the
// rule without IIF must be deleted last. The DEL begins at the end of the list, so this rule comes first here.
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

// callerMarkChains returns the nftables chains that set the marks in a pod that tracks its connections. A connection
// whose first packet arrives through the veth is marked. A looped packet itself gets no mark, because it is no call:
// the pod sends it out through the ENI.
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

const callersChain = "callers"

// nodePortSNAT returns the node's chain that makes the node's address the source of some callers' calls: see the top of
// this file. The chain comes before the chains of other programs.
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
