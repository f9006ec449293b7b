// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// The service loop is the way of a pod's packet to a Kubernetes service.
//
// The pod sends to 172.20.0.10:80 by the veth (eth1). On the node, kube-proxy changes the
// destination to 10.0.2.20:8080, a backend in the VPC. From here only one way is right: out by
// the pod's own ENI, with the pod's own address. The VPC lets nothing else pass, and security
// groups and the backend decide by that address. So the pod's rule on the node ("iif veth
// lookup T") sends the packet back by the veth. The pod sends it out by its ENI (eth0), to any backend that the pod can
// reach itself. The backend may be elsewhere in the VPC, on another ENI of the node, or beside the pod on the same ENI.
//
// The answer is the difficulty. It arrives at eth0, from 10.0.2.20:8080, and the pod has no
// such connection. It must go to the node, which remembers what kube-proxy has changed. The
// answers to the pod's direct connections to the VPC must not go there.
//
// # Redirect
//
// The pod's own connections have the ports 32768 to 49151. A looped packet leaves by eth0
// with a port that is 16384 higher. The pod uses those ports for nothing else
// (ip_local_port_range, and ip_local_reserved_ports in case that is changed). So its port
// identifies an answer. The node ensures that what it sends back has one of the pod's own
// ports, as it nearly always has (nft: "rt nexthop L snat to :32768-49151"). Two BPF programs
// in the pod do the rest:
//
//	eth1: what the node sends to the loop's MAC address goes out by eth0, by the
//	      pod's routes, with its port 16384 higher. (The node's routes for that lead to
//	      a next hop L that does not exist and has that MAC address.)
//	eth0: what is for a port from 49152 on, and no socket of the pod awaits, goes to
//	      the node, with its port 16384 lower. All else passes after a few comparisons.
//
// These packets do not pass the pod's forwarding or netfilter. So the pod tracks no
// connections, neither to services nor direct ones.
//
// A server in the pod may listen on any port, also from 49152 on: the programs look for the
// socket that a packet is for, see [nl.Splice]. There is no socket if something in the pod
// translates TCP from such a port to another, as sidecars do. Then the programs remember the
// connection by its beginning. They remember up to 4,096 things for each pod, and forget what
// that pod has not used for longest.
//
// The looped port depends on the pod's own port alone. A backend remembers a closed connection for a minute. So it
// accepts the next one from that port as later, as without a service (RFC 9293, section 3.6.1, MAY-2). With random
// ports the backend would often refuse it, the client would try again a second later, and it could not make a thousand
// connections per second.
//
// ICMP errors about looped packets, most often about the MTU of a path, go to the node, too.
// From there they reach the pod as errors about its connection to the service.
//
// The cost: the pod has 16,384 ports of its own where Linux has 28,232. A pod that needs more
// sets the sysctl ip_local_port_range, and the plugin leaves that if it has ports below those of
// the loop, which stay reserved. The loop has 16,384 ports for each backend. The pod's own ports
// end first: the node's entry for a connection ends when the pod uses the port again towards the
// service. So no service that has the backend has more entries than the pod has ports.
//
// The limits, all about ports from 49152 on:
//
//   - A program may bind such a port to connect to the backend of a looped connection that
//     uses the same port. Then one of the two connections breaks.
//   - If no program has the port open, the pod refuses only what begins a TCP connection. The node
//     drops a datagram for it, see [senders].
//   - A container within a container (Docker in Docker, kind) calls the VPC by the pod's
//     address, from any port. Datagrams that answer it are dropped. Its TCP connections are
//     known by their first answer, because nothing looped has begun them. But it waits in vain
//     for a server that the pod has called by a service from the port that this one stands for.
//
// Services over SCTP do not pass; they need masquerade.
//
// # Masquerade
//
// This is what the original does, and it works without BPF. The node masquerades the packet
// on its way back into the pod, so that the answer comes to the node. The pod masquerades it
// once more on its way out, so that no host sees the node's address on the pod's ENI. It works
// for every port and protocol, but every pod tracks all of its connections.
//
// # None
//
// The node does not send the packet back, but to the backend itself, from its own address. So
// the backend and the security groups see the node. The pods that are called at a NodePort see
// the node, too, whoever calls. In return there is nothing to distinguish at eth0: a direct
// packet costs the same as with any ipvlan. A packet to a service costs 5 % less, because it
// does not pass through the pod a second time. This is for services that do not ask who calls,
// and for clusters that use something else instead of services.
//
// # All
//
// If the backend is the calling pod itself, it gets the packet with the node's address. A pod does not accept its own
// address as the source of a packet from another.
//
// What serves all pods serves all three kinds; the next hop and a table distinguish them. So
// pods from before an upgrade, or a change of the configuration, continue to work. Only
// between a pod with a loop and one without, on the same node, services see the node. CHECK
// refuses a pod without a loop where the configuration asks for a loop.
//
// For calls to a pod by the node see nodeport.go.
const (
	redirect   = "redirect"
	masquerade = "masquerade"
	none       = "none"
)

