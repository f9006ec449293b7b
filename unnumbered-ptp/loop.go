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
// The pod sends to 172.20.0.10:80 by the veth (eth1). On the node, kube-proxy makes
// that 10.0.2.20:8080, a backend in the VPC. From here only one way is right: out by
// the pod's own ENI, with the pod's own address. The VPC lets nothing else pass, and
// security groups and the backend go by it. So the pod's rule of the node
// ("iif veth lookup T") sends the packet back by the veth, and the pod puts it out by
// its ENI (eth0), to any backend that the pod can reach itself: elsewhere in the VPC,
// on another ENI of the node, or beside it on the same ENI.
//
// The answer is the difficulty. It arrives at eth0, from 10.0.2.20:8080, and the pod
// has no such connection: it must go to the node, where kube-proxy's rewriting is
// remembered. But the pod's other connections, to the VPC directly, must not.
//
// # Redirect
//
// The pod's connections have the ports 32768 to 49151. What is looped goes out by eth0
// from a port 16384 above its own, which the pod takes for nothing else
// (ip_local_port_range, and ip_local_reserved_ports in case that is changed); so an
// answer can be told by its port. The node sees to it that what it sends back comes
// from one of the pod's ports, as it nearly always does (nft: "rt nexthop L snat to
// :32768-49151"), and two programs of BPF in the pod do the rest:
//
//	eth1: what the node sends to the loop's MAC address goes out by eth0, by the
//	      pod's routes, its port 16384 higher. (The node's routes for that lead to a
//	      next hop L that does not exist and has that MAC address.)
//	eth0: what is for a port from 49152 on, and no socket of the pod awaits, goes to
//	      the node, its port 16384 lower. All else passes, after a few comparisons.
//
// Neither meets the pod's routing, forwarding or netfilter, so that the pod tracks no
// connections: not those to services, and not the direct ones.
//
// A server in the pod may listen on any port, and on those too: the programs ask for
// the socket that a packet is for, see [nl.Splice]. Where there is none to find,
// because something in the pod translates TCP from such a port to another, as sidecars
// do, they remember the connection by its beginning, among 16,384 things that they
// remember for all pods of a node (a thousand for each where no BPF file system is).
//
// The port depends on the pod's own alone. So a backend that remembers a connection
// which it has closed, for a minute, finds the next one from that port to be a later
// one, as without a service (RFC 9293, section 3.6.1, MAY-2). One from a port at random
// would often be refused and tried again a second later, and a client could not make
// a thousand connections a second.
//
// ICMP errors about looped packets, above all that a path's MTU is smaller, go to the
// node as well, and from there to the pod as errors about its connection to the
// service.
//
// What it costs: the pod has 16,384 ports of its own where Linux has 28,232. A pod that
// needs more sets the sysctl ip_local_port_range, and still keeps off the loop's. The
// loop has as many, for each backend. They do not run out before the pod's own do: the
// node's entry for a connection ends when the pod uses the port again towards the
// service, so there are never more of them than the pod has ports, for each service
// that has the backend. A program that binds a port from 49152 on itself, to connect
// from it directly to the very backend that a looped connection uses from that port,
// breaks one of the two. And a port from 49152 on that nobody has open refuses nothing but
// what begins a connection of TCP: the node drops a datagram for it, see senders.go. The same
// happens to datagrams that answer a container within a container (Docker in Docker, kind),
// which calls the VPC by the pod's address, from whatever port it has. Its connections of TCP
// are known by their first answer, as nothing looped has begun them; but it waits in vain for
// a server that the pod has called by a service from the port which stands for that.
//
// Services over SCTP do not pass; they need masquerade.
//
// # Masquerade
//
// What the original does, and what works without BPF: the node masquerades the packet
// on its way back into the pod, so that the answer comes to the node; and the pod
// masquerades it once more on its way out, so that nobody sees the node's address on
// the pod's ENI. It works for every port and protocol, and makes every pod track all
// of its connections.
//
// # None
//
// The node does not send the packet back, but on to the backend itself, from its own
// address. So the backend and the security groups see the node, and so do the pods that
// are called at a NodePort, whoever calls. In return there is nothing to tell at eth0: a
// direct packet costs what it does by any ipvlan, and one to a service, which does not pass
// through the pod a second time, 5 % less. It is for those whose services do not ask who calls,
// or who have something else in the place of services.
//
// # All
//
// A backend that is the very pod that calls gets the packet with the node's address,
// because a pod does not take one from another with its own.
//
// What serves all pods serves all kinds, told apart by the next hop and a table, so that
// pods from before an upgrade or a change of the configuration go on; only, between one that
// has a loop and one on the same node that has none, services see the node. But CHECK does
// not take one without a loop for what it is to be where the configuration wants one.
//
// Who calls a pod by the node is another matter, see callers.go.
const (
	redirect   = "redirect"
	masquerade = "masquerade"
	none       = "none"
)

