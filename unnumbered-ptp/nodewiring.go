// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The kernel limits how many ICMPv6 refusals one host gets, for example when the host calls a Service without backends.
// The default is one per second, or ten in newer kernels. Redirects count, too: one redirect per second at most. The
// kernel counts a redirect for a packet that leaves through the link on which it arrived. If the link has no link-local
// address, the kernel counts the redirect, but does not send it (ip6_forward). Packets of the service loop leave
// through the link on which they arrived, so a pod that uses Services gets few refusals.
//
// With refusalInterval between two refusals, nearly all refusals reach the pod. The kernel also limits the refusals of
// the whole node (icmp_msgs_per_sec). In every kernel, refusalInterval is a whole number of ticks.
const (
	ratelimit6      = "net/ipv6/icmp/ratelimit"
	refusalInterval = 20 // milliseconds
)

// The priorities of the node's rules.
const (
	prefNodePort = 512
	prefLoopless = 1014 // before the rules for ENIs of routed pods, see eniwiring.go
	prefNode     = 1023 // packets from a pod to hostCidrs: the node itself forwards these packets
	prefPod      = 1024
)

// nodeWiring lists the objects that serve all of the node's pods except routed pods. For routed pods, see eniWiring.
func nodeWiring(r *request, n node) nl.Wiring {
	objects := nodeSysctls(r.Config, n)
	if t := nodeTable(r, n); len(t.Chains) > 0 {
		objects = append(objects, t)
	}
	if r.Config.Loopless() {
		objects = append(objects, r.Config.looplessMasquerade())
		// The node's own packets need the main table, whose routes name the node's primary address as the source.
		objects = append(objects, familyRules(n, nl.Rule{Pref: prefLoopless, Not: true, IIF: "lo", Table: tableLoopless,
			Protocol: nl.RouteProtocol})...)
	}
	if r.Config.ports.last != 0 || r.Config.IPMasq {
		objects = append(objects, nodePortRules(r.Config, n)...)
	}
	return nl.Steps(r.nodeNS, objects)
}

// nodePortRules returns the rules for packets with nodePortMark: answers of connections to NodePorts, and packets whose
// source the chain "doubts" checks (see senderChains).
func nodePortRules(c Config, n node) []nl.Object {
	return familyRules(n, nl.Rule{Pref: prefNodePort, Mark: c.mark, Mask: c.mark, Table: unix.RT_TABLE_MAIN,
		Protocol: nl.RouteProtocol})
}

// nodeSysctls returns the sysctls of the node that the configuration needs.
func nodeSysctls(c Config, n node) (objects []nl.Object) {
	if c.IPMasq {
		objects = forwardingSysctls(c, n)
	}
	if c.ports.last != 0 {
		// For a packet to a NodePort, the check of sources finds the route of the pod's answer. This route does not use
		// hostInterface. A strict check would drop the packet.
		objects = append(objects, nl.Sysctl{Key: conf4(c.HostInterface) + "rp_filter", Value: "2"})
	}
	return objects
}

// forwardingSysctls returns the sysctls that let the node forward for pods.
func forwardingSysctls(c Config, n node) []nl.Object {
	objects := []nl.Object{
		nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		// The node sends packets back through the veth on purpose, so it must not send redirects to pods. The kernel
		// sends redirects if the value of the link or of "all" is 1. For the link's value, see nl.Veth.NoRedirects.
		nl.Sysctl{Key: conf4("all") + "send_redirects", Value: "0"},
	}
	if !n.forwards {
		objects = append(objects, forwards4(c.HostInterface))
	}
	if !n.forwardsIPv6(c) {
		return objects
	}
	if n.acceptRA { // 2: the link accepts router advertisements although the node forwards
		objects = append(objects, nl.Sysctl{Key: conf6(c.HostInterface) + "accept_ra", Value: "2"})
	}
	objects = append(objects, nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
	if n.limitsRefusals {
		objects = append(objects, nl.Sysctl{Key: ratelimit6, Value: strconv.Itoa(refusalInterval)})
	}
	return objects
}

// forwards4 returns the sysctl that lets a link forward IPv4. Besides ip_forward, each incoming link needs this sysctl.
// When ip_forward changes, the kernel sets the sysctl of all links. But systemd-networkd and hardening profiles set the
// sysctl of one link, or of new links. For IPv6, the kernel reads only the sysctl of "all" (ip6_forward).
func forwards4(link string) nl.Sysctl { return nl.Sysctl{Key: conf4(link) + "forwarding", Value: "1"} }

func familyRules(n node, r nl.Rule) []nl.Object {
	r.Family = nl.IPv4
	objects := []nl.Object{r}
	if n.hasFamily(nl.IPv6) {
		r.Family = nl.IPv6
		objects = append(objects, r)
	}
	return objects
}

// nodeTable returns the node's nftables table for one network. If two networks need the same rule, both tables have
// this rule. This does no harm.
//
// A connection from outside to a NodePort gets a mark, because its answers must leave through hostInterface. The pod's
// rule would lead answers to callers in the VPC back into the pod. So the rule for marked packets comes before the
// pod's rule.
func nodeTable(r *request, n node) nl.Table {
	c, t := r.Config, nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network)}
	byVeth := nl.IIFGroup(nl.OwnGroup)
	prerouting := nl.Chain{Name: preroutingChain, Type: "filter", Hook: "prerouting", Priority: nl.PriorityMangle}
	if p := c.ports; p.last != 0 {
		in, mark := nl.IIFName(c.HostInterface), nl.SetCTMark(c.mark)
		prerouting.Rules = []nl.NFRule{
			{in, nl.DPort("tcp", p.first, p.last), mark},
			{in, nl.DPort("udp", p.first, p.last), mark},
			{byVeth, nl.CTMark(c.mark), nl.SetMark(c.mark)},
		}
	}
	if c.IPMasq {
		prerouting.Rules = append(prerouting.Rules, append(nl.NFRule{byVeth}, dropForgedSegments(nl.NoRouteBack())...))
	}
	if len(prerouting.Rules) > 0 {
		t.Chains = append(t.Chains, prerouting)
	}
	if c.IPMasq {
		t.Chains = append(t.Chains, append(senderChains(byVeth, c.mark),
			postroutingChain(c, n.primaries().addrs...))...)
	}
	for _, chain := range []nl.Chain{nodePortSNAT(r, n), failClosedChain(r)} {
		if len(chain.Rules) > 0 {
			t.Chains = append(t.Chains, chain)
		}
	}
	return t
}

