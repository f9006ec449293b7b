// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A routed pod has no slave of its ENI. Its pair is its only link, with its address, and the node forwards all of its
// packets: from and to the VPC, too. So programs that filter or watch what the node forwards see them, such as an
// engine of NetworkPolicy. The pool says so by the key dataPath, and the result of the ipam plugin by its form: see
// [plugin.Routed]. The layout of pod and node is that of the first proposal for amazon-vpc-cni-k8s:
//
//   - In the pod the address stands alone (/32, /128). The default routes lead to 169.254.1.1 and fe80::1. No link
//     has these addresses, and the pod has the MAC address of the node's end for them.
//   - The node has a route to each pod, and a routing table for each ENI with what pods reach by it.
//
// The proposal has two rules for each pod, and the kernel compares a packet with one rule after the other. Here no
// list grows with the number of pods. One table has the routes to pods. What comes from a pod gets a mark that stands
// for the ENI. A map of nftables finds the mark by the group of the pod's link. Each ENI has one rule for its mark,
// and what has no mark skips these rules.
//
// For each packet that it forwards, the kernel also looks for the way back to the sender. What arrives by the ENI has
// its mark, too, so that the kernel finds the ENI at once.
//
// An answer gets no mark if the destination of its connection was translated. A call to a NodePort or a hostPort has
// come by the boot ENI, and its answer must leave by that.
//
// The pod's address is the source in the VPC and on the node. The boot ENI's address is the source of what leaves by
// the boot ENI to destinations outside of the VPC.

// The next hops of a routed pod.
var hop4, hop6 = netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")

func hop(f nl.Family) netip.Addr {
	if f == nl.IPv6 {
		return hop6
	}
	return hop4
}

// toHop reports whether a route of a pod is its default route to the next hop.
func toHop(r nl.Route) bool { return r.Dst.Bits() == 0 && r.Via == hop(nl.FamilyOf(r.Dst.Addr())) }

// routedPod reports whether the attachment belongs to a routed pod.
func (r *request) routedPod() bool { return r.eni != "" }

// senderOf returns the address of IPv4 that prevResult has at the link of the ENI, or else the pod's own. A runtime
// keeps the final result, which has the pod's alone.
func senderOf(prev *types100.Result, pod []netip.Addr) netip.Addr {
	all := plugin.NIC{IPs: plugin.AtFirst(prev)}.Addrs()
	a, _ := first(append(all, pod...), nl.IPv4)
	return a
}

// readRouted reads the link of the ENI. The pod must have no network of ours before.
func (s *scene) readRouted() (err error) {
	if s.eni, err = s.nodeNS.SeenLink(s.request.eni); err != nil {
		return fmt.Errorf("ENI: %w", err)
	}
	s.podMTU = s.eni.MTU
	links, err := s.podNS.Links()
	s.linked = slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == s.IfName })
	if err == nil && nl.OtherFirst(links, nl.PodGroup(s.Digest())) {
		return plugin.Errorf(plugin.CodeRefused,
			`serve further networks of a pod from a pool with dataPath "ipvlan"`,
			`dataPath "veth": the pod has another network of ours already, and this path is for the first one`)
	}
	return err
}

// route turns the pair into the pair of a routed pod.
func (p *pair) route(s *scene) {
	p.routed, p.callers = true, false
	p.veth.Peer, p.veth.MTU = s.IfName, cmp.Or(s.Config.MTU, s.eni.MTU)
	p.veth.Group = nl.RoutedGroup(s.eni.Index)
	if name := engineName(s.request); name != "" {
		p.named(name, p.veth.Name)
	}
}

// route adds everything of a routed pod except its pair. A kernel without BPF has no filters.
func (s *scene) route(p pair) (err error) {
	if err := install(s.eniWiring(p)); err != nil {
		return err
	}
	for _, p.loop = range []string{"", masquerade} {
		if err = s.routedPodWiring(p, s.node).Add(); !errors.Is(err, nl.ErrNoBPF) {
			break
		}
	}
	return err
}

// routedWiring is what an ADD makes for a routed pod after the pair.
func (s *scene) routedWiring(p pair, n node) nl.Wiring {
	return append(s.eniWiring(p), s.routedPodWiring(p, n)...)
}

// routedPodWiring is what belongs to one routed pod.
func (s *scene) routedPodWiring(p pair, n node) nl.Wiring {
	inPod := slices.Concat(s.routedLink(p), metadataBlock(s.request, p),
		s.Config.RuntimeConfig.Bandwidth.objects(s.podLinks()))
	return append(steps(s.podNS, inPod), steps(s.nodeNS, append(nodeRoutes(p, n), looplessRoutes(p)...))...)
}

// routedLink are the addresses and the routes in the pod.
func (s *scene) routedLink(p pair) (objects []nl.Object) {
	dev := s.IfName
	if p.has(nl.IPv6) { // as ipvlan does: runtimes disable it, and a pod reaches its own address by lo
		objects = append(objects, nl.Sysctl{Key: conf6("lo") + "disable_ipv6", Value: "0"},
			nl.Sysctl{Key: conf6(dev) + "disable_ipv6", Value: "0"})
	}
	for _, a := range p.addrs {
		objects = append(objects, nl.Addr{Prefix: single(a), Dev: dev, NoDAD: a.Is6()})
	}
	for _, f := range p.families() {
		objects = append(objects, nl.Neigh{Addr: hop(f), MAC: p.veth.MAC, Dev: dev},
			nl.Route{Dst: f.Everywhere(), Via: hop(f), Dev: dev, OnLink: f == nl.IPv4, Protocol: nl.RouteProtocol})
	}
	return objects
}

// routedResult is prevResult with both ends of the pair. The link of the ENI stays the first interface: CHECK needs it.
func routedResult(r *request, p pair) *types100.Result {
	res := *r.Prev
	own := &types100.Interface{Name: p.veth.Peer, Mac: p.veth.PeerMAC, Mtu: p.veth.MTU, Sandbox: r.NetNS}
	near := &types100.Interface{Name: p.veth.Name, Mac: p.veth.MAC, Mtu: p.veth.MTU}
	res.Interfaces = []*types100.Interface{r.Prev.Interfaces[0], own, near}
	res.IPs = r.nics[0].IPs
	return &res
}