// loopMAC is to the node the MAC address of the loop's next hops, on every veth.
// They are addresses that nobody else has.
const loopMAC = "02:00:00:00:00:48"

var loopVia4, loopVia6 = netip.MustParseAddr("169.254.72.1"), netip.MustParseAddr("fe80::72")

func loopVia(v6 bool) netip.Addr {
	if v6 {
		return loopVia6
	}
	return loopVia4
}

// loops are the loops that a pod may get, of which it gets the first that the kernel can do.
func (c Config) loops() []string {
	switch {
	case !c.IPMasq:
		return []string{""}
	case c.ServiceLoop != "":
		return []string{c.ServiceLoop}
	}
	return []string{redirect, masquerade}
}

// Loopless says whether services see the node in the place of its pods, and pods the node in
// the place of who calls them by a service.
func (c Config) Loopless() bool { return c.IPMasq && c.ServiceLoop == none }

// anyLoop are the loops that a pod may have, first those that it would get today.
func (c Config) anyLoop() []string {
	all := c.loops()
	for _, l := range []string{redirect, masquerade, ""} {
		if !slices.Contains(all, l) && (l != "" || !c.IPMasq) {
			all = append(all, l)
		}
	}
	return all
}

// anyPair are the pod as it may be: with any loop, and with callers or without.
func (c Config) anyPair(p pair) (all []pair) {
	for _, loop := range c.anyLoop() {
		for _, callers := range []bool{c.KeepCaller, !c.KeepCaller} {
			p.loop, p.callers = loop, callers
			all = append(all, p)
		}
	}
	return all
}

// loopSupported says why no pod would get the loop that the configuration asks for.
func (c Config) loopSupported() error {
	if !slices.Equal(c.loops(), []string{redirect}) {
		return nil
	}
	return nl.Splice{MAC: loopMAC, Mark: c.mark}.Supported() // with a mark it is all that a pod may get
}

// podLoop is what the pod has of the loop.
func podLoop(r *plugin.Request[Config], p pair) (objects []nl.Object) {
	veth := r.Config.ContainerInterface
	switch p.loop {
	case redirect:
		s := nl.Splice{ENI: r.IfName, Veth: veth, MAC: loopMAC}
		if p.callers {
			s.Mark = r.Config.mark
		}
		objects = append(objects, s,
			nl.Sysctl{Key: "net/ipv4/ip_local_port_range", Value: fmt.Sprintf("%d %d", nl.SpliceOwn, nl.SpliceFirst-1)}, // of IPv6 too
			nl.Sysctl{Key: "net/ipv4/ip_local_reserved_ports", Value: fmt.Sprintf("%d-65535", nl.SpliceFirst)})
	case masquerade:
		if p.has(false) {
			objects = append(objects, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"})
		}
		if p.has(true) {
			objects = append(objects, nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
		}
		t := nl.Table{Family: "inet", Name: nl.OwnTable, Chains: []nl.Chain{{
			Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.IIFName(veth), nl.OIFName(r.IfName), nl.Masquerade()}},
		}}}
		if p.callers {
			t.Chains = append(t.Chains, markCallers(r.Config)...)
		}
		objects = append(objects, t)
	}
	return objects
}

