// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The kernel limits how many ICMPv6 refusals one host gets, for example when the host calls a Service without backends.
// The default is one per second, and ten per second in newer kernels. The kernel counts redirects toward the same
// limit: one redirect per second at most. The kernel counts a redirect when a packet leaves through the link on which
// the packet arrived. If the link has no link-local address, the kernel sends no redirect, but the count still grows
// (ip6_forward). Packets of the service loop leave through the link on which they arrived. So a pod that uses Services
// gets only a small part of the limit for its refusals.
//
// If the kernel waits refusalInterval between two refusals, nearly all refusals reach the pod. The kernel also limits
// the refusals of the whole node (icmp_msgs_per_sec). refusalInterval is a whole number of ticks in every kernel.
const (
	ratelimit6      = "net/ipv6/icmp/ratelimit"
	refusalInterval = 20 // milliseconds
)

// The priorities of the node's rules.
const (
	prefNodePort = 512
	prefLoopless = 1014 // before the rules for ENIs of routed pods, see eniwiring.go
	prefNode     = 1023 // packets from a pod to hostCidrs, which the node forwards itself
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
		// The node's own packets do not use this rule: they need the routes of the main table. These routes name the
		// node's primary address as the source, and the routes of tableLoopless name no source.
		objects = append(objects, familyRules(n, nl.Rule{Pref: prefLoopless, Not: true, IIF: "lo", Table: tableLoopless,
			Protocol: nl.RouteProtocol})...)
	}
	if r.Config.ports.last != 0 {
		mark := r.Config.mark
		objects = append(objects, familyRules(n, nl.Rule{Pref: prefNodePort, Mark: mark, Mask: mark,
			Table: unix.RT_TABLE_MAIN, Protocol: nl.RouteProtocol})...)
	}
	return nl.Steps(r.nodeNS, objects)
}

// nodeSysctls returns the sysctls of the node that the configuration needs.
func nodeSysctls(c Config, n node) (objects []nl.Object) {
	if c.IPMasq {
		objects = forwardingSysctls(c, n)
	}
	if c.ports.last != 0 {
		// For a packet to a NodePort, the check of sources looks for the route that the pod's answer to the caller
		// would take. A route in the pod's table does not lead to hostInterface, so a strict check would drop the
		// packet.
		objects = append(objects, nl.Sysctl{Key: conf4(c.HostInterface) + "rp_filter", Value: "2"})
	}
	return objects
}

// forwardingSysctls returns the sysctls that let the node forward for pods.
func forwardingSysctls(c Config, n node) []nl.Object {
	objects := []nl.Object{
		nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		// The node sends a packet back through the veth on purpose, so it must not send a redirect to the pod. The
		// kernel sends redirects if the value of the link or the value of "all" is 1. Links that exist already keep
		// their own value.
		nl.Sysctl{Key: conf4("all") + "send_redirects", Value: "0"},
	}
	if !n.forwards {
		objects = append(objects, forwards4(c.HostInterface))
	}
	if !n.forwardsIPv6(c) {
		return objects
	}
	if n.acceptRA { // 2: accepted although the node forwards
		objects = append(objects, nl.Sysctl{Key: conf6(c.HostInterface) + "accept_ra", Value: "2"})
	}
	objects = append(objects, nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
	if n.limitsRefusals {
		objects = append(objects, nl.Sysctl{Key: ratelimit6, Value: strconv.Itoa(refusalInterval)})
	}
	return objects
}

// forwards4 returns the sysctl that lets a link forward IPv4. Each link through which a packet may arrive needs this
// sysctl, besides ip_forward. When ip_forward changes, the kernel sets the sysctl of all links. But systemd-networkd
// and hardening profiles also set the sysctl of one link, or of new links. For IPv6, the kernel reads only the sysctl
// of "all" (ip6_forward).
func forwards4(link string) nl.Sysctl { return nl.Sysctl{Key: conf4(link) + "forwarding", Value: "1"} }

// familyRules returns the rule r for IPv4, and also for IPv6 if the node has IPv6.
func familyRules(n node, r nl.Rule) []nl.Object {
	r.Family = nl.IPv4
	objects := []nl.Object{r}
	if n.hasFamily(nl.IPv6) {
		r.Family = nl.IPv6
		objects = append(objects, r)
	}
	return objects
}

// nodeTable returns the node's nftables table for one network. If two networks need the same rule, the tables of both
// networks have the rule. This does no harm.
//
// A connection from outside to a NodePort gets a mark. The reason is that the connection came through hostInterface, so
// its answers must leave through hostInterface. The pod's rule leads packets for the VPC back into the pod, and would
// also lead these answers back into the pod. So the rule for marked packets comes before the pod's rule.
func nodeTable(r *request, n node) nl.Table {
	c, t := r.Config, nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network)}
	if p := c.ports; p.last != 0 {
		in, mark := nl.IIFName(c.HostInterface), nl.SetCTMark(c.mark)
		t.Chains = append(t.Chains, nl.Chain{
			Name: nodePortsChain, Type: "filter", Hook: "prerouting", Priority: nl.PriorityMangle,
			Rules: []nl.NFRule{
				{in, nl.DPort("tcp", p.first, p.last), mark},
				{in, nl.DPort("udp", p.first, p.last), mark},
				{nl.IIFGroup(nl.OwnGroup), nl.CTMark(c.mark), nl.SetMark(c.mark)},
			},
		})
	}
	if c.IPMasq {
		t.Chains = append(t.Chains, sendersChain(nl.IIFGroup(nl.OwnGroup)), postroutingChain(c, n.primaries().addrs...))
	}
	for _, chain := range []nl.Chain{nodePortSNAT(r, n), failClosedChain(r)} {
		if len(chain.Rules) > 0 {
			t.Chains = append(t.Chains, chain)
		}
	}
	return t
}

