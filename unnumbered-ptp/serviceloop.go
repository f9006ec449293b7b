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

// The service loop is the path of a pod's packet to a Service, and of the answer. docs/design.md explains its reasons
// and limits, and nodeport.go explains how other hosts call a pod through the node.
//
// An example: the pod sends a packet to the Service 172.20.0.10:80 through the veth (eth1). On the node, kube-proxy
// changes the destination to 10.0.2.20:8080, a backend in the VPC. The pod's rule on the node ("iif veth lookup T")
// sends the packet back through the veth. The pod sends the packet out through its own ENI (eth0).
//
// The answer arrives at eth0. It must go to the node, which remembers what kube-proxy has changed. But the answers to
// the pod's direct connections to the VPC must stay in the pod.
//
// On the node, the kinds of loops differ only in the next hops or the tables of the routes to the pod. So pods continue
// to work after an upgrade, and after a change of the configuration.
const (
	// redirect uses two BPF programs in the pod. They recognize the answers to looped packets by the port (see
	// [nl.Splice]). The pod's own connections have the ports 32768 to 49151. A looped packet leaves through eth0 with a
	// source port that is 16384 higher.
	redirect = "redirect"
	// masquerade is the loop of the original plugin, without BPF. The node masquerades the packet on its way back into
	// the pod, and the pod masquerades it again on its way out. So the answer comes to the node.
	masquerade = "masquerade"
	// none is no loop: the node sends the packet to the backend, with the node's address as the source.
	none = "none"
)

// loopMAC is the MAC address of the loop's next hops. The node has neighbours with this address on every veth. No
// device has this address, and no link has the addresses of the next hops.
const loopMAC = "02:00:00:00:00:48"

var loopVia4, loopVia6 = netip.MustParseAddr("169.254.72.1"), netip.MustParseAddr("fe80::72")

func loopVia(f nl.Family) netip.Addr { return nl.ByFamily(f, loopVia4, loopVia6) }

// loopsOfNewPod returns kinds of loops: a new pod gets the first kind that the kernel supports.
func (c Config) loopsOfNewPod() []string {
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

// checkHooks fails if the pod's link to the VPC has no hooks (mode l3s), and the pod needs hooks for packets that
// arrive through this link.
func (s *scene) checkHooks() error {
	switch {
	case !s.unhooked:
	case s.Config.Loops():
		return plugin.Errorf(plugin.CodeInvalid, `use mode "l2", or set serviceLoop to "none"`,
			`mode "l3s": a service loop sees no packets that arrive by %s`, s.IfName)
	case s.Config.RuntimeConfig.Bandwidth.IngressRate > 0:
		return plugin.Errorf(plugin.CodeInvalid, `use mode "l2", or let another plugin limit the bandwidth`,
			`mode "l3s": a limit of the bandwidth sees no packets that arrive by %s`, s.IfName)
	}
	return nil
}

// Loopless reports whether pods use Services without a service loop. A backend then sees the node's address as the
// source of a call. A pod that is called at a NodePort also sees the node's address.
func (c Config) Loopless() bool { return c.IPMasq && c.ServiceLoop == none }

// possibleLoops returns the kinds of loops that a running pod may have. The kinds for new pods come first.
func (c Config) possibleLoops() []string {
	all := c.loopsOfNewPod()
	for _, l := range []string{redirect, masquerade, ""} {
		if !slices.Contains(all, l) && (l != "" || !c.IPMasq) {
			all = append(all, l)
		}
	}
	return all
}

// possiblePairs returns the forms that a running pod's pair p may have: each possible loop, with and without
// keepCaller.
func (c Config) possiblePairs(p pair) (all []pair) {
	if p.routed {
		return []pair{p}
	}
	for _, loop := range c.possibleLoops() {
		for _, callers := range []bool{c.KeepCaller, !c.KeepCaller} {
			p.loop, p.callers = loop, callers
			all = append(all, p)
		}
	}
	return all
}

// checkLoopSupport fails if no pod could get the loop that the configuration asks for.
func (c Config) checkLoopSupport() error {
	if !slices.Equal(c.loopsOfNewPod(), []string{redirect}) {
		return nil
	}
	return nl.Splice{MAC: loopMAC, Mark: c.mark}.Supported() // with keepCaller, the BPF programs also set the mark
}

// podLoop lists the loop's objects in the pod. Splice.Pod has the lowest 16 bits of the number of the pod's table. No
// other pod gets this number before the node has made 65,536 more links.
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
		if p.hasFamily(nl.IPv4) {
			// A new namespace inherits ip_forward and default/forwarding from the node. These two sysctls may have
			// different values.
			objects = append(objects, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
				forwards4(r.Config.ContainerInterface), forwards4(r.IfName))
		}
		if p.hasFamily(nl.IPv6) {
			objects = append(objects, nl.Sysctl{Key: conf6("all") + "forwarding", Value: "1"})
		}
		return append(objects, podTable(r, p))
	}
	return nil
}

// podTable returns the pod's nftables table for the loop "masquerade".
func podTable(r *request, p pair) nl.Table {
	t := nl.Table{Family: "inet", Name: nl.OwnTable, Chains: []nl.Chain{{
		Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
		Rules: []nl.NFRule{{nl.IIFName(r.Config.ContainerInterface), nl.OIFName(r.IfName), nl.Masquerade()}},
	}}}
	if p.callers {
		t.Chains = append(t.Chains, callerMarkChains(r.Config)...)
	}
	return t
}

