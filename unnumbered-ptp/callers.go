// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A caller is whoever calls a pod by the node, at a NodePort of a service that keeps his
// address (externalTrafficPolicy: Local). The node translates only the address that he has
// called, to the pod's: he reaches the pod by the veth, as himself. A caller of IPv4 from
// the internet is answered by the veth, too, which is the pod's default route. But to one in
// the VPC, and to any of IPv6, the pod's routes lead by its ENI, and an answer from there is
// from nobody that he has called. It has to go back by the node, which remembers what it has
// translated.
//
// So the node gives these callers its own address, and the pod answers the node. It costs
// the pod nothing.
//
// # keepCaller
//
// A pod that is to see them as themselves has to know what calls it by the veth. That is
// marked (nodePortMark), the pod's sockets answer with the mark, and by a rule what bears it
// leaves by the veth. What comes by the ENI bears none.
//
// It has to be asked for, because of what it costs. A namespace with a rule of its own looks
// for each route in two tables, and for the way back of what comes in as well. TCP does so a
// few times for a connection, which makes a direct one of a single request 4 to 5 % dearer,
// and UDP for each datagram that an unconnected socket sends or gets: 3 to 6 %. A program at
// eth0's egress in the place of the rule would cost each packet that leaves directly up to 1 %.
//
// With the service loop redirect, the program at eth1 marks what does not go on by eth0,
// and the kernel gives the mark of the packet that begins a connection of TCP to its
// socket (tcp_fwmark_accept). The mark does nothing to sockets that there are: what
// services answer to the pod may bear it. What is refused is refused without a socket, and
// so by the ENI: who calls a port on which nobody listens waits in vain. The same goes for
// a server that sets a mark itself (SO_MARK). A socket of UDP that answers many has no
// mark. A program at the routes by eth0 could give it to its datagrams, in a table for UDP
// that would have to have all routes of the pod's once more, whoever adds them. So by UDP
// the pod sees the node.
//
// With masquerade the pod tracks its connections. Those that begin by the veth have the
// mark, and so has what belongs to them, TCP or UDP, with a socket or without.

// prefCaller and tableCaller are the rule and the table of a pod for what bears the mark:
// after its own addresses, before all else that is usual.
const (
	prefCaller  = 512
	tableCaller = 72
)

// podCallers has the pod answer by the veth whatever is marked. The marks are the loop's
// part, see podLoop.
func podCallers(r *plugin.Request[Config], p pair, n node) (objects []nl.Object) {
	if !p.callers || p.loop == "" {
		return nil
	}
	veth, mark := r.Config.ContainerInterface, r.Config.mark
	if p.loop == redirect {
		objects = append(objects, nl.Sysctl{Key: "net/ipv4/tcp_fwmark_accept", Value: "1"}) // of IPv6 too
	}
	if p.has(false) {
		// Else a check of sources, rp_filter, wants the caller to come by the ENI.
		objects = append(objects, nl.Sysctl{Key: conf4(veth) + "src_valid_mark", Value: "1"})
	}
	for _, v6 := range p.families() {
		a, ok := n.primary(v6)
		if !ok {
			continue
		}
		objects = append(objects,
			nl.Route{Dst: everywhere(v6), Via: a, Dev: veth, Table: tableCaller, Protocol: nl.RouteProtocol},
			nl.Rule{Pref: prefCaller, IPv6: v6, Mark: mark, Mask: mark, Table: tableCaller, Protocol: nl.RouteProtocol})
	}
	return objects
}

// callerRules are the pod's rules, to delete them. Their routes go with the veth.
func callerRules(r *plugin.Request[Config], pod *nl.NS) (w nl.Wiring) {
	if !r.Config.KeepCaller {
		return nil
	}
	for _, v6 := range []bool{false, true} {
		w = append(w, nl.Step{NS: pod, Object: nl.Rule{Pref: prefCaller, IPv6: v6, Table: tableCaller, Protocol: nl.RouteProtocol}})
	}
	return w
}

// mangle is the priority of what sets marks: before addresses are translated.
const mangle = -150

// markCallers is netfilter's part in a pod that tracks its connections: what begins by
// the veth goes on by it. What the node has sent back, and leaves by the ENI, is no call.
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

// callersChain is the name of callers' chain.
const callersChain = "callers"

// callers is the node's chain for those to whom it gives its own address. It comes before
// the rules for others.
func callers(r *plugin.Request[Config], n node) nl.Chain {
	chain, c := nl.Chain{Name: callersChain, Type: "nat", Hook: "postrouting", Priority: 98}, r.Config
	if !c.IPMasq || c.ports.last == 0 || c.KeepCaller && !slices.Contains(c.loops(), redirect) {
		return chain
	}
	rule := nl.NFRule{nl.IIFName(c.HostInterface), nl.OIFGroup(nl.OwnGroup), nl.CTMark(c.mark)}
	if c.KeepCaller {
		rule = append(rule, nl.L4Proto("udp"))
	}
	vpc := slices.DeleteFunc(destinations(r.Prev), func(dst netip.Prefix) bool { return dst.Addr().Is6() })
	if c.DefaultRoute == byVPC || c.Loopless() {
		vpc = []netip.Prefix{everywhere(false)}
	}
	if a, ok := n.primary(false); ok && len(vpc) > 0 {
		chain.Rules = append(chain.Rules, append(slices.Clip(rule), nl.SAddr(vpc...), nl.SNAT(a)))
	}
	if a, ok := n.primary(true); ok {
		chain.Rules = append(chain.Rules, append(slices.Clip(rule), nl.SNAT(a)))
	}
	return chain
}

// lasting leaves of the node's wiring what CHECK looks for: not what depends on the
// VPC's CIDRs as they were when the last pod came.
func lasting(w nl.Wiring) nl.Wiring {
	for i, s := range w {
		if t, is := s.Object.(nl.Table); is {
			t.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c nl.Chain) bool { return c.Name == callersChain })
			t.More = true
			w[i].Object = t
		}
	}
	return w
}
