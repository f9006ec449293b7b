// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// wiring lists the objects of one pod that an ADD makes after the veth pair.
func (s *scene) wiring(p pair, n node, table uint32) nl.Wiring {
	r := s.request
	if p.routed {
		return s.routedWiring(p, n)
	}
	inPod := slices.Concat(
		podSysctls(r.Config, p), podAddrs(r.Config, p),
		// The filters for outgoing packets come first, because only they add a qdisc for both directions.
		metadataBlock(r, p), metadataBlockFurther(r, r.nics, 1, p.loop),
		r.Config.RuntimeConfig.Bandwidth.objects(r.limitedLinks()),
		podLoop(r, p, table),
		podRoutes(r, p, n), podCallerObjects(r, p, n))
	onNode := slices.Concat(nodeRoutes(p, n), loopRoutes(r, p, table))
	return append(nl.Steps(s.podNS, inPod), nl.Steps(s.nodeNS, onNode)...)
}

func podSysctls(c Config, p pair) (objects []nl.Object) {
	if p.hasFamily(nl.IPv6) {
		objects = append(objects, nl.Sysctl{Key: conf6(c.ContainerInterface) + "disable_ipv6", Value: "0"})
	}
	return objects
}

// podAddrs copies the pod's IPv4 addresses to the pod's end of the pair. A sidecar of a service mesh needs this:
// netfilter's REDIRECT gives the sidecar the packets that arrive at the pod. REDIRECT sends a packet to an address of
// the incoming link, and drops the packet if this link has no address (nf_nat_redirect_ipv4). In IPv6, REDIRECT takes
// the link-local address. The copies have [nl.Addr].Apart, so the kernel uses them for nothing else.
func podAddrs(c Config, p pair) (objects []nl.Object) {
	for _, a := range p.addrs {
		if a.Is4() {
			objects = append(objects, copiedAddr{nl.Addr{Prefix: nl.HostPrefix(a), Dev: c.ContainerInterface,
				Apart: true}})
		}
	}
	return objects
}

// A copiedAddr is an address that another link of the pod also has.
type copiedAddr struct{ nl.Addr }

// Del does nothing: the address ends with the pair. A link that loses its last IPv4 address also loses all IPv4 routes
// and neighbours (fib_disable_ip). A repeated ADD may add the address to a running pod of an earlier release. If this
// ADD fails, its undo must not remove the address.
func (copiedAddr) Del(*nl.NS) error { return nil }

// podRoutes returns the pod's routes to the node's addresses, the routes to hostCidrs, and the default routes. The next
// hop of a default route through the ENI is the pod's gateway in the VPC. The next hop of any other default route, and
// of the routes to hostCidrs, is the node's primary address. If a prefix of hostCidrs is also the CIDR of a peered VPC,
// the route through the node replaces the route through the ENI.
func podRoutes(r *request, p pair, n node) (objects []nl.Object) {
	dev := r.Config.ContainerInterface
	for _, a := range n.addrs {
		// Skip the pod's own address: amazon-ec2-net-utils adds all addresses of an ENI to the ENI's link.
		if p.hasFamily(nl.FamilyOf(a)) && !slices.Contains(p.addrs, a) {
			objects = append(objects,
				nl.Neigh{Addr: a, MAC: p.veth.MAC, Dev: dev},
				nl.Route{Dst: nl.HostPrefix(a), Dev: dev, Protocol: nl.RouteProtocol})
		}
	}
	for _, dst := range p.dstsByNode(r.Config) {
		// For an address of the node, and for a blocked address, the pod already has a route.
		there := dst.IsSingleIP() && (slices.Contains(n.addrs, dst.Addr()) ||
			slices.Contains(blockedAddrs(r, p), dst.Addr()))
		if a := n.primaryAddr(nl.FamilyOf(dst.Addr())); a.IsValid() && !there {
			objects = append(objects, nl.Route{Dst: dst, Via: a, Dev: dev, Protocol: nl.RouteProtocol,
				Replace: slices.Contains(r.routes, dst)})
		}
	}
	return append(objects, defaultRoutes(r, p, n)...)
}

// defaultRoutes returns the default routes that prevResult lacks. prevResult has the default route of IPv6, through the
// ENI.
func defaultRoutes(r *request, p pair, n node) (objects []nl.Object) {
	for _, f := range p.families() {
		if r.hasDefaultRoute(f) {
			continue
		}
		route := nl.Route{Dst: f.Everywhere(), Protocol: nl.RouteProtocol}
		switch a := n.primaryAddr(f); {
		case r.Config.DefaultRoute == byVPC:
			route.Via, route.Dev, route.OnLink = r.gateway(f), r.IfName, f == nl.IPv4 // for gateways outside the subnet
		case a.IsValid() && f == nl.IPv4:
			route.Via, route.Dev = a, r.Config.ContainerInterface
		default:
			continue
		}
		objects = append(objects, route)
	}
	return objects
}

// dstsByENI returns the destinations that the pod reaches through its ENI.
func dstsByENI(r *request, p pair) []netip.Prefix {
	all := slices.Clone(r.routes)
	for _, f := range p.families() {
		if r.Config.DefaultRoute == byVPC && !r.hasDefaultRoute(f) {
			all = append(all, f.Everywhere())
		}
	}
	return all
}

// nodeRoutes returns the node's routes to the pod, with the node's primary address as the source. Without a source, the
// kernel would take the first address of any link, because the veth has no address.
func nodeRoutes(p pair, n node) (objects []nl.Object) {
	if !p.fresh { // an earlier release may have made the pair without nl.Veth.NoRedirects and nl.Veth.NoRA
		objects = append(objects, nl.Sysctl{Key: conf4(p.veth.Name) + "send_redirects", Value: "0"},
			nl.Sysctl{Key: conf6(p.veth.Name) + "accept_ra", Value: "0", Optional: true})
		if p.veth.Forwards && p.hasFamily(nl.IPv4) {
			objects = append(objects, forwards4(p.veth.Name))
		}
	}
	if p.hasFamily(nl.IPv6) {
		objects = append(objects, nl.Sysctl{Key: conf6(p.veth.Name) + "disable_ipv6", Value: "0"})
	}
	for _, a := range p.addrs {
		src := n.primaryAddr(nl.FamilyOf(a))
		route := nl.Route{Dst: nl.HostPrefix(a), Dev: p.veth.Name, Src: src, Protocol: nl.RouteProtocol, Replace: true}
		objects = append(objects, nl.Neigh{Addr: a, MAC: p.veth.PeerMAC, Dev: p.veth.Name}, route)
		if a.Is4() {
			objects = append(objects, spareRoute(route))
		}
	}
	return objects
}

// spareRoute returns the second route to a pod, for the time when the first route is gone. The kernel removes IPv4
// routes whose source the node loses. For example, DHCP or a restarted program may remove the node's address and add it
// again. Until [Repair] puts the first route back, the kernel chooses the source of the node's packets to the pod.
func spareRoute(route nl.Route) nl.Route {
	route.Src, route.Metric = netip.Addr{}, SpareMetric
	return route
}

// SpareMetric is the metric of the second route to a pod.
const SpareMetric = 4096