// loopMAC is for the node the MAC address of the loop's next hops, on every veth. No device
// has it, and no link has the next hops' addresses.
const loopMAC = "02:00:00:00:00:48"

var loopVia4, loopVia6 = netip.MustParseAddr("169.254.72.1"), netip.MustParseAddr("fe80::72")

func loopVia(f nl.Family) netip.Addr {
	if f == nl.IPv6 {
		return loopVia6
	}
	return loopVia4
}

// loops are the loops that a pod may get. It gets the first one that the kernel can do.
func (c Config) loops() []string {
	switch {
	case !c.IPMasq:
		return []string{""}
	case c.ServiceLoop != "":
		return []string{c.ServiceLoop}
	}
	return []string{redirect, masquerade}
}

// Loops reports whether pods have a service loop.
func (c Config) Loops() bool { return c.IPMasq && c.ServiceLoop != none }

// hooked fails if the pod is to have what needs the hooks of a link that has none.
func (s *scene) hooked() error {
	const hint = `use mode "l2", or set serviceLoop to "none" and leave limits of what pods receive to other plugins`
	switch {
	case !s.unhooked:
	case s.Config.Loops():
		return plugin.Errorf(plugin.CodeInvalid, hint,
			`mode "l3s": a service loop sees no packets that arrive by %s`, s.IfName)
	case s.Config.RuntimeConfig.Bandwidth.IngressRate > 0:
		return plugin.Errorf(plugin.CodeInvalid, hint,
			`mode "l3s": a limit of the bandwidth sees no packets that arrive by %s`, s.IfName)
	}
	return nil
}

// Loopless reports whether services see the node instead of its pods, and pods see the node
// instead of whoever calls them by a service.
func (c Config) Loopless() bool { return c.IPMasq && c.ServiceLoop == none }

// anyLoop are the loops that a pod may have, first those that it would get now.
func (c Config) anyLoop() []string {
	all := c.loops()
	for _, l := range []string{redirect, masquerade, ""} {
		if !slices.Contains(all, l) && (l != "" || !c.IPMasq) {
			all = append(all, l)
		}
	}
	return all
}

// anyPair are the forms that the pod may have: with any loop, and with callers or without.
func (c Config) anyPair(p pair) (all []pair) {
	if p.routed {
		return []pair{p}
	}
	for _, loop := range c.anyLoop() {
		for _, callers := range []bool{c.KeepCaller, !c.KeepCaller} {
			p.loop, p.callers = loop, callers
			all = append(all, p)
		}
	}
	return all
}

// loopSupported fails if no pod could get the loop that the configuration asks for.
func (c Config) loopSupported() error {
	if !slices.Equal(c.loops(), []string{redirect}) {
		return nil
	}
	return nl.Splice{MAC: loopMAC, Mark: c.mark}.Supported() // with a mark it has all that a pod may get
}

