// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The kernel limits the ICMPv6 refusals that one host gets, as for a Service without backends. The default is one per
// second, in newer kernels ten. Redirects use the same limit, at most one per second. The kernel counts each packet
// that leaves by the link it came by. The kernel counts the packet even if it sends no redirect because the link has no
// link-local address (ip6_forward). Packets of the service loop are such, so a pod that uses Services has little of its
// limit left.
//
// With refusals6 milliseconds between two refusals nearly all get through. The kernel limits the refusals of the
// whole node besides (icmp_msgs_per_sec). The value is a whole number of ticks in every kernel.
const (
	ration6   = "net/ipv6/icmp/ratelimit"
	refusals6 = 20 // milliseconds
)

// The priorities of the node's rules.
const (
	prefNodePort = 512
	prefLoopless = 1014 // before those for the ENIs of routed pods, see eniwiring.go
	prefNode     = 1023 // what a pod sends by the node, and is not looped
	prefPod      = 1024
)

// nodeWiring is what serves all pods of the node, except routed ones: see eniWiring.
func nodeWiring(r *request, n node) nl.Wiring {
	objects := sysctls(r.Config, n)
	if t := nodeTable(r, n); len(t.Chains) > 0 {
		objects = append(objects, t)
	}
	if r.Config.Loopless() {
		objects = append(objects, r.Config.open())
		// The node's own packets use the main table, which has their source address.
		objects = append(objects, rules(n, nl.Rule{Pref: prefLoopless, Not: true, IIF: "lo", Table: tableLoopless,
			Protocol: nl.RouteProtocol})...)
	}
	if r.Config.ports.last != 0 {
		mark := r.Config.mark
		objects = append(objects, rules(n, nl.Rule{Pref: prefNodePort, Mark: mark, Mask: mark,
			Table: unix.RT_TABLE_MAIN, Protocol: nl.RouteProtocol})...)
	}
	return steps(r.nodeNS, objects)
}

// sysctls are the node's sysctls.
func sysctls(c Config, n node) (objects []nl.Object) {
	if c.IPMasq {
		objects = forwarding(c, n)
	}
	if c.ports.last != 0 {
		// A strict check would look for the way back of a packet to a NodePort as if it came
		// from the pod, and find the pod's table.
		objects = append(objects, nl.Sysctl{Key: conf4(c.HostInterface) + "rp_filter", Value: "2"})
	}
	return objects
}

// forwarding are the sysctls that let the node forward for pods.
func forwarding(c Config, n node) []nl.Object {
	objects := []nl.Object{
		nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		// The node sends a packet back by the veth on purpose, and must not tell the pod of a
		// shorter way. It does if either the link or "all" says so. Links that exist already
		// keep their own value.
		nl.Sysctl{Key: conf4("all") + "send_redirects", Value: "0"},
	}
	if !n.forwards6(c) {
		return objects
	}
	if n.acceptRA { // 2: although it forwards
		objects = append(objects, nl.Sysctl{Key: conf6(c.HostInterface) + "accept_ra", Value: "2"})
	}
	objects = append(objects, nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
	if n.rationed {
		objects = append(objects, nl.Sysctl{Key: ration6, Value: strconv.Itoa(refusals6)})
	}
	return objects
}

// rules are a rule for IPv4, and the same rule for IPv6 if the node has IPv6.
func rules(n node, r nl.Rule) []nl.Object {
	r.Family = nl.IPv4
	objects := []nl.Object{r}
	if n.has(nl.IPv6) {
		r.Family = nl.IPv6
		objects = append(objects, r)
	}
	return objects
}

// nodeTable is the node's netfilter rules for one network. What two networks have in common
// is there twice, which does no harm.
//
// A connection from outside to a NodePort gets a mark, because its answers must leave the way
// it came. For the pod's rule these answers are packets to the VPC like others, and it would
// send them back into the pod. So the rule for marked packets comes first.
func nodeTable(r *request, n node) nl.Table {
	c, t := r.Config, nl.Table{Family: "inet", Name: nl.OwnTableOf(r.Network)}
	if p := c.ports; p.last != 0 {
		in, mark := nl.IIFName(c.HostInterface), nl.SetCTMark(c.mark)
		t.Chains = append(t.Chains, nl.Chain{
			Name: nodePortsChain, Type: "filter", Hook: "prerouting", Priority: mangle,
			Rules: []nl.NFRule{
				{in, nl.DPort("tcp", p.first, p.last), mark},
				{in, nl.DPort("udp", p.first, p.last), mark},
				{nl.IIFGroup(nl.OwnGroup), nl.CTMark(c.mark), nl.SetMark(c.mark)},
			},
		})
	}
	if c.IPMasq {
		t.Chains = append(t.Chains, senders(), postrouting(c, n.primaries().addrs...))
	}
	for _, chain := range []nl.Chain{callers(r, n), closed(r)} {
		if len(chain.Rules) > 0 {
			t.Chains = append(t.Chains, chain)
		}
	}
	return t
}

// nodePortsChain is the name of the chain that marks connections to NodePorts.
const nodePortsChain = "prerouting"

// postrouting is the node's chain for packets that it forwards for pods. The chain gives them these addresses of the
// node. It comes before kube-proxy's chain, at 100: otherwise kube-proxy might give the node's address to a packet that
// goes back into a pod.
func postrouting(c Config, addrs ...netip.Addr) nl.Chain {
	chain := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 99, Rules: []nl.NFRule{
		{nl.IIFGroup(nl.OwnGroup), nl.OIFName(c.HostInterface), nl.Masquerade()},
	}}
	for _, a := range addrs {
		chain.Rules = append(chain.Rules, loopRules(a)...)
	}
	return chain
}

// senders is the node's chain for connections that begin by a pod's veth. It drops two kinds of packets:
//
//   - Packets whose source is not the pod's: the node has no route to that address by the same veth. A pod can send
//     them if it may make raw packets (CAP_NET_RAW, which containers have by default). EC2 checks what leaves an ENI,
//     but does not see what stays on the node. For IPv6 the kernel checks nothing.
//   - What a pod wrongly takes for an answer to a looped packet. Such a packet is a datagram, or a later packet of a
//     connection, for a port from 49152 on that no program has open. Otherwise the packet would return to the pod with
//     another port, which a security group may have closed, and the node would track it.
//
// Packets for the node itself pass. For these the kernel looks for the way back as if the node answered from the
// address that was called. A node with several ENIs may have rules by which it answers from an address by the VPC,
// also to pods.
//
// A chain of the type nat sees the first packet of a connection, and no answers. So the chain costs other packets
// nothing, and the node does not track dropped packets.
func senders() nl.Chain {
	// before kube-proxy translates the destination, at -100
	return nl.Chain{Name: "senders", Type: "nat", Hook: "prerouting", Priority: -110,
		Rules: []nl.NFRule{
			{nl.IIFGroup(nl.OwnGroup), nl.ToLocal(), nl.Accept()},
			{nl.IIFGroup(nl.OwnGroup), nl.NoRouteBack(), nl.Count(), nl.Drop()},
		}}
}

// lasting is the part of the node's wiring that CHECK looks for. The chain for callers is not in it, because it depends
// on the CIDRs that the VPC had when the last pod was made. Nor is the chain closed, see [failsClosed].
func lasting(w nl.Wiring) nl.Wiring {
	for i, s := range w {
		if t, is := s.Object.(nl.Table); is {
			t = t.Lasting()
			t.More = true
			w[i].Object = t
		}
	}
	return w
}
