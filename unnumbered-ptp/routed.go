// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A routed pod has no slave: its pair is its only link, and has the pod's address. The node forwards all its packets,
// even those from and to the VPC. So a program that filters forwarded packets, such as an engine of NetworkPolicy, sees
// them all. The pods of a pool with "dataPath": "veth" are routed. The form of the ipam plugin's result shows whether a
// pod is routed: see [plugin.Routed]. The addresses and routes of pod and node follow the proposal with which
// amazon-vpc-cni-k8s began (its docs/cni-proposal.md):
//
//   - In the pod, the address has no subnet (/32, /128). The default routes lead to 169.254.1.1 and fe80::1. No link
//     has these addresses: in the pod, both are neighbours with the MAC address of the node's end.
//   - The node has a route to each pod. It also has a routing table for each ENI, with the destinations that pods reach
//     through this ENI.
//
// The proposal has two rules for each pod, which the kernel compares one after the other. In our design, no list of
// rules grows with the number of pods: one table has the routes to all routed pods. A packet from a pod gets a mark
// that stands for the ENI. A map of nftables leads from the group of the incoming link to this mark. Each ENI has one
// rule for its mark, and packets without a mark skip these rules.
//
// Packets that arrive through the ENI also get the mark. With the mark, the kernel finds the ENI without a search when
// it looks for the route back to the sender.
//
// An answer gets no mark if the destination of its connection was translated. For example, a call to a NodePort or a
// hostPort has come through the boot ENI, and its answer must leave there.
//
// Packets of the pod to the VPC and to the node keep the pod's address. Packets that leave through the boot ENI to
// destinations outside of the VPC get the boot ENI's address.

var hop4, hop6 = netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")

func nextHop(f nl.Family) netip.Addr { return nl.ByFamily(f, hop4, hop6) }

func isToNextHop(r nl.Route) bool {
	return r.Dst.Bits() == 0 && r.Via == nextHop(nl.FamilyOf(r.Dst.Addr()))
}

func (r *request) isRoutedPod() bool { return r.eni != "" }

// senderOf returns the IPv4 address of the ENI's link in prevResult. If prevResult has no such address, senderOf
// returns the pod's own IPv4 address. The final result of the ADD, which a CHECK gets, has only the pod's address.
func senderOf(prev *types100.Result, pod []netip.Addr) netip.Addr {
	all := plugin.NIC{IPs: plugin.AtFirst(prev)}.Addrs()
	return nl.FirstAddr(append(all, pod...), nl.IPv4)
}

// readRouted reads the link of the ENI. It returns an error if this plugin has connected the pod to another network.
func (s *scene) readRouted() (err error) {
	s.eni, err = s.nodeNS.SeenLink(s.request.eni)
	if errors.Is(err, fs.ErrNotExist) {
		if p, there := s.findPair(); there && s.findENI(p) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("find the ENI's link: %w", err)
	}
	s.podMTU = s.eni.MTU
	links, err := s.podNS.Links()
	s.linked = slices.ContainsFunc(links, func(l nl.Link) bool { return l.Name == s.IfName })
	if err == nil && nl.OtherFirst(links, nl.PodGroup(s.Digest())) {
		return plugin.Errorf(plugin.CodeRefused,
			`serve further networks of a pod from a pool with dataPath "ipvlan"`,
			`dataPath "veth": the pod already has another network of this plugin, and this data path is only for the `+
				"first network of a pod")
	}
	return err
}

// findENI finds the link of the pod's ENI by the group of the pod's pair. The name in prevResult may be gone, or may
// belong to another ENI's link. udev may rename the link of a new ENI after the first ADD (systemd 253 and later, Linux
// 6.2 and later). But the runtime keeps the result with the old name.
func (s *scene) findENI(p pair) (found bool) {
	near, err := s.nodeNS.LinkByName(p.veth.Name)
	index, routed := nl.OfRoutedGroup(near.Group)
	if err != nil || !routed || near.Group == p.veth.Group {
		return false
	}
	eni, err := s.nodeNS.LinkByIndex(index)
	if err == nil {
		s.eni, s.podMTU = eni, eni.MTU
	}
	return err == nil
}

// runningPair finds the pair of a running pod as findPair does. runningPair also finds the pair if the ENI's link has
// another name now (see findENI).
func (s *scene) runningPair() (p pair, exists bool) {
	if p, exists = s.findPair(); exists && p.routed && s.findENI(p) {
		return s.findPair()
	}
	return p, exists
}

func (p *pair) makeRouted(s *scene) {
	p.routed, p.callers, p.veth.Forwards = true, false, true
	p.veth.Peer, p.veth.MTU = s.IfName, cmp.Or(s.Config.MTU, s.eni.MTU)
	p.veth.Group = nl.RoutedGroup(s.eni.Index)
	if name := engineName(s.request); name != "" {
		p.setName(name, p.veth.Name)
	}
}

// addRouted adds all objects of a routed pod except its pair. On a kernel without BPF, it adds no filters, and fails
// only if blockInstanceMetadata is true.
func (s *scene) addRouted(p pair) (err error) {
	if err := s.installENIWiring(p); err != nil {
		return err
	}
	for _, p.loop = range []string{"", masquerade} {
		if err = s.routedPodWiring(p, s.node).Add(); !errors.Is(err, nl.ErrNoBPF) {
			break
		}
	}
	return err
}

func (s *scene) routedWiring(p pair, n node) nl.Wiring {
	return append(s.eniWiring(p), s.routedPodWiring(p, n)...)
}

func (s *scene) routedPodWiring(p pair, n node) nl.Wiring {
	inPod := slices.Concat(s.routedLink(p), metadataBlock(s.request, p),
		s.Config.RuntimeConfig.Bandwidth.objects(s.podLinks()))
	return append(nl.Steps(s.podNS, inPod), nl.Steps(s.nodeNS, append(nodeRoutes(p, n), looplessRoutes(p)...))...)
}

func (s *scene) routedLink(p pair) (objects []nl.Object) {
	dev := s.IfName
	if p.hasFamily(nl.IPv6) { // runtimes disable IPv6 in new namespaces, also on lo: a pod calls itself through lo
		objects = append(objects, nl.Sysctl{Key: conf6("lo") + "disable_ipv6", Value: "0"},
			nl.Sysctl{Key: conf6(dev) + "disable_ipv6", Value: "0"})
	}
	for _, a := range p.addrs {
		objects = append(objects, nl.Addr{Prefix: nl.HostPrefix(a), Dev: dev, NoDAD: a.Is6()})
	}
	for _, f := range p.families() {
		objects = append(objects, nl.Neigh{Addr: nextHop(f), MAC: p.veth.MAC, Dev: dev},
			nl.Route{Dst: f.Everywhere(), Via: nextHop(f), Dev: dev, OnLink: f == nl.IPv4, Protocol: nl.RouteProtocol})
	}
	return objects
}

// routedResult returns prevResult with both ends of the pair. The ENI's link stays the first interface, because CHECK
// expects it there.
func routedResult(r *request, p pair) *types100.Result {
	res := *r.Prev
	own := &types100.Interface{Name: p.veth.Peer, Mac: p.veth.PeerMAC, Mtu: p.veth.MTU, Sandbox: r.NetNS}
	near := &types100.Interface{Name: p.veth.Name, Mac: p.veth.MAC, Mtu: p.veth.MTU}
	res.Interfaces = []*types100.Interface{r.Prev.Interfaces[0], own, near}
	res.IPs = r.nics[0].IPs
	return &res
}