// loopRoutes returns the node's routes and rules that send the pod's packets for the VPC back to the pod. For a pod
// without a loop, it returns the result of looplessRoutes.
//
// Because of the pod's rule, the answers also pass the node's check of sources (rp_filter, which systemd sets). An
// answer comes and goes through the veth, with the backend's address as its source. For the check, the kernel looks up
// the route to this source. The incoming link of this lookup is the link through which the answer leaves, so it is the
// veth (fib_validate_source). So the pod's rule applies, and leads to the veth.
func loopRoutes(r *request, p pair, table uint32) (objects []nl.Object) {
	switch p.loop {
	case none:
		return looplessRoutes(p)
	case redirect:
		objects = redirectRoutes(p, table)
	}
	looped := dstsByENI(r, p)
	for _, dst := range looped {
		if route, ok := loopRoute(p, dst, table); ok {
			objects = append(objects, route)
		}
	}
	for _, f := range p.families() {
		objects = append(objects, nl.Rule{Pref: prefPod, Family: f, IIF: p.veth.Name, Table: table,
			Protocol: nl.RouteProtocol})
	}
	for _, dst := range p.dstsByNode(r.Config) {
		if slices.ContainsFunc(looped, dst.Overlaps) { // the node itself forwards packets to dst
			objects = append(objects, nl.Rule{Pref: prefNode, IIF: p.veth.Name, To: dst, Table: unix.RT_TABLE_MAIN,
				Protocol: nl.RouteProtocol})
		}
	}
	return objects
}

// loopRoute returns the route that sends packets to a destination back to the pod, or false if the pod has no address
// of the family.
func loopRoute(p pair, dst netip.Prefix, table uint32) (nl.Route, bool) {
	f := nl.FamilyOf(dst.Addr())
	via := nl.FirstAddr(p.addrs, f)
	route := nl.Route{Dst: dst, Via: via, Dev: p.veth.Name, Table: table, Protocol: nl.RouteProtocol}
	if p.loop == redirect {
		route.Via, route.OnLink = loopVia(f), f == nl.IPv4
		if p.mtu < p.veth.MTU { // the program on eth1 cannot report that a packet is too big
			route.MTU = p.mtu
		}
	}
	return route, via.IsValid()
}

// redirectRoutes returns the neighbours for the next hops of the loop. It also returns the routes to the pod itself.
// These routes have no next hop. A pod that is itself the backend gets its packet with the node's address as the
// source, because a pod accepts no packet from its own address.
func redirectRoutes(p pair, table uint32) (objects []nl.Object) {
	for _, f := range p.families() {
		objects = append(objects, nl.Neigh{Addr: loopVia(f), MAC: loopMAC, Dev: p.veth.Name})
	}
	for _, a := range p.addrs {
		objects = append(objects, nl.Route{Dst: nl.HostPrefix(a), Dev: p.veth.Name, Table: table,
			Protocol: nl.RouteProtocol})
	}
	return objects
}

// tableLoopless is the node's routing table with the routes to pods without a loop. With these routes, the node
// forwards packets from any sender straight to the pods. The routes prevent two faults between a pod L with a loop and
// a pod N without a loop. First, L's rule would lead L's answer to N back to L. Second, the check of the source of N's
// packet to L would use L's rule for the route back (see [loopRoutes]). But L's rule does not lead to N. No pod's own
// table has this number.
const tableLoopless = 1<<31 + 72

func looplessRoutes(p pair) (objects []nl.Object) {
	for _, a := range p.addrs {
		objects = append(objects, nl.Route{Dst: nl.HostPrefix(a), Dev: p.veth.Name, Table: tableLoopless,
			Protocol: nl.RouteProtocol, Replace: true})
	}
	return objects
}

// delLoopless deletes the routes in [tableLoopless] to the addresses of a pod with a loop. The routes may be from an
// earlier pod, or from this pod, if it had no loop before.
func (s *scene) delLoopless(p pair) error {
	if p.loop == none {
		return nil
	}
	var w nl.Wiring
	for _, a := range p.addrs {
		w = append(w, nl.Step{NS: s.nodeNS, Object: nl.Route{Dst: nl.HostPrefix(a), Table: tableLoopless,
			Protocol: nl.RouteProtocol}})
	}
	return w.Del()
}

// loopNATRules returns the node's nftables rules for the loops of all pods in one family. The argument "a" is the
// node's address of this family.
//
// A packet to a next hop of the loop keeps its source address. If [nl.Splice] would not change the source port, a rule
// replaces the port by a port that Splice changes.
//
// The last rule is for packets that do not use a next hop of the loop. If kube-proxy has changed the destination of
// such a packet, the rule makes the node's address the source. These packets go to a pod with the loop "masquerade", or
// back to their sender, or from one pod without a loop to another. The rule cannot be a masquerade: the veth has no
// address, so the kernel would take an address of any link.
func loopNATRules(a netip.Addr) []nl.NFRule {
	via := nl.NextHop(loopVia(nl.FamilyOf(a)))
	return []nl.NFRule{
		{via, nl.L4Proto("tcp"), nl.SNATPorts(nl.SpliceOwn, nl.SpliceFirst-1)},
		{via, nl.L4Proto("udp"), nl.SNATPorts(nl.SpliceOwn, nl.SpliceFirst-1)},
		{nl.IIFGroup(nl.OwnGroup), nl.OIFGroup(nl.OwnGroup), nl.CTStatusDNAT(), nl.SNAT(a)},
	}
}