const preroutingChain, doubtsChain, sendersChain = "prerouting", "doubts", "senders"

// chainsOfMark are the chains whose rules depend on nodePorts and nodePortMark.
var chainsOfMark = []string{preroutingChain, doubtsChain, sendersChain}

// postroutingChain returns the node's chain that makes the node's address the source of packets that the node forwards
// for pods. addrs are the node's addresses for packets of the service loop. In packets that go back into a pod,
// kube-proxy's chain (priority 100) might replace the source by the node's address. After a translation, the kernel
// calls no other chain of the type nat. So this chain comes before kube-proxy's chain.
func postroutingChain(c Config, addrs ...netip.Addr) nl.Chain {
	chain := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 99, Rules: []nl.NFRule{
		{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()},
	}}
	for _, a := range addrs {
		chain.Rules = append(chain.Rules, loopNATRules(a)...)
	}
	return chain
}

// senderChains returns the node's chains for packets that come from the veths of some pods. The Term byVeth matches
// these packets. The chains drop two kinds of them:
//
//   - Packets from another address than the pod's. A container can send them with CAP_NET_RAW, which it has by default.
//     EC2 checks only packets that leave an ENI, and the kernel does not check the sources of IPv6.
//   - Packets that the pod's BPF program has wrongly sent to the node as answers to looped packets. These wrongly sent
//     packets came from the VPC to a port of at least 49152 that no program has opened. They are UDP packets, or TCP
//     packets that do not begin a connection. The BPF program has changed their destination port. Without the chains,
//     they would reach the pod at the new port, which a security group perhaps does not permit.
//
// The chain "doubts" leaves the mark on such packets. The chain "senders" comes after routing, and drops these packets.
// So packets to the node itself pass. Packets to a NodePort or a hostPort do not pass, because they go on to a pod.
//
// The kernel looks up the route of an answer, whose source is the packet's destination. Other programs have rules for
// answers from some addresses. These rules lead through the VPC, even to pods of this node. cloud-init and
// ec2-net-utils have such rules for addresses of the node, and amazon-vpc-cni-k8s has them for its pods. With the mark,
// the lookup uses the main table first (prefNodePort), which has the routes to all pods.
//
// A chain of the type nat sees only the first packet of a connection. So these chains cost other packets nothing, and
// the node does not track dropped packets. After a translation, the kernel calls no other chain of this type. So
// "doubts" comes before all chains that translate the destination: kube-proxy's chain for this has the priority -100.
// And "senders" comes before all chains that translate the source.
func senderChains(byVeth nl.Term, mark uint32) []nl.Chain {
	return []nl.Chain{
		{Name: doubtsChain, Type: "nat", Hook: "prerouting", Priority: -140, Rules: []nl.NFRule{
			{byVeth, nl.SetMark(mark)},
			{byVeth, nl.RouteBackByMark(), nl.SetMarkBits(0, mark)},
		}},
		{Name: sendersChain, Type: "nat", Hook: "postrouting", Priority: 50, Rules: []nl.NFRule{
			{byVeth, nl.Marked(mark), nl.Count(), nl.Drop()}}},
	}
}

// dropForgedSegments returns the end of a rule for packets from pods' veths. It drops TCP packets that begin no
// connection, such as a lone RST, if their source is another address than the pod's. Chains of the type nat do not see
// such packets, and the kernel does not translate them. kube-proxy also drops them, except with tcpBeLiberal.
func dropForgedSegments(noRouteBack nl.Term) nl.NFRule {
	return nl.NFRule{nl.CTState("invalid"), noRouteBack, nl.NotToLocal(), nl.Count(), nl.Drop()}
}

// checkedWiring returns the part of nodeWiring that CHECK looks for. It leaves out the chain "callers", which depends
// on the VPC's CIDRs at the time of the last ADD. It also leaves out the chain "closed", see [checkClosedChain]. With
// anyConfig, tables may have the rules of another configuration.
func checkedWiring(w nl.Wiring, anyConfig bool) nl.Wiring {
	for i, s := range w {
		if t, is := s.Object.(nl.Table); is {
			t = t.Lasting()
			t.More, t.Others = true, anyConfig
			for k := range t.Chains { // a copy, which Lasting has made
				t.Chains[k].Alike = anyConfig && slices.Contains(chainsOfMark, t.Chains[k].Name)
			}
			w[i].Object = t
		}
	}
	return w
}