// podLoop is the pod's part of the loop. Its number is that of its table: no other pod of the
// node has the same until the node has made 65,536 more links.
func podLoop(r *request, p pair, table uint32) (objects []nl.Object) {
	switch p.loop {
	case redirect:
		s := nl.Splice{ENI: r.IfName, Veth: r.Config.ContainerInterface, MAC: loopMAC, Pod: uint16(table)}
		if p.callers {
			s.Mark = r.Config.mark
		}
		return append(objects, s,
			nl.LocalPorts{First: nl.SpliceOwn, Last: nl.SpliceFirst - 1},
			nl.Sysctl{Key: "net/ipv4/ip_local_reserved_ports", Value: fmt.Sprintf("%d-65535", nl.SpliceFirst),
				Also: true})
	case masquerade:
		if p.has(nl.IPv4) {
			objects = append(objects, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
		}
		if p.has(nl.IPv6) {
			objects = append(objects, nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
		}
		return append(objects, podTable(r, p))
	}
	return nil
}

// podTable is the pod's table of netfilter for the loop masquerade.
func podTable(r *request, p pair) nl.Table {
	t := nl.Table{Family: "inet", Name: nl.OwnTable, Chains: []nl.Chain{{
		Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
		Rules: []nl.NFRule{{nl.IIFName(r.Config.ContainerInterface), nl.OIFName(r.IfName), nl.Masquerade()}},
	}}}
	if p.callers {
		t.Chains = append(t.Chains, markCallers(r.Config)...)
	}
	return t
}

// loopRoutes send packets that came from the pod, and are for the VPC, back to the pod, if it
// has a loop.
//
// The rule also satisfies a node that checks sources (rp_filter, which systemd sets). The
// answer comes from the pod, with the backend's address as its source. For a packet to
// forward, the kernel looks for the way back as if the packet had come in by the link by
// which it leaves (fib_validate_source). That link is the veth.
func loopRoutes(r *request, p pair, table uint32) (objects []nl.Object) {
	switch p.loop {
	case none:
		return looplessRoutes(p)
	case redirect:
		objects = redirectRoutes(p, table)
	}
	looped := byENI(r, p)
	for _, dst := range looped {
		if route, ok := loopRoute(p, dst, table); ok {
			objects = append(objects, route)
		}
	}
	for _, f := range p.families() {
		objects = append(objects, nl.Rule{Pref: prefPod, Family: f, IIF: p.veth.Name, Table: table,
			Protocol: nl.RouteProtocol})
	}
	for _, dst := range p.byNode(r.Config) {
		if slices.ContainsFunc(looped, dst.Overlaps) { // the node forwards it itself
			objects = append(objects, nl.Rule{Pref: prefNode, IIF: p.veth.Name, To: dst, Table: unix.RT_TABLE_MAIN,
				Protocol: nl.RouteProtocol})
		}
	}
	return objects
}

// loopRoute sends packets for a destination back to the pod, if the pod has its family.
func loopRoute(p pair, dst netip.Prefix, table uint32) (nl.Route, bool) {
	f := nl.FamilyOf(dst.Addr())
	via, ok := first(p.addrs, f)
	route := nl.Route{Dst: dst, Via: via, Dev: p.veth.Name, Table: table, Protocol: nl.RouteProtocol}
	if p.loop == redirect {
		route.Via, route.OnLink = loopVia(f), f == nl.IPv4
		if p.mtu < p.veth.MTU { // the program on eth1 cannot report that a packet is too big
			route.MTU = p.mtu
		}
	}
	return route, ok
}

// redirectRoutes are the next hops of the loop, and the way to the pod itself, which does not
// use them.
func redirectRoutes(p pair, table uint32) (objects []nl.Object) {
	for _, f := range p.families() {
		objects = append(objects, nl.Neigh{Addr: loopVia(f), MAC: loopMAC, Dev: p.veth.Name})
	}
	for _, a := range p.addrs {
		objects = append(objects, nl.Route{Dst: single(a), Dev: p.veth.Name, Table: table, Protocol: nl.RouteProtocol})
	}
	return objects
}

// tableLoopless is the node's table of the pods without a loop. What is for them goes straight
// to them, whoever sent it. Otherwise the node would loop what a pod with a loop answers them.
// And if it checks sources, it would look for the way back as if the packet had come in by that pod's veth (see
// [loopRoutes]), and drop it. No pod's own table has this number.
const tableLoopless = 1<<31 + 72

// looplessRoutes lead to a pod without a loop.
func looplessRoutes(p pair) (objects []nl.Object) {
	for _, a := range p.addrs {
		objects = append(objects, nl.Route{Dst: single(a), Dev: p.veth.Name, Table: tableLoopless,
			Protocol: nl.RouteProtocol, Replace: true})
	}
	return objects
}

// supersede deletes from [tableLoopless] the routes to the addresses of a pod with a loop. A
// pod that had the addresses before may have left them, or this pod before it got a loop.
func (s *scene) supersede(p pair) error {
	if p.loop == none {
		return nil
	}
	var w nl.Wiring
	for _, a := range p.addrs {
		w = append(w, nl.Step{NS: s.nodeNS, Object: nl.Route{Dst: single(a), Table: tableLoopless,
			Protocol: nl.RouteProtocol}})
	}
	return w.Del()
}

// loopRules are the node's part for all pods of a family in which its address is a.
//
// Some packets do not use a next hop of the loop, although their destination was changed. They go to a pod that
// masquerades, back to the pod that sent them, or between pods without a loop. It gets the node's address. A masquerade
// would look for an address on the veth, which has none, and take one of any link.
func loopRules(a netip.Addr) []nl.NFRule {
	via := nl.NextHop(loopVia(nl.FamilyOf(a)))
	return []nl.NFRule{
		{via, nl.L4Proto("tcp"), nl.SNATPorts(nl.SpliceOwn, nl.SpliceFirst-1)},
		{via, nl.L4Proto("udp"), nl.SNATPorts(nl.SpliceOwn, nl.SpliceFirst-1)},
		{nl.IIFGroup(nl.OwnGroup), nl.OIFGroup(nl.OwnGroup), nl.CTStatusDNAT(), nl.SNAT(a)},
	}
}
