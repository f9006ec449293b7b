// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// wiring is what an ADD makes for one pod after the veth pair.
func (s *scene) wiring(p pair, n node, table uint32) nl.Wiring {
	r := s.request
	if p.routed {
		return s.routedWiring(p, n)
	}
	inPod := slices.Concat(
		podSysctls(r.Config, p), podAddrs(r.Config, p),
		// The filters for outgoing packets come first: only these give a link the kind of
		// qdisc that serves both directions.
		metadataBlock(r, p), metadataBlockFurther(r, r.nics, 1, p.loop),
		r.Config.RuntimeConfig.Bandwidth.objects(r.limited()),
		podLoop(r, p, table),
		podRoutes(r, p, n), podCallers(r, p, n))
	return append(steps(s.podNS, inPod), steps(s.nodeNS, slices.Concat(nodeRoutes(p, n), loopRoutes(r, p, table)))...)
}

func podSysctls(c Config, p pair) (objects []nl.Object) {
	if p.has(nl.IPv6) {
		objects = append(objects, nl.Sysctl{Key: conf6(c.ContainerInterface) + "disable_ipv6", Value: "0"})
	}
	return objects
}

// podAddrs are the pod's addresses of IPv4, once more at its end of the pair. REDIRECT needs one there, by which the
// sidecar of a service mesh gets what arrives. REDIRECT sends a packet to an address of the link by which the packet
// has arrived. If this link has no address, REDIRECT drops the packet (nf_nat_redirect_ipv4). In IPv6, it takes the
// link-local address. Nothing else uses the addresses: they are apart, see [nl.Addr].
func podAddrs(c Config, p pair) (objects []nl.Object) {
	for _, a := range p.addrs {
		if a.Is4() {
			objects = append(objects, copied{nl.Addr{Prefix: single(a), Dev: c.ContainerInterface, Apart: true}})
		}
	}
	return objects
}

// A copied address is one that another link of the pod has, too.
type copied struct{ nl.Addr }

// Del does nothing: the address ends with the pair. A link that loses its last address of IPv4 loses all routes and
// neighbours (fib_disable_ip). A failed ADD must not remove routes and neighbours of a pod that an earlier release has
// made.
func (copied) Del(*nl.NS) error { return nil }

// podRoutes lead to the addresses of the node, and to what the pod reaches by the node. To all other addresses, they
// lead by the node's primary address or by the pod's own gateway. What the pod reaches by the node may also be the CIDR
// of a peer, to which it has a route by its ENI.
func podRoutes(r *request, p pair, n node) (objects []nl.Object) {
	dev := r.Config.ContainerInterface
	for _, a := range n.addrs {
		// The pod's own address may be among them: amazon-ec2-net-utils gives a link all
		// addresses of its ENI.
		if p.has(nl.FamilyOf(a)) && !slices.Contains(p.addrs, a) {
			objects = append(objects,
				nl.Neigh{Addr: a, MAC: p.veth.MAC, Dev: dev},
				nl.Route{Dst: single(a), Dev: dev, Protocol: nl.RouteProtocol})
		}
	}
	for _, dst := range p.byNode(r.Config) {
		// The route to an address of the node itself is there already, and so is one that refuses.
		there := dst.IsSingleIP() && (slices.Contains(n.addrs, dst.Addr()) ||
			slices.Contains(blocked(r, p), dst.Addr()))
		if a, ok := n.primary(nl.FamilyOf(dst.Addr())); ok && !there {
			objects = append(objects, nl.Route{Dst: dst, Via: a, Dev: dev, Protocol: nl.RouteProtocol,
				Replace: slices.Contains(r.routes, dst)})
		}
	}
	return append(objects, defaultRoutes(r, p, n)...)
}

// defaultRoutes are the default routes that prevResult lacks. In IPv6 it has one, by the ENI.
func defaultRoutes(r *request, p pair, n node) (objects []nl.Object) {
	for _, f := range p.families() {
		if r.routed(f) {
			continue
		}
		route := nl.Route{Dst: f.Everywhere(), Protocol: nl.RouteProtocol}
		switch a, ok := n.primary(f); {
		case r.Config.DefaultRoute == byVPC:
			route.Via, route.Dev, route.OnLink = r.gateway(f), r.IfName, f == nl.IPv4 // in the address's subnet or not
		case ok && f == nl.IPv4:
			route.Via, route.Dev = a, r.Config.ContainerInterface
		default:
			continue
		}
		objects = append(objects, route)
	}
	return objects
}

// byENI are the destinations that the pod reaches by its ENI.
func byENI(r *request, p pair) []netip.Prefix {
	all := slices.Clone(r.routes)
	for _, f := range p.families() {
		if r.Config.DefaultRoute == byVPC && !r.routed(f) {
			all = append(all, f.Everywhere())
		}
	}
	return all
}

// nodeRoutes lead to the pod, with the node's primary address as the source. The veth has no
// address, and the kernel would take the first one of any link.
func nodeRoutes(p pair, n node) (objects []nl.Object) {
	if !p.fresh { // see nl.Veth.NoRedirects
		objects = append(objects, nl.Sysctl{Key: conf4(p.veth.Name) + "send_redirects", Value: "0"})
	}
	if p.has(nl.IPv6) {
		objects = append(objects, nl.Sysctl{Key: conf6(p.veth.Name) + "disable_ipv6", Value: "0"})
	}
	for _, a := range p.addrs {
		src, _ := n.primary(nl.FamilyOf(a))
		route := nl.Route{Dst: single(a), Dev: p.veth.Name, Src: src, Protocol: nl.RouteProtocol, Replace: true}
		objects = append(objects, nl.Neigh{Addr: a, MAC: p.veth.PeerMAC, Dev: p.veth.Name}, route)
		if a.Is4() {
			objects = append(objects, second(route))
		}
	}
	return objects
}

// second is the route to a pod that is used when the first is gone. When the node loses an address, the kernel removes
// the IPv4 routes with that source. DHCP, or a restart of the program that configures the link, may remove the node's
// address and add it again. Until [Repair] puts the first route back, the kernel chooses the source.
func second(route nl.Route) nl.Route {
	route.Src, route.Metric = netip.Addr{}, SpareMetric
	return route
}

// SpareMetric is the metric of the second route to a pod.
const SpareMetric = 4096