// nodePortsChain is the name of the chain that marks connections to NodePorts.
const nodePortsChain = "prerouting"

// postroutingChain returns the node's chain that gives the node's address to packets which the node forwards for pods.
// addrs are the node's addresses for packets of the service loop. The chain comes before kube-proxy's chain, whose
// priority is 100. If the node's chain came after kube-proxy's chain, kube-proxy might give the node's address to a
// packet that goes back into a pod.
func postroutingChain(c Config, addrs ...netip.Addr) nl.Chain {
	chain := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 99, Rules: []nl.NFRule{
		{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()},
	}}
	for _, a := range addrs {
		chain.Rules = append(chain.Rules, loopNATRules(a)...)
	}
	return chain
}

// sendersChain returns the node's chain for connections whose first packet comes from a pod's veth. byVeth matches
// packets from the veths of some pods. The chain drops two kinds of packets:
//
//   - Packets whose source is not the pod's address. The node recognizes such a packet, because it has no route to the
//     packet's source through the same veth. A pod can send packets with another source if it has CAP_NET_RAW, which
//     containers have by default. EC2 checks the packets that leave an ENI, but does not see packets that stay on the
//     node. For IPv6, the kernel does not check sources.
//   - Packets that the pod's BPF program has wrongly sent to the node as answers to looped packets. Such a packet came
//     from the VPC to a port from 49152 on that no program has opened. It is a UDP packet, or a TCP packet that is not
//     the first one of its connection. The BPF program has also changed the packet's destination port. If the node did
//     not drop the packet, the packet would reach the pod at this other port. A security group may permit packets to
//     the first port, but not to the other port. The node would also track the packet.
//
// Packets to the node itself pass. The reason is that the kernel may find no route back through the veth for a packet
// to the node. This lookup is the lookup for an answer of the node: the answer's source is the address that the pod has
// called. If the node has several ENIs, it may have rules for packets from this address. These rules may lead all
// answers from the address through the VPC, even answers to pods.
//
// A packet to a NodePort or a hostPort of the node usually goes on to a pod, and must not pass as a packet to the node.
// So the chain comes after the chains that translate the destination. Their priority is -100, or -90 for firewalld. The
// chain cannot have the type nat: after a translation, the kernel calls no other chain of this type. A packet that is
// not the first one of its connection costs one comparison. The node does not track dropped packets.
func sendersChain(byVeth nl.Term) nl.Chain {
	return nl.Chain{Name: "senders", Type: "filter", Hook: "prerouting", Rules: []nl.NFRule{
		{nl.CTUnconfirmed(), byVeth, nl.NotToLocal(), nl.NoRouteBack(), nl.Count(), nl.Drop()}}}
}

// checkedWiring returns the part of nodeWiring that CHECK looks for. checkedWiring leaves out the chain "callers",
// because this chain depends on the CIDRs that the VPC had during the last pod's ADD. It also leaves out the chain
// "closed", see [checkClosedChain]. If anyConfig is true, the Check of a table accepts the rules of another
// configuration.
func checkedWiring(w nl.Wiring, anyConfig bool) nl.Wiring {
	for i, s := range w {
		if t, is := s.Object.(nl.Table); is {
			t = t.Lasting()
			t.More, t.Others = true, anyConfig
			for k := range t.Chains { // a copy, which Lasting has made
				t.Chains[k].Alike = anyConfig && t.Chains[k].Name == nodePortsChain
			}
			w[i].Object = t
		}
	}
	return w
}