// loopRoutes send what came from the pod, and is for the VPC, back to the pod, if it has a
// loop.
//
// The rule also satisfies a node that checks sources (rp_filter, which systemd
// sets): the answer comes from the pod with the backend's address for its source,
// and of a packet to forward the kernel asks for the way back as if it had come in
// by the link that it is to go out by (fib_validate_source), which is the veth.
func loopRoutes(r *plugin.Request[Config], p pair, table uint32) (objects []nl.Object) {
	switch p.loop {
	case none:
		return looplessRoutes(p)
	case redirect:
		objects = redirectRoutes(p, table)
	}
	looped := byENI(r, p)
	for _, dst := range looped {
		via, ok := p.first(dst.Addr().Is6())
		if !ok {
			continue
		}
		route := nl.Route{Dst: dst, Via: via, Dev: p.veth.Name, Table: table, Protocol: nl.RouteProtocol}
		if p.loop == redirect {
			route.Via, route.OnLink = loopVia(dst.Addr().Is6()), dst.Addr().Is4()
			if p.mtu < p.veth.MTU { // the program on eth1 tells nobody that a packet is too big
				route.MTU = p.mtu
			}
		}
		objects = append(objects, route)
	}
	for _, v6 := range p.families() {
		objects = append(objects, nl.Rule{Pref: prefPod, IIF: p.veth.Name, Table: table, IPv6: v6, Protocol: nl.RouteProtocol})
	}
	for _, dst := range p.byHost(r.Config) {
		if slices.ContainsFunc(looped, dst.Overlaps) { // the node sends it on itself
			objects = append(objects, nl.Rule{Pref: prefHost, IIF: p.veth.Name, To: dst, Table: unix.RT_TABLE_MAIN, Protocol: nl.RouteProtocol})
		}
	}
	return objects
}

// redirectRoutes are the next hops of the loop, and the way to the pod itself, which
// is none of them.
func redirectRoutes(p pair, table uint32) (objects []nl.Object) {
	for _, v6 := range p.families() {
		objects = append(objects, nl.Neigh{Addr: loopVia(v6), MAC: loopMAC, Dev: p.veth.Name})
	}
	for _, a := range p.addrs {
		objects = append(objects, nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: p.veth.Name, Table: table, Protocol: nl.RouteProtocol})
	}
	return objects
}

// tableLoopless is the node's table of the pods that have no loop: what is for them goes
// straight to them, whoever it comes from. Else the answers of a pod that has one would be
// looped; and a node that checks sources would ask for the way back as if the packet had come
// in by that pod's veth (see [loopRoutes]), and drop it. No pod's own table has its number.
const tableLoopless = 1<<31 + 72

// looplessRoutes lead to a pod without a loop.
func looplessRoutes(p pair) (objects []nl.Object) {
	for _, a := range p.addrs {
		objects = append(objects, nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: p.veth.Name, Table: tableLoopless, Protocol: nl.RouteProtocol, Replace: true})
	}
	return objects
}

// supersede deletes from [tableLoopless] what leads to the addresses of a pod that has a loop: a
// pod that had them before, and was never deleted, or this one from before it had a loop.
func (s *scene) supersede(p pair) error {
	if p.loop == none {
		return nil
	}
	var w nl.Wiring
	for _, a := range p.addrs {
		w = append(w, nl.Step{NS: s.host, Object: nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Table: tableLoopless, Protocol: nl.RouteProtocol}})
	}
	return w.Del()
}

// loopRules are the node's part for all pods of a family, of which it has address a.
//
// What is not sent on by a next hop of the loop, and was rewritten, goes to a pod
// that masquerades, or back to the pod that it is from, or from or to one that has no loop. A
// masquerade would look for an address on the veth, which has none, and take that of any link.
func loopRules(a netip.Addr) []nl.NFRule {
	via := nl.NextHop(loopVia(a.Is6()))
	return []nl.NFRule{
		{via, nl.L4Proto("tcp"), nl.SNATPorts(nl.SpliceOwn, nl.SpliceFirst-1)},
		{via, nl.L4Proto("udp"), nl.SNATPorts(nl.SpliceOwn, nl.SpliceFirst-1)},
		{nl.IIFGroup(nl.OwnGroup), nl.OIFGroup(nl.OwnGroup), nl.CTStatusDNAT(), nl.SNAT(a)},
	}
}
